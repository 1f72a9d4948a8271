"""Builds the container image of operator and web page without a daemon, and writes it to a file or a registry.

Formats are those of the Open Container Initiative: image-spec 1.1 for images, distribution-spec 1.1 for registries.
Nothing here accesses a cluster.
"""
