"""Checkpoints: their content, their storage, when one is complete, which ones are kept and which one is loaded.

A checkpoint is a directory ``step-000000000100`` in the run's storage, local or on an object store. It is complete once
its ``MANIFEST.json``, which lists every file with its size and SHA-256, exists. Rank 0 writes the manifest last, after
the files of every rank are durable. Everything else is incomplete and is removed after a later save has succeeded.

This package does not handle training loops, signals or reports to Fairlead; ``session`` does.
"""
