"""Accounts for usage and cost: intervals in which parts of nodes were held, and prices. Pure; no I/O, no clock."""
