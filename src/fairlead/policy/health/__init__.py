"""Decisions on slow ranks, unreliable nodes and weak links: pure, with times and measurements as arguments."""
