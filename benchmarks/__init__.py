"""Measurements, each one command: ours beside the peer's; ``--json`` for programs. Never part of the test suite."""
