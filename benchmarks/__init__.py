"""Benchmarks, one command each: Fairlead beside its peers; ``--json`` for programs. Never part of the test suite."""
