"""Specs as text and back: YAML, JSON, JSON Schema, with every mistake told at its line."""
