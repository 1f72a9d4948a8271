"""The loops: load, decide, apply. Adapters are joined to loops here and nowhere else."""
