"""Warns in a waiting command of problems of the cluster: once at the start of a problem, and once at its end."""

import time
from collections.abc import Callable

from fairlead.cli.show import message
from fairlead.cluster.client import ClusterClient
from fairlead.state.snapshot import AnyWorkload

SILENT_S = 10.0
"""Seconds after which a command says that nothing has reacted to it."""


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


class Reaction:
    """The reaction of the loop to the request of a command: says once if there is none.

    Args:
        run: The workload as it was before the command.
        clock: Returns seconds.
    """

    def __init__(
        self, cluster: ClusterClient, run: AnyWorkload, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._run = run
        self._clock = clock
        self._begun = clock()
        self._is_over = False

    def look(self, now: AnyWorkload) -> None:
        """Print once that nothing has reacted for a while; ``now`` is the workload as it is."""
        if self._is_over:
            return
        if now.status != self._run.status:
            self._is_over = True
        elif self._clock() - self._begun >= SILENT_S:
            self._is_over = True
            doctor = " ".join(("fairlead doctor", self._cluster.named())).strip()
            cause = self._cluster.unattended() or f"`{doctor}` checks what should have."
            message(
                f"fairlead: nothing has reacted for {SILENT_S:.0f} s to what {self._run.spec.name} is to do. {cause} "
                "The request is recorded, and Ctrl-C does not take it back."
            )
