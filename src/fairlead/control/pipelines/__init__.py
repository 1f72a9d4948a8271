"""Pipelines on this machine: a run whose program, the driver, runs the steps and records what they returned."""
