"""Ranks that go on without one that was killed, and take it in again, in the same processes. No policy here."""
