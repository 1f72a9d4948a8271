"""Data of a run: stores, manifests, the cache of this machine, and the order of samples. Standard library at import.

No knowledge of clusters: a rank gets the description of its data in ``FAIRLEAD_DATA``.
"""
