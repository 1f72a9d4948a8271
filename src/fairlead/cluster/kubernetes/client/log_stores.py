"""Chooses the store of logs that is asked for output of pods that are gone."""

from collections.abc import Mapping

from fairlead.cluster.kubernetes.client import elasticsearch, loki
from fairlead.cluster.kubernetes.client.kept_output import KeptOutput
from fairlead.errors import ClusterError


def log_store(environ: Mapping[str, str]) -> KeptOutput | None:
    """Return the store that the environment names; None where it names none.

    Raises:
        ClusterError: It names two, or something else than an address.
    """
    found = [each for each in (loki.Loki.of(environ), elasticsearch.Elasticsearch.of(environ)) if each is not None]
    if len(found) > 1:
        raise ClusterError(f"{loki.URL} and {elasticsearch.URL} both name where output is kept; give one of them.")
    return found[0] if found else None
