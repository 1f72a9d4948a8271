"""Callbacks for training frameworks. Each imports its framework, so nothing else may import what is here."""
