"""Metrics for Prometheus: what is read of a cluster, how it is told, and what is drawn and alerted on.

Only ``exposition`` and ``server`` import prometheus-client, which the extra ``serve`` brings. Nothing here changes a
cluster.
"""
