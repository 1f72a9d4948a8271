"""Layouts of MIG: which a cluster needs, and the way from one to another. No loop carries them out yet."""
