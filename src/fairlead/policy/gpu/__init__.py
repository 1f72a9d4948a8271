"""Decides how one GPU is divided among several runs: MIG layouts, MPS, time slices."""
