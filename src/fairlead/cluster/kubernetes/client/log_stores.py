"""Chooses the log store for the output of deleted pods."""

from collections.abc import Mapping

from fairlead.cluster.kubernetes.client import elasticsearch, loki
from fairlead.cluster.kubernetes.client.kept_output import KeptOutput
from fairlead.errors import ClusterError


def log_store(environ: Mapping[str, str]) -> KeptOutput | None:
    """Return the store that the environment names, or None.

    Raises:
        ClusterError: The environment names two stores, or an invalid address.
    """
    stores = [store for store in (loki.Loki.of(environ), elasticsearch.Elasticsearch.of(environ)) if store is not None]
    if len(stores) > 1:
        raise ClusterError(f"{loki.URL} and {elasticsearch.URL} both name where output is kept; give one of them.")
    return stores[0] if stores else None
