"""Decides what to do next, as pure functions, one decision per file. No I/O, no clock, no global state."""
