"""Data of a run: stores, manifests, the cache of this machine, and the order of samples. Standard library at import.

No knowledge of clusters: a rank gets the description of its data in ``FAIRLEAD_DATA``.
"""


def variable_of(name: str) -> str:
    """Return the variable with the path of a data set."""
    return f"FAIRLEAD_DATA_{name.upper().replace('-', '_')}"
