"""Decides who gives way or moves: preemption, eviction, defragmentation, nodes that go."""
