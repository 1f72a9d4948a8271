"""Decides the number of nodes of a gang, and when new nodes are requested for a cluster."""
