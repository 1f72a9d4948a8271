"""Decides on which nodes and devices a gang goes."""
