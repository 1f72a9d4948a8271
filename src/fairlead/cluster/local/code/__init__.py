"""Stored code of local runs as of their submission, and the trees in which attempts run it."""
