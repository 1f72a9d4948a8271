"""Foretells what the loop would decide now, and when those that wait after that will start."""

from collections.abc import Mapping
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.policy.decide import decide
from fairlead.policy.queue.durations import SOON_S
from fairlead.policy.queue.pending_reasons import ahead, behind
from fairlead.policy.queue.start_forecast import Expected, queue
from fairlead.state.snapshot import Phase, Snapshot, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The decisions that come next.

    Attributes:
        statuses: New ones, by uid, of the workloads that the next pass would change, and of those that wait behind the
            first that does not fit, with its name.
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
    waits = tuple(queue(replace(snapshot, workloads=after), now))
    first = next((each.run for each in waits if each.start is None or each.start > now + SOON_S), None)
    for run in (each.run for each in waits):
        if first is not None and run.uid != first.uid and run.status.reason == behind(run):
            found[run.uid] = replace(run.status, reason=ahead(run, first, snapshot.rules.order))
    return Outlook(statuses=found, queue=waits)
