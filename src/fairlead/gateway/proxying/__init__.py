"""A compiled proxy, haproxy, in front of the gateway process.

This package decides which services haproxy forwards by itself, writes its configuration, runs it, and counts its
requests. It never answers a request: haproxy or the gateway process does.
"""
