"""Nodes whose GPUs are partitioned anew: what is true of them, and the steps of it."""
