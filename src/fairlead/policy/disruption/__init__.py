"""Decides which runs are stopped or moved: preemption, eviction, defragmentation, node reclaims."""
