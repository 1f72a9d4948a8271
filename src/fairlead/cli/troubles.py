"""Warns, in a command that waits, of a cluster in trouble: once when it begins, and once when it is over."""

from fairlead.cli.show import message
from fairlead.cluster.client import ClusterClient


class Troubles:
    """The trouble of one cluster while a command waits; what it had at the start was told when it was opened."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._is_told = cluster.trouble() is not None

    def tell(self) -> None:
        """Say what has changed since the last call."""
        trouble = self._cluster.trouble()
        if trouble is not None and not self._is_told:
            message(f"fairlead: {trouble}")
        elif trouble is None and self._is_told:
            message("fairlead: the problem is resolved.")
        self._is_told = trouble is not None
