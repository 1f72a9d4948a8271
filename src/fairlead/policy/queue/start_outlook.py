"""Foretells what the loop would decide now, and when those that wait after that will start."""

from collections.abc import Mapping
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.policy.decide import decide
from fairlead.policy.queue.start_forecast import Expected, queue
from fairlead.state.snapshot import Phase, Snapshot, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The decisions that come next.

    Attributes:
        statuses: New ones, by uid, of the workloads that the next pass would change.
        queue: Those that wait until then, in their turns; what starts now is among them.
    """

    statuses: Mapping[str, Status]
    queue: tuple[Expected, ...]


def outlook(snapshot: Snapshot, now: float) -> Outlook:
    """The next pass, and what follows as far as it is known."""
    decided = decide(snapshot, now)
    found = {change.workload_uid: change.status for change in decided.changes if change.status is not None}
    settled = (Phase.PENDING, Phase.STOPPING)
    after = tuple(
        replace(run, status=status) if (status := found.get(run.uid)) is not None and status.phase in settled else run
        for run in snapshot.workloads
    )
    return Outlook(statuses=found, queue=tuple(queue(replace(snapshot, workloads=after), now)))
