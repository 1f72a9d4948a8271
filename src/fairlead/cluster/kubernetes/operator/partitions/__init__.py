"""Nodes whose GPUs are repartitioned: their state, and the steps of a change."""
