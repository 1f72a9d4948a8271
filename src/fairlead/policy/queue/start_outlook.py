"""Forecasts the decisions that the loop would make now, and the starts of runs that are pending after that."""

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
    """The next decisions.

    Attributes:
        statuses: New statuses by uid, of workloads that the next pass would change, and of pending runs behind the
            first that does not fit, with its name.
        queue: The runs that are pending until then, in order, including those that start now.
    """

    statuses: Mapping[str, Status]
    queue: tuple[Expected, ...]


def outlook(snapshot: Snapshot, now: float) -> Outlook:
    """Return the next pass, and what follows as far as known."""
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
