"""Judges each kind of workload: its lifecycle, failures and retries."""
