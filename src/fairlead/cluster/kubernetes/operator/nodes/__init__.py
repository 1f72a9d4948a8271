"""Histories and faults of nodes, and what follows from them for the nodes themselves."""
