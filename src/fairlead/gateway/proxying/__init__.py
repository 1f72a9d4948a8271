"""A compiled proxy in front of the door: haproxy, which we configure, start, follow and count for.

What belongs here: which services it may pass requests on for by itself, its configuration, its life, and what it tells
of requests. What never does: answering a request, which either haproxy does or the door.
"""
