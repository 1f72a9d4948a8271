"""Pipelines: a run whose program, the driver, runs the steps and records their outputs."""
