"""Reads and writes traces: lists of runs with their times, which simulations replay. Files in, frozen values out."""
