"""Selects the whole set of runs that should hold GPUs, if any of them may be stopped for others."""
