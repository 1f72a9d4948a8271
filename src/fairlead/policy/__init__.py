"""Decides what to do next: pure functions, one decision a file. No I/O, no clock, no global, no log above debug."""
