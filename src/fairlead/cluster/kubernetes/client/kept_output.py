"""Where all output of pods that are gone is kept: the port to stores of logs that a collector fills."""

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from fairlead.errors import ClusterError

RUN_UID, ATTEMPT, INDEX = "fairlead_run_uid", "fairlead_attempt", "fairlead_index"
"""The labels of a pod as a collector keeps them with its lines."""
Place: TypeAlias = tuple[int, int]
"""Attempt and index of a pod."""


class KeptOutput(Protocol):
    """A store of logs."""

    def lines(self, uid: str, since: float, until: float) -> dict[Place, str]:
        """Return what was kept of a run's pods within a time, by attempt and index, as kubelet's log has it.

        Raises:
            ClusterError: It does not answer, or refuses.
        """
        ...


def kept_output(environ: Mapping[str, str]) -> KeptOutput | None:
    """The store that the environment names; None where it names none.

    Raises:
        ClusterError: It names two, or something else than an address.
    """
    # Here and not above: both know the labels of this module.
    from fairlead.cluster.kubernetes.client import elasticsearch, loki

    found = [each for each in (loki.Loki.of(environ), elasticsearch.Elasticsearch.of(environ)) if each is not None]
    if len(found) > 1:
        raise ClusterError(f"{loki.URL} and {elasticsearch.URL} both name where output is kept; give one of them.")
    return found[0] if found else None
