"""Reconciles the objects of teams and pools."""
