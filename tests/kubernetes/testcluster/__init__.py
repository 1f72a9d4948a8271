"""A real Kubernetes control plane for tests, from binaries built once on this machine; nodes are faked by kwok.

Nothing here knows Fairlead. Everything listens on loopback only, keeps its files in one temporary directory, and dies
with the process that started it, however that ends.
"""
