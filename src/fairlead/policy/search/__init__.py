"""Searches parameters: what values the next trial gets, and which trials end early."""
