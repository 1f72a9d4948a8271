"""The state of runs: their records, the watched pods and nodes, and the kept logs."""
