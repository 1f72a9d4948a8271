"""Stands first on PYTHONPATH of an interpreter that is to be a launcher, or whose stacks may be asked for."""
