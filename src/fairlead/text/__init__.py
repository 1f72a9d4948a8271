"""Formats quantities for people. No decision, no I/O."""
