"""Keeps the objects of teams and pools."""
