"""The container image of operator and page: built without a daemon, written to a file or pushed to a registry.

Formats are those of the Open Container Initiative: image-spec 1.1 for images, distribution-spec 1.1 for registries.
Nothing here speaks to a cluster.
"""
