"""The cluster on this machine: state in one SQLite file, pods as process groups, each under a shim that outlives us."""
