"""Endpoints: how many replicas, of which revision, and where requests go. Pure functions; no clock, no I/O."""
