"""Drivers for controllers that a cluster already has: a run becomes an object of theirs, whose status is read.

There is one file for each engine, and one table of all engines. Everything here is pure: ``operator/engines/`` creates,
watches and deletes the rendered objects. This package makes no requests and no decisions.
"""
