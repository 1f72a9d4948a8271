"""Asks the cluster's autoscaler for nodes, by placeholder pods."""
