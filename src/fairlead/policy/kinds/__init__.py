"""Judges each kind of workload on its own: its life, its failures, its retries."""
