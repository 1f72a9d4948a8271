"""Moves running runs so that a gang finds contiguous room: the cheapest moves that free enough, or none.

Fragmented free capacity is useless for a gang whose pods need whole nodes or whole devices. A run that saves
checkpoints can vacate such a fragment if there is room for it elsewhere at once: it gets its stop notice, saves just in
time, and resumes in a place that is reserved for it meanwhile (``fairlead.policy.disruption.migration``). A moved run
never waits. That costs it less than preemption, so moves are tried first.

Disruption is bounded by ``fairlead.state.scheduling_policy``: a run moves at most once in ``moved_apart_s``; moves of
any hour cost at most ``most_moved`` of it, counted in time of the whole cluster (of runs that still exist). The cost is
that of preemption: dominant share times the work since the newest checkpoint and ``RESTART_S``, an upper bound. The
gain is the dominant share of the gang times the wait that it is spared, ``UNKNOWN_WAIT_S`` if that is unknown; only
moves that cost less are made. Not moved are runs without a checkpoint yet, runs that end by themselves in that time,
runs that precede the gang, scavengers, and, where teams have guarantees, runs outside of them: their place could not be
kept from runs that are owed it.

The order is greedy: nodes by the cost of clearing them for one pod, then as in preemption, so that no smaller set of
the same runs would do. For N nodes and M movable runs: N sums, a placement for each shape, O(M) counts of pods on a
node, and at most M placements in each of ``MOST_TRIES``, where the next leaves out the run that found no place.
Migration from a checkpoint against fragmentation is Gandiva's (Xiao et al., OSDI 2018, section 3.2); the bounds and the
reserved places are ours.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from fairlead.frozen import dataclass
from fairlead.policy.disruption.preemption import RESTART_S, Victim, cost, enough, gain
from fairlead.policy.placement.placement import FreeCapacity, NodeCapacity, place, shape_of, takes_pods
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.queue.dominant_shares import ClusterCapacity
from fairlead.policy.queue.occupancy import Part
from fairlead.policy.queue.priority_classes import Priorities
from fairlead.policy.queue.quotas import is_scavenger
from fairlead.policy.queue.timeline import Timeline, members
from fairlead.specs.gang import GangSpec
from fairlead.specs.resources import Resources
from fairlead.state.scheduling_policy import SchedulingPolicy
from fairlead.state.snapshot import Intent, Phase, Pod, Reservation, Workload

HOUR_S = 3600.0
UNKNOWN_WAIT_S = HOUR_S
MOST_TRIES = 4
# The places of all pods are in the run's status while it moves.
MOST_MEMBERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A run that moves, its reserved places, and the cost in seconds of the whole cluster."""

    workload: Workload
    seats: tuple[Reservation, ...]
    cost_s: float


def movable(
    wanting: Workload,
    holders: Iterable[Workload],
    pods: Mapping[str, Sequence[Pod]],
    *,
    within_guarantee: frozenset[str] | None,
    whole: ClusterCapacity,
    rules: SchedulingPolicy,
    priorities: Priorities,
    now: float,
) -> list[Victim]:
    """Return the runs that may move for another.

    Args:
        within_guarantee: Runs within their teams' guarantees; None if no team has any.
    """
    victims = []
    for run in holders:
        if not _may_move(run, rules, now) or priorities.is_lower(wanting.spec, run.spec):
            continue
        own = [pod for pod in pods[run.uid] if not pod.phase.is_final]
        is_whole = len(own) == run.gang.nodes <= MOST_MEMBERS
        if not is_whole or any(pod.terminating_since is not None for pod in own):
            continue
        if within_guarantee is None or run.uid in within_guarantee:
            parts = tuple((pod.node, pod.grant) for pod in own)
            cost_s = cost(run, own, whole, now)
            victims.append(Victim(workload=run, parts=parts, cost_s=cost_s, by_priority=True))
    return victims


def choose_moves(
    wanting: Workload,
    offered: Sequence[Victim],
    timeline: Timeline,
    free: FreeCapacity,
    *,
    promised: Sequence[Part],
    starts_at: float,
    budget_s: float,
    whole: ClusterCapacity,
    now: float,
) -> tuple[Move, ...]:
    """Return the moves that let the run start; empty if they do not suffice, lack places, or cost too much.

    The places are allocated in ``free``.

    Args:
        promised: The parts of free capacity that are promised to others.
        starts_at: Its start without moves; infinity if unknown.
        budget_s: The remaining budget of moves, in seconds of the whole cluster.
    """
    shape, count = shape_of(wanting.spec, timeline.doors), wanting.spec.nodes
    if not _is_room(shape, count, timeline.rooms.values()):
        return ()
    staying = [victim for victim in offered if timeline.holdings[victim.workload.uid].until > now + 2 * RESTART_S]
    staying = _with_homes(staying, free)
    for _ in range(MOST_TRIES):
        with timeline.at(now) as rooms:
            chosen = enough(shape, count, cheapest_nodes_first(shape, count, staying, rooms), rooms)
        cost_s = sum(victim.cost_s for victim in chosen)
        if not chosen or cost_s > budget_s:
            return ()
        leave_at = now + max(victim.workload.spec.grace_s for victim in chosen)
        wait_s = UNKNOWN_WAIT_S if starts_at == math.inf else starts_at - leave_at
        if gain(wanting, wait_s, whole) <= cost_s:
            return ()
        moves, homeless = _places(wanting.spec, chosen, free, promised)
        if homeless is None:
            return moves
        staying = [victim for victim in staying if victim is not homeless]
    return ()


