"""Decides on which nodes and devices a gang is placed."""
