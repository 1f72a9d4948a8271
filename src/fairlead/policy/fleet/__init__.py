"""Decides which cluster runs each run of a fleet, when nodes are rented, and when runs return. No I/O here."""
