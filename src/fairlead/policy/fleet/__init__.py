"""Runs among several clusters: which one has each, when nodes are rented, when one comes home. No I/O here."""
