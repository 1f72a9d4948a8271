"""Estimates a training step and chooses how it is split: pure formulas with their sources, without torch."""
