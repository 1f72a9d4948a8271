"""Requests nodes from the cluster's autoscaler, by placeholder pods."""
