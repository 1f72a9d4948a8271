"""Keeps what is true of runs: their records, the pods and nodes that watches tell of, what remains of logs."""
