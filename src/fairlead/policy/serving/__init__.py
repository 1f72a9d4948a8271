"""Decides on replicas of endpoints, their revisions and the routing of requests. Pure functions; no clock, no I/O."""
