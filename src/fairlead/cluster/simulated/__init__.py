"""A cluster in memory on a virtual clock, which simulates months in seconds. Runs no process; decides nothing."""
