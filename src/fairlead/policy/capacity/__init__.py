"""Decides which kind of capacity a run uses, and when: pure decisions about spot and on-demand nodes."""
