"""Chooses the whole set of runs that should hold GPUs, where any of them may be stopped for others."""
