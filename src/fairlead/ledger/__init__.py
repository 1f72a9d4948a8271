"""Money: who held which part of which node from when to when, and what that cost. Pure; no I/O, no clock here."""
