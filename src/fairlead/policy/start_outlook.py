"""Forecasts the decisions that the loop would make now, and the starts of runs that are pending after that."""

from collections.abc import Mapping
from dataclasses import field, replace

from fairlead.frozen import dataclass
from fairlead.policy.decide import decide
from fairlead.policy.kinds.internal_failures import describe
from fairlead.policy.queue.durations import SOON_S
from fairlead.policy.queue.pending_reasons import ahead, behind
from fairlead.policy.queue.run_names import Reader
from fairlead.policy.queue.start_forecast import TOO_WIDE, Expected, queue
from fairlead.state.plan import HeldRoom, Plan
from fairlead.state.snapshot import Intent, Phase, Snapshot, Status

WAITING = (Phase.PENDING, Phase.RESTARTING)
FAILED_TO_DECIDE = "Fairlead failed while it simulated the next pass, an error to report"
FAILED_TO_FORECAST = "Fairlead failed while it forecast starts, an error to report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The next decisions.

    Attributes:
        statuses: New statuses by uid, of workloads that the next pass would change, and of pending runs behind the
            first that does not fit, with its name.
        queue: The runs that are pending until then, in order, including those that start now.
        held: What is held free for pending runs.
        debts: What teams have had beyond their shares, in seconds of the cluster.
        problem: The failure of Fairlead itself for which part of this is missing, as a sentence; empty for none.
    """

    statuses: Mapping[str, Status]
    queue: tuple[Expected, ...]
    held: tuple[HeldRoom, ...] = ()
    debts: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""


def outlook(snapshot: Snapshot, now: float) -> Outlook:
    """Return the next pass, and what follows as far as known.

    An error of Fairlead itself on the way costs what it would have told, and nothing else: starts are unknown, with the
    error as the reason.
    """
    try:
        decided, problem = decide(snapshot, now), ""
    except Exception as error:  # noqa: BLE001
        decided, problem = Plan(), f"{FAILED_TO_DECIDE}: {describe(error)}"
    status_of = {change.workload_uid: change.status for change in decided.changes if change.status is not None}
    settled = (Phase.PENDING, Phase.STOPPING)
    after = tuple(
        replace(run, status=status)
        if (status := status_of.get(run.uid)) is not None and status.phase in settled
        else run
        for run in snapshot.workloads
    )
    try:
        waits = tuple(queue(replace(snapshot, workloads=after), now))
    except Exception as error:  # noqa: BLE001
        problem = problem or f"{FAILED_TO_FORECAST}: {describe(error)}"
        pending = (run for run in after if run.intent is Intent.RUN and run.status.phase in WAITING)
        waits = tuple(Expected(run=run, unknown=problem) for run in pending)
        return Outlook(statuses=status_of, queue=waits, held=decided.held, debts=snapshot.debts, problem=problem)
    blocking = (wait for wait in waits if wait.unknown != TOO_WIDE)  # others pass such a run
    head = next((wait for wait in blocking if wait.start is None or wait.start > now + SOON_S), None)
    first, known = (None, False) if head is None else (head.run, head.start is not None)
    for run in (wait.run for wait in waits):
        if first is not None and run.uid != first.uid and run.status.reason == behind(run):
            status_of[run.uid] = replace(
                run.status,
                reason=ahead(
                    run, first, Reader(run.spec.team, snapshot.rules.shows_names), snapshot.rules.order, is_known=known
                ),
            )
    return Outlook(statuses=status_of, queue=waits, held=decided.held, debts=snapshot.debts, problem=problem)
