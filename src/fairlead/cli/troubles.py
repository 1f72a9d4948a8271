"""Warns in a waiting command of problems of the cluster: once at the start of a problem, and once at its end."""

from fairlead.cli.show import message
from fairlead.cluster.client import ClusterClient


class Troubles:
    """The problems of a cluster while a command waits; an initial one was reported when the cluster was opened."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._is_told = cluster.trouble() is not None

    def tell(self) -> None:
        """Print what has changed since the last call."""
        trouble = self._cluster.trouble()
        if trouble is not None and not self._is_told:
            message(f"fairlead: {trouble}")
        elif trouble is None and self._is_told:
            message("fairlead: the problem is resolved.")
        self._is_told = trouble is not None
