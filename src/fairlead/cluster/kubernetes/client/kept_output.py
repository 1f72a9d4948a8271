"""The port to stores of logs, in which a collector keeps all output of pods that are gone."""

from typing import Protocol, TypeAlias

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
