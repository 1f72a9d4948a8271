"""Chooses the runs to stop for one that precedes them: the cheapest whole gangs that free enough, or none.

There are three grounds. A scavenger yields to every other run. What a team borrows yields to a run within another
team's guarantee. Within one team a lower priority yields to a higher one, if that costs less than it gains. No run is
stopped for room that is about to be free anyway, and a team's guarantee is never taken for another team. A team that
holds more than its fair share replaces none of its own while runs of other teams before it wait for room: when its run
ends, the room is theirs.

Cost and gain are in seconds of the whole cluster. A victim costs its dominant share times the work since its newest
checkpoint and ``RESTART_S``; that is an upper bound, since the stop notice lets it save just in time. The gain is the
dominant share of the starting run times the wait that it is spared.

An elastic gang may continue with fewer nodes, down to its smallest size, or to what is within its team's guarantee. If
shrinking suffices, no run is stopped altogether; each shrunk gang restarts, and costs as much as a stopped one.

Victims are added cheapest first until the gang fits, then unneeded ones are dropped, the most expensive first; so no
smaller set of the same ones would do. Each step counts how many pods fit on the nodes of one victim.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from fairlead.frozen import dataclass
from fairlead.policy.placement.placement import NodeCapacity, shape_of
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.queue.dominant_shares import ClusterCapacity, asked, dominant_share
from fairlead.policy.queue.occupancy import Part
from fairlead.policy.queue.quotas import is_scavenger
from fairlead.policy.queue.timeline import Timeline, members
from fairlead.state.snapshot import Intent, Phase, Pod, Workload

# From a stop notice until the work resumes elsewhere, without the wait for room.
RESTART_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A run that may be stopped.

    Attributes:
        cost_s: The cost of stopping it, in seconds of the whole cluster.
        by_priority: Whether it yields only because of its priority, so that cost and gain are compared.
        keeps: The number of nodes with which an elastic gang continues; 0 if it is stopped.
    """

    workload: Workload
    parts: tuple[Part, ...]
    cost_s: float
    by_priority: bool
    keeps: int = 0


def victims(
    wanting: Workload,
    holders: Iterable[Workload],
    pods: Mapping[str, Sequence[Pod]],
    *,
    is_owed: bool,
    may_replace_own: bool,
    guaranteed_nodes: Mapping[str, int],
    barred: frozenset[str],
    points: Callable[[Workload], int],
    whole: ClusterCapacity,
    now: float,
) -> tuple[list[Victim], list[Victim]]:
    """Return elastic gangs that may shrink for a run, and runs that may be stopped for it; cheapest first.

    Args:
        is_owed: Whether the run lies within its team's guarantee.
        may_replace_own: Whether runs of its own team may be stopped for it.
        guaranteed_nodes: The number of nodes of runs within their own teams' guarantees.
        barred: Nodes that the run cannot use.
        points: The scores of pending runs, so that no run is stopped for one that would queue behind it.
    """
    smaller, offered = list[Victim](), list[Victim]()
    if is_scavenger(wanting.spec):
        return smaller, offered
    for run in holders:
        own = [pod for pod in pods[run.uid] if not pod.phase.is_final]
        if run.intent is not Intent.RUN or run.status.phase not in (Phase.STARTING, Phase.RUNNING):
            continue
        if any(pod.terminating_since is not None for pod in own):
            continue
        same_team = run.spec.team == wanting.spec.team
        kept_nodes = guaranteed_nodes.get(run.uid, 0)
        reclaims = is_scavenger(run.spec) or (is_owed and not same_team)
        at_once = reclaims and not kept_nodes
        lower = same_team and may_replace_own and run.spec.priority < wanting.spec.priority
        lower = lower and points(run) < points(wanting)
        keeps = max(run.spec.nodes, 0 if lower else kept_nodes)
        if (lower or reclaims) and keeps < len(own):
            spare = sorted(own, key=lambda pod: (pod.node not in barred, pod.index))[keeps:]
            smaller.append(_victim(run, own, spare, whole, now, by_priority=not reclaims, keeps=keeps))
        if at_once or lower:
            offered.append(_victim(run, own, own, whole, now, by_priority=not at_once))
        elif smaller and smaller[-1].workload is run:
            offered.append(smaller[-1])
    return sorted(smaller, key=_cheapest), sorted(offered, key=_cheapest)


