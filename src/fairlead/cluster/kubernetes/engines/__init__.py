"""Controllers that a cluster already has, driven rather than rebuilt: a run becomes one object of theirs, and back.

One file an engine, one table of them all. Everything here is pure: what is rendered is created, watched and deleted by
``operator/engines/``. No request is made here, and nothing is decided.
"""
