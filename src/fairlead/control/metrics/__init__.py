"""Metrics for Prometheus: readings of a cluster, their exposition, dashboards and alerts.

Only ``exposition`` and ``server`` import prometheus-client, which the extra ``serve`` installs. Nothing here changes a
cluster.
"""
