"""Checkpoints: what is saved, where, when it counts, which are kept, which one is loaded.

A checkpoint is a directory ``step-000000000100`` under the run's place, local or on an object store. It counts once its
``MANIFEST.json``, which names every file with its size and SHA-256, is there; that is written last, by rank 0, after
every rank's files are durable. Everything else is a leftover and is removed after a later save has succeeded.

Nothing here knows of training loops, signals or reports to Fairlead; that is ``session``.
"""