def _cheapest(victim: Victim) -> tuple[bool, float, str]:
    return victim.by_priority, victim.cost_s, victim.workload.uid


def _victim(
    workload: Workload, own: Sequence[Pod], gone: Iterable[Pod], whole: ClusterCapacity, now: float,
    *, by_priority: bool, keeps: int = 0,
) -> Victim:  # fmt: skip
    parts = tuple((pod.node, pod.grant) for pod in gone)
    cost_s = cost(workload, own, whole, now)
    return Victim(workload=workload, parts=parts, cost_s=cost_s, by_priority=by_priority, keeps=keeps)


def cost(workload: Workload, pods: Iterable[Pod], whole: ClusterCapacity, now: float) -> float:
    """Return the cost of stopping a run now, in seconds of the whole cluster."""
    return dominant_share(asked(workload.gang, whole), whole) * restart_s(workload, pods, now)


def restart_s(workload: Workload, pods: Iterable[Pod], now: float) -> float:
    """Return the maximum time in seconds that a run loses when it is stopped now and restarted."""
    progress = workload.progress
    began = min((pod.created_at for pod in pods), default=now)
    saved = progress.checkpoint_at if progress is not None and progress.checkpoint_at is not None else began
    return max(0.0, now - max(saved, began)) + RESTART_S


def choose(
    wanting: Workload,
    offered: Sequence[Victim],
    timeline: Timeline,
    *,
    starts_at: float,
    whole: ClusterCapacity,
    now: float,
) -> tuple[Victim, ...]:
    """Return the runs to stop so that the run can start; empty if they do not suffice, or cost more than it gains.

    Args:
        starts_at: Its start without preemption; infinity if unknown.
    """
    shape, count = shape_of(wanting.spec, timeline.doors), wanting.spec.nodes
    if not offered:
        return ()
    soon = now + max(victim.workload.spec.grace_s for victim in offered)
    staying = [victim for victim in offered if timeline.holdings[victim.workload.uid].until > soon]
    with timeline.at(soon) as rooms:
        chosen = enough(shape, count, staying, rooms)
    if not chosen:
        return ()
    leave_at = now + max(victim.workload.spec.grace_s for victim in chosen)
    if starts_at <= leave_at:
        return ()
    paid_s = sum(victim.cost_s for victim in chosen if victim.by_priority)
    gain_s = gain(wanting, starts_at - leave_at, whole)
    return chosen if paid_s < gain_s or not paid_s else ()


def gain(wanting: Workload, spared_s: float, whole: ClusterCapacity) -> float:
    """Return the value of sparing a run this much waiting, in seconds of the whole cluster."""
    share = dominant_share(asked(wanting.spec, whole), whole)
    return math.inf if spared_s == math.inf else share * max(0.0, spared_s)


def enough(
    shape: Shape, count: int, offered: Sequence[Victim], rooms: Mapping[str, NodeCapacity]
) -> tuple[Victim, ...]:
    """Return as few victims as needed, in order; none if all of them do not suffice, or none is needed."""
    fits = {name: members(room, shape, count) for name, room in rooms.items()}
    total = sum(fits.values())
    taken: list[Victim] = []

    def count_as(victim: Victim, times: int) -> int:
        """Return the change in fitting pods if a victim's room counts as held (1) or released (-1)."""
        for node, grant in victim.parts:
            rooms[node].take(grant, times)
        change = 0
        for node in {node for node, _ in victim.parts}:
            number = members(rooms[node], shape, count)
            change += number - fits[node]
            fits[node] = number
        return change

    for victim in offered:
        if total >= count:
            break
        taken.append(victim)
        total += count_as(victim, -1)
    is_enough = total >= count
    for victim in sorted(taken, key=lambda offer: (not offer.by_priority, -offer.cost_s, offer.workload.uid)):
        total += count_as(victim, 1)
        if is_enough and total < count:
            total += count_as(victim, -1)
        else:
            taken.remove(victim)
    for victim in taken:
        count_as(victim, 1)
    return tuple(taken)
