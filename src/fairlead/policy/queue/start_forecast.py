"""Forecasts the starts of pending runs, if all runs end at their latest time and no new ones arrive.

In order, each run gets the earliest start beside all earlier ones, as in conservative backfilling (Mu'alem and
Feitelson, TPDS 2001): the computation by which the first pending run is promised its start. Behind a run with unknown
start all starts are unknown. For W pending runs: W walks of the timeline, at most ``MOST``.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from fairlead.frozen import dataclass
from fairlead.policy.placement.placement import NodeCapacity, shape_of
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.queue.dominant_shares import asked, capacity
from fairlead.policy.queue.durations import SOON_S, durations_of
from fairlead.policy.queue.fair_order import Filling, fairly, first_come
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import Ledger, is_scavenger
from fairlead.policy.queue.run_names import Reader, name_of
from fairlead.policy.queue.timeline import Timeline, members
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Pod, Snapshot, Workload

# Later runs get no forecast.
MOST = 500


# The number of names listed of runs with unknown end.
MOST_NAMED = 3
UNKNOWN = "the start of {}, which is before it, is not known"

TOO_WIDE = "it is wider than its team's fair share, for which the team saves"

# Why runs that do not wait for room get no forecast.
_HELD = {
    Code.OVER_QUOTA: "its team is at its quota",
    Code.OVER_BUDGET: "its budget is spent, or its cost is unknown",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A pending run and its expected start.

    Attributes:
        start: The latest start as Unix time; None if unknown.
        unknown: Why it is unknown; empty if it is known.
    """

    run: Workload
    start: float | None = None
    unknown: str = ""


def expected_starts(snapshot: Snapshot, now: float) -> dict[str, float]:
    """Return the known latest starts of pending runs as Unix times, by uid."""
    return {expected.run.uid: expected.start for expected in queue(snapshot, now) if expected.start is not None}


def queue(snapshot: Snapshot, now: float) -> list[Expected]:
    """Return all pending runs in order; those of teams at their quota or budget come last."""
    pods = defaultdict[str, list[Pod]](list)
    for pod in snapshot.pods:
        pods[pod.workload_uid].append(pod)
    durations = durations_of(snapshot.completed)
    holders = [run for run in snapshot.workloads if any(not pod.phase.is_final for pod in pods[run.uid])]
    ends = {run.uid: min(durations.ends_at(run, pods[run.uid], now), _gone_at(run, now)) for run in holders}
    timeline = Timeline.of(snapshot.nodes, snapshot.pods, ends, now)
    whole = capacity(snapshot.nodes)
    ledger = Ledger.of(snapshot.teams, whole, holders)
    standing = Standing.of(snapshot, whole, snapshot.rules.order, now)
    waiting = [
        run
        for run in snapshot.workloads
        if run.intent is Intent.RUN
        and run.status.phase in (Phase.PENDING, Phase.RESTARTING)
        and all(pod.phase.is_final for pod in pods[run.uid])
    ]
    held = [run for run in waiting if run.status.reason.code in _HELD]
    waiting = [run for run in waiting if run.status.reason.code not in _HELD]
    waits = []
    wanting = {run.spec.team for run in waiting if not is_scavenger(run.spec)}
    shares = Filling(ledger.copy(), wanting, now, snapshot.debts) if snapshot.rules.fair else None
    if snapshot.rules.fair:
        in_turn, owed = fairly(waiting, ledger, standing, debts=snapshot.debts)
    else:
        in_turn, owed = first_come(waiting, ledger), frozenset[str]()
    unknown, first = "", None
    for place, run in enumerate(in_turn):
        if not unknown and place >= MOST:
            unknown = f"more than {MOST} wait before it"
        if unknown:
            before = unknown if first is None else unknown.format(_reader(run, snapshot).name(first.spec))
            waits.append(Expected(run=run, unknown=before))
            continue
        shape = shape_of(run.spec, timeline.doors)
        claim = timeline.earliest(shape, run.spec.nodes, durations.length_s(run, now))
        if (
            shares is not None
            and claim.start > now + SOON_S
            and run.uid not in owed
            and shares.is_early(run.spec, asked(run.spec, whole), run.status)
        ):
            waits.append(Expected(run=run, unknown=TOO_WIDE))
            continue
        if claim.start == math.inf:
            waits.append(
                Expected(run=run, unknown=_why_unknown(timeline, shape, holders, ends, _reader(run, snapshot)))
            )
            unknown, first = UNKNOWN, run
            continue
        waits.append(Expected(run=run, start=max(claim.start, run.status.failures.retry_at or 0.0)))
        timeline.claim(claim)
    return [*waits, *(Expected(run=run, unknown=_HELD[run.status.reason.code]) for run in held)]


def _reader(run: Workload, snapshot: Snapshot) -> Reader:
    return Reader(run.spec.team, snapshot.rules.shows_names)


def _why_unknown(
    timeline: Timeline, shape: Shape, holders: Iterable[Workload], ends: Mapping[str, float], reader: Reader
) -> str:
    """Return which runs with unknown end hold room that such pods could use."""
    usable = {name for name, room in timeline.rooms.items() if members(NodeCapacity.of(room.node), shape, 1)}
    if not usable:
        return "no node accepts such a pod now"
    names = {
        name_of(run.spec)
        for run in holders
        if ends[run.uid] == math.inf and any(node in usable for node, _ in timeline.holdings[run.uid].parts)
    }
    if not names:
        return "it is not known when there is room for it"
    verb = "has" if len(names) == 1 else "have"
    return f"{reader.names(names, MOST_NAMED)} {verb} no max_duration"


def _gone_at(run: Workload, now: float) -> float:
    """Return when a stopping run has left, whether its pods have been notified yet or not."""
    return now + run.spec.grace_s + SOON_S if run.status.phase is Phase.STOPPING else math.inf
