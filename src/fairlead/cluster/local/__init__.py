"""The cluster on this machine: state in one SQLite file; each pod is a process group under a shim that outlives us."""
