"""Decides how many nodes a gang gets, and when a cluster is asked for more."""
