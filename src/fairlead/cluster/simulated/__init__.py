"""A cluster in memory on a virtual clock, for months in seconds. It runs no process and decides nothing."""