def budget(workloads: Iterable[Workload], rules: SchedulingPolicy, now: float) -> float:
    """Return the remaining budget of moves in this hour, in seconds of the whole cluster."""
    spent_s = sum(
        run.status.migration.cost_s
        for run in workloads
        if run.status.migration.decided_at is not None and now - run.status.migration.decided_at < HOUR_S
    )
    return rules.most_moved * HOUR_S - spent_s


def can_resume(workload: Workload) -> bool:
    """Return whether the run has saved a checkpoint."""
    progress = workload.progress
    return progress is not None and (progress.checkpoint_at is not None or progress.checkpoint_step is not None)


def _may_move(workload: Workload, rules: SchedulingPolicy, now: float) -> bool:
    status = workload.status
    return (
        status.phase is Phase.RUNNING
        and workload.intent is Intent.RUN
        and workload.spec.most_nodes is None  # it makes room by shrinking
        and not is_scavenger(workload.spec)
        and can_resume(workload)
        and (status.migration.decided_at is None or now - status.migration.decided_at >= rules.moved_apart_s)
    )


def _is_room(shape: Shape, count: int, rooms: Iterable[NodeCapacity]) -> bool:
    """Return whether enough of each resource is free in total; otherwise no moved run would have a place."""
    cpu = memory = milli = 0
    for room in rooms:
        if takes_pods(room.node):
            cpu += max(0, room.cpu_milli)
            memory += max(0, room.memory_bytes)
            milli += sum(free for free in room.gpu_milli.values() if free > 0)
    return (
        cpu >= count * shape.cpu_milli
        and memory >= count * shape.memory_bytes
        and milli >= count * shape.total_gpu_milli
    )  # fmt: skip


def _with_homes(offered: Iterable[Victim], free: FreeCapacity) -> list[Victim]:
    """Return the runs that would find room now if no other moved; similar runs are tried once."""
    known: dict[tuple[Resources, Shape, int], bool] = {}
    rehomed = []
    for victim in offered:
        spec = victim.workload.gang
        key = spec.resources, shape_of(spec, free.doors), spec.nodes
        if key not in known:
            places = place(spec, free)
            for at in places or ():
                free.hold(at.node, at.grant, -1)
            known[key] = places is not None
        if known[key]:
            rehomed.append(victim)
    return rehomed


def cheapest_nodes_first(
    shape: Shape, count: int, offered: Iterable[Victim], rooms: Mapping[str, NodeCapacity]
) -> list[Victim]:
    """Return victims on the nodes cheapest to clear for a pod first; a gang counts by its most expensive node."""
    on: dict[str, list[Victim]] = {}
    for victim in offered:
        for node in {node for node, _ in victim.parts}:
            on.setdefault(node, []).append(victim)
    price = {}
    for node, victims in on.items():
        room, held = rooms[node], [grant for offer in victims for name, grant in offer.parts if name == node]
        before = members(room, shape, count)
        for grant in held:
            room.take(grant, -1)
        more = members(room, shape, count) - before
        for grant in held:
            room.take(grant)
        price[node] = sum(offer.cost_s for offer in victims) / more if more else math.inf
    useful = [offer for offer in offered if any(price[node] < math.inf for node, _ in offer.parts)]
    return sorted(
        useful, key=lambda offer: (max(price[node] for node, _ in offer.parts), offer.parts[0][0], offer.cost_s)
    )  # fmt: skip


def _places(
    wanting: GangSpec, chosen: Sequence[Victim], free: FreeCapacity, promised: Sequence[Part]
) -> tuple[tuple[Move, ...], Victim | None]:
    """Return places that stay free once the gang is in; or the victim that finds none, with nothing allocated."""
    held = list(promised)
    for node, grant in promised:
        free.hold(node, grant)
    leaving = [part for offer in chosen for part in offer.parts]
    for node, grant in leaving:
        free.hold(node, grant, -1)
    gang = [(placement.node, placement.grant) for placement in place(wanting, free) or ()]
    for node, grant in leaving:
        free.hold(node, grant)
    held += gang
    moves, homeless = list[Move](), None if gang else chosen[0]
    for victim in sorted(chosen, key=lambda offer: (-offer.cost_s, offer.workload.uid)) if gang else ():
        places = place(victim.workload.gang, free)
        if places is None:
            homeless = victim
            break
        seats = tuple(Reservation(node=at.node, grant=at.grant) for at in places)
        moves.append(Move(workload=victim.workload, seats=seats, cost_s=victim.cost_s))
    if homeless is not None:
        held += [(seat.node, seat.grant) for move in moves for seat in move.seats]
        moves.clear()
    for node, grant in held:
        free.hold(node, grant, -1)
    return tuple(moves), homeless
