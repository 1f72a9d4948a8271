"""Shares GPUs in rounds: neighbours and places of all runs are chosen at once, and then stay for the round.

As in Gavel (OSDI 2020) and Muri (SIGCOMM 2022). Once the last round is ``ROUND_S`` old and something has happened, the
next is chosen. It assigns a place, including devices, to every run that should hold GPUs, and lists the runs that have
to leave: those that move elsewhere, and those in the way. All leave at once, and each starts in its place as soon as no
other run is left there. Between rounds no run is stopped for a choice; idle capacity that is no run's place goes to any
run that fits. So no choice is made twice at one instant, and swaps of several groups need no proof
(docs/decisions/0079-runs-share-gpus-in-rounds.md).

The assignments of a round are kept with the runs (``Status.assigned``); the latest of any run is the last round. A
place that a run does not get, because its node left or the plan was applied in part, is given up with the next round.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field, replace

from fairlead.frozen import dataclass
from fairlead.policy.disruption.preemption import RESTART_S
from fairlead.policy.placement.node_eligibility import doors_of
from fairlead.policy.placement.placement import FreeCapacity, Placement, grant_of, matching, shape_of, takes_pods
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import Ledger, is_scavenger
from fairlead.policy.selection.gpu_room import homes_of
from fairlead.policy.selection.grouping import Grouping
from fairlead.policy.selection.knapsack import choose
from fairlead.policy.selection.selection import (
    MOST_GPUS,
    Candidate,
    Candidates,
    candidates_of,
    densest_first,
    held_of,
    num_gpus_of_one_cell,
    wants_gpus,
)
from fairlead.policy.selection.slowdowns import Slowdowns, is_colocated, pace_kind, slowdowns_of
from fairlead.policy.selection.worth import worth
from fairlead.state.scheduling_policy import Selection
from fairlead.state.snapshot import Assignment, Grant, Intent, Node, Phase, Pod, Reservation, Snapshot, Workload

ROUND_S = 360.0
# If nothing has happened, time alone improves the choice only slowly.
QUIET_S = 10 * ROUND_S
# The time for which a choice is assumed to stand, in which it has to make up for the cost of restarts.
STANDS_S = 1800.0
# The time for which a round waits for a pass without other decisions on runs.
PATIENCE_S = 60.0

Device = tuple[str, str]
Seats = tuple[Reservation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The choice of a round.

    Attributes:
        at: The time of the choice.
        assigned: The assignments of runs that do not hold their places yet, by uid.
        news: The assignments of a new round, by uid of every run to be notified.
        leaving: Uids of runs that have to leave their GPUs.
        order: Uids of runs that wait for GPUs, in the order in which they are considered.
    """

    at: float
    assigned: Mapping[str, Assignment]
    news: Mapping[str, Assignment]
    leaving: frozenset[str]
    order: tuple[str, ...]


def are_held(snapshot: Snapshot, waiting: Sequence[Workload], holders: Sequence[Workload]) -> bool:
    """Return whether GPUs are shared in rounds: by remaining work, as soon as one run allows it.

    Only if all may go to the same nodes, and no run requests a part of a GPU; otherwise a choice by number is not
    valid.
    """
    runs = [*waiting, *holders]
    if snapshot.rules.selection is not Selection.LEAST_WORK or not any(e.spec.resources.colocate for e in runs):
        return False
    doors, homes = doors_of(tuple(snapshot.nodes)), homes_of(tuple(snapshot.nodes))
    groups: set[frozenset[str]] = set()
    for run in runs:
        if wants_gpus(run):
            shape = shape_of(run.spec, doors)
            groups.add(homes.of(shape))
            if shape.is_share or len(groups) > 1:
                return False
    return sum(len(homes.gpus[name]) for names in groups for name in names) <= MOST_GPUS


def round_times(snapshot: Snapshot) -> Iterator[float]:
    """Yield when the next round is due, if runs share."""
    going = [run for run in snapshot.workloads if not run.status.phase.is_final]
    if any(run.spec.resources.colocate for run in going):
        last = last_round(going)
        yield from (last + after_s + late_s for after_s in (ROUND_S, QUIET_S) for late_s in (0.0, PATIENCE_S))


def last_round(workloads: Iterable[Workload]) -> float:
    """Return the time of the last round; minus infinity before the first."""
    return max(
        (run.status.measured.assigned.at for run in workloads if run.status.measured.assigned is not None),
        default=-math.inf,
    )


def current(
    snapshot: Snapshot,
    waiting: Sequence[Workload],
    holders: Sequence[Workload],
    pods: Mapping[str, Sequence[Pod]],
    standing: Standing,
    ledger: Ledger,
    fixed: Set[str],
    *,
    is_settled: bool,
    refused: Callable[[Workload], bool],
) -> Round:
    """Return the current round, or a new one if the last is over.

    Args:
        waiting, holders, ledger, fixed: As for ``candidates_of``.
        is_settled: Whether no other decision is made on any run in this pass.
        refused: Returns whether a run may not start even with everything free.
    """
    now, last = standing.now, last_round((*waiting, *holders))
    due_at = last + (ROUND_S if _has_news(snapshot, waiting, holders, last) else QUIET_S)
    if now >= due_at and (is_settled or now >= due_at + PATIENCE_S):
        slowdowns = slowdowns_of(snapshot.workloads, snapshot.completed)
        may = [run for run in waiting if wants_gpus(run) and not refused(run)]
        candidates = candidates_of(snapshot, may, holders, pods, standing, ledger, fixed, slowdowns)
        return _make(snapshot, candidates, holders, pods, standing, fixed, slowdowns)
    assigned = {
        run.uid: run.status.measured.assigned
        for run in (*waiting, *holders)
        if run.status.measured.assigned is not None
        and run.status.measured.assigned.at == last
        and run.status.measured.assigned.seats
        and run.status.phase not in (Phase.STARTING, Phase.RUNNING)
    }
    order = sorted(
        (run for run in waiting if wants_gpus(run)),
        key=lambda run: (run.uid not in assigned, standing.work_s(run), run.uid),
    )
    return Round(at=last, assigned=assigned, news={}, leaving=frozenset(), order=tuple(run.uid for run in order))


def _has_news(snapshot: Snapshot, waiting: Sequence[Workload], holders: Sequence[Workload], last: float) -> bool:
    """Return whether runs have arrived, succeeded, lost their places or reported their pace since the last round."""
    if snapshot.completed and snapshot.completed[-1].at > last:
        return True
    return any(run.status.since > last or run.created_at > last for run in waiting) or any(
        pace.since > last and pace.rate is not None for run in holders for pace in run.status.measured.paces[-1:]
    )


def _make(
    snapshot: Snapshot,
    candidates: Candidates,
    holders: Sequence[Workload],
    pods: Mapping[str, Sequence[Pod]],
    standing: Standing,
    fixed: Set[str],
    slowdowns: Slowdowns,
) -> Round:
    """Choose a new round."""
    now, homes = standing.now, homes_of(tuple(snapshot.nodes))
    ordered = densest_first(candidates.everybody)
    num_gpus = num_gpus_of_one_cell(ordered, homes, held_of(candidates, homes))
    groups = choose([candidate.job for candidate in ordered], num_gpus or 0, Grouping(slowdowns.speeds))
    by_uid = {candidate.job.uid: candidate for candidate in ordered}
    scavengers = [run for run in holders if is_scavenger(run.spec) and run.uid not in fixed and _may_leave(run, pods)]
    movable = {*(candidate.job.uid for candidate in candidates.held), *(candidate.uid for candidate in scavengers)}
    where = {uid: _seats_of(pods[uid]) for uid in movable}
    room = _Room(snapshot.nodes, candidates.immovable_pods, where)
    members = [[by_uid[job.uid] for job in group.jobs] for group in groups]
    _keep_together(members, where)
    members.sort(key=lambda group: (-group[0].gpu_milli, -group[0].shape.num_gpus, -_most_together(group, where)))
    news: dict[str, Assignment] = {}
    staying: set[str] = set()
    after: dict[str, Seats] = {}
    for group in members:
        seats = room.place(group, where)
        if seats is None:
            continue
        for member in group:
            uid = member.job.uid
            after[uid] = seats
            if uid in where and _devices(where[uid]) == _devices(seats):
                staying.add(uid)
                continue
            own = tuple(
                Reservation(node=seat.node, grant=grant_of(member.shape, seat.grant.gpu_uuids)) for seat in seats
            )
            news[uid] = Assignment(at=now, seats=own, beside=tuple(o.job.uid for o in group if o is not member))
    # A run without a place stays where it is, if that is not assigned to another.
    rest = [
        *(candidate.job.uid for candidate in ordered if candidate.holds),
        *(candidate.uid for candidate in scavengers),
    ]
    for uid in rest:
        if uid in after:
            continue
        if room.keep(where[uid]):
            staying.add(uid)
            after[uid] = where[uid]
        else:
            news[uid] = Assignment(at=now)
    for uid in _not_worth_it(by_uid, where, after, news, slowdowns):
        del news[uid]
    leaving = {uid for uid in where if uid in news}
    if not news:
        held = (candidate for candidate in reversed(ordered) if candidate.holds and is_colocated(candidate.workload))
        news.update(
            {candidate.job.uid: Assignment(at=now) for candidate in (next(held, None),) if candidate is not None}
        )
    waits = [
        candidate
        for candidate in ordered
        if not candidate.holds and candidate.workload.status.phase is not Phase.STOPPING
    ]
    first = [candidate.job.uid for candidate in waits if candidate.job.uid in news]
    return Round(
        at=now,
        assigned={uid: assignment for uid, assignment in news.items() if assignment.seats},
        news=news,
        leaving=frozenset(leaving),
        order=(*first, *(candidate.job.uid for candidate in waits if candidate.job.uid not in news)),
    )


def _not_worth_it(
    by_uid: Mapping[str, Candidate],
    where: Mapping[str, Seats],
    after: Mapping[str, Seats],
    news: Mapping[str, Assignment],
    slowdowns: Slowdowns,
) -> set[str]:
    """Return the runs that stay as they are because the gain does not make up for the restarts.

    Runs that enter or leave the same devices are evaluated together, because they depend on each other.
    """
    ties = _Ties()
    for seats in (where, after):
        for uid, own in seats.items():
            for device in _devices(own):
                ties.tie(uid, device)
    parts: dict[object, list[str]] = defaultdict(list)
    for uid in {**where, **after}:
        parts[ties.root(uid)].append(uid)
    left: set[str] = set()
    for uids in parts.values():
        moved = [uid for uid in uids if uid in news and uid in where]
        if not moved:
            continue
        before_worth, after_worth = (
            _total_worth({uid: seats[uid] for uid in uids if uid in seats}, by_uid, slowdowns)
            for seats in (where, after)
        )
        cost = sum(worth(by_uid[uid].job) for uid in moved if uid in by_uid) * RESTART_S
        if (after_worth - before_worth) * STANDS_S <= cost:
            left.update(uid for uid in uids if uid in news)
    return left


def _total_worth(seats: Mapping[str, Seats], by_uid: Mapping[str, Candidate], slowdowns: Slowdowns) -> float:
    """Return the worth of a second of these runs, each at its speed beside the others on its devices."""
    on: dict[frozenset[Device], list[Candidate]] = defaultdict(list)
    for uid, own in seats.items():
        if uid in by_uid:
            on[_devices(own)].append(by_uid[uid])
    total = 0.0
    for together in on.values():
        together.sort(key=lambda candidate: pace_kind(candidate.workload.spec))
        speeds = slowdowns.speeds(tuple(pace_kind(candidate.workload.spec) for candidate in together))
        total += sum(worth(candidate.job) * speed for candidate, speed in zip(together, speeds, strict=True))
    return total


class _Ties:
    """Sets of connected runs and devices: a disjoint-set forest (Tarjan, J. ACM 1975)."""

    def __init__(self) -> None:
        self._above: dict[object, object] = {}

    def root(self, item: object) -> object:
        while (above := self._above.setdefault(item, item)) != item:
            self._above[item] = self._above[above]
            item = above
        return item

    def tie(self, one: object, other: object) -> None:
        self._above[self.root(one)] = self.root(other)


def _may_leave(workload: Workload, pods: Mapping[str, Sequence[Pod]]) -> bool:
    return (
        workload.intent is Intent.RUN
        and workload.status.phase in (Phase.STARTING, Phase.RUNNING)
        and all(pod.terminating_since is None for pod in pods[workload.uid] if not pod.phase.is_final)
    )


def _seats_of(pods: Iterable[Pod]) -> Seats:
    live = sorted((pod for pod in pods if not pod.phase.is_final), key=lambda pod: (pod.attempt, pod.index))
    return tuple(Reservation(node=pod.node, grant=pod.grant) for pod in live)


def _devices(seats: Iterable[Reservation]) -> frozenset[Device]:
    return frozenset((seat.node, uuid) for seat in seats for uuid in seat.grant.gpu_uuids)


def _keep_together(groups: list[list[Candidate]], where: Mapping[str, Seats]) -> None:
    """Swap equally sharing runs between groups, so that as many as possible stay where they are.

    Such runs slow others down alike, and the groups were made in order of worth, so little is lost.
    """
    counts: defaultdict[tuple[frozenset[Device], int], int] = defaultdict(int)
    for number, group in enumerate(groups):
        for member in group:
            if member.job.uid in where:
                counts[_devices(where[member.job.uid]), number] += 1
    home: dict[frozenset[Device], int] = {}
    for (devices, number), _ in sorted(counts.items(), key=lambda item: (-item[1], item[0][1], sorted(item[0][0]))):
        if devices not in home and number not in home.values():
            home[devices] = number
    at = {
        candidate.job.uid: (number, place)
        for number, group in enumerate(groups)
        for place, candidate in enumerate(group)
    }
    for uid, (number, place) in list(at.items()):
        own = home.get(_devices(where[uid])) if uid in where else None
        number, place = at[uid]
        member = groups[number][place]
        if own is None or own == number or member.job.sharable is None:
            continue
        for other_place, other in enumerate(groups[own]):
            stays = other.job.uid in where and home.get(_devices(where[other.job.uid])) == own
            if other.job.sharable == member.job.sharable and not stays:
                groups[own][other_place], groups[number][place] = member, other
                at[uid], at[other.job.uid] = (own, other_place), (number, place)
                break


def _most_together(group: Sequence[Candidate], where: Mapping[str, Seats]) -> int:
    """Return how many of a group are on the same devices already."""
    at: dict[frozenset[Device], int] = defaultdict(int)
    for member in group:
        if member.job.uid in where:
            at[_devices(where[member.job.uid])] += 1
    return max(at.values(), default=0)


class _Room:
    """The capacity for a round: everything except what fixed runs hold."""

    def __init__(self, nodes: Sequence[Node], pods: Iterable[Pod], where: Mapping[str, Seats]) -> None:
        self._nodes = {node.name: node for node in nodes if takes_pods(node)}
        self._cpu = {name: node.cpu_milli for name, node in self._nodes.items()}
        self._memory = {name: node.memory_bytes for name, node in self._nodes.items()}
        self._free = {name: {gpu.uuid for gpu in node.gpus} for name, node in self._nodes.items()}
        self._such: dict[tuple[str, Shape], tuple[str, ...]] = {}
        for pod in pods:
            if pod.node in self._nodes:
                self._take(pod.node, pod.grant)
        # The number of runs on each device now: where few are, few have to leave.
        self._num_runs: dict[Device, int] = defaultdict(int)
        for seats in where.values():
            for device in _devices(seats):
                self._num_runs[device] += 1

    def place(self, group: Sequence[Candidate], where: Mapping[str, Seats]) -> Seats | None:
        """Allocate devices for a group, preferring those on which most of it runs; return None if no room is left."""
        shape, num = group[0].shape, len(group)
        at: dict[frozenset[Device], list[str]] = defaultdict(list)
        for member in group:
            if member.job.uid in where:
                at[_devices(where[member.job.uid])].append(member.job.uid)
        for _, uids in sorted(at.items(), key=lambda item: (-len(item[1]), item[1])):
            seats = where[uids[0]]
            if len(seats) == group[0].workload.spec.nodes and self._takes(seats, shape, num):
                return seats
            if num == 1 and self.keep(seats):
                return seats
        return self._find(shape, group[0].workload.spec.nodes, num)

    def keep(self, seats: Seats) -> bool:
        """Allocate a run's present place; return False if it is taken."""
        if not self._fits([(seat.node, seat.grant, 1) for seat in seats]):
            return False
        for seat in seats:
            self._take(seat.node, seat.grant)
        return True

    def _takes(self, seats: Seats, shape: Shape, num: int) -> bool:
        parts = [(seat.node, grant_of(shape, seat.grant.gpu_uuids), num) for seat in seats]
        if not self._fits(parts):
            return False
        for node, grant, times in parts:
            self._take(node, grant, times)
        return True

    def _find(self, shape: Shape, count: int, num: int) -> Seats | None:
        seats: list[Reservation] = []
        while len(seats) < count:
            taken = {seat.node for seat in seats} if shape.apart else set()
            best = min(
                (
                    (len(free), disturbed, name, devices)
                    for name in self._nodes
                    if name not in taken and name not in shape.barred
                    for free in (self._free[name],)
                    for devices in (self._choose(name, shape),)
                    if devices is not None and self._fits([(name, grant_of(shape, devices), num)])
                    for disturbed in (sum(self._num_runs[name, uuid] for uuid in devices),)
                ),
                default=None,
            )
            if best is None:
                for seat in seats:
                    self._take(seat.node, seat.grant, -num)
                return None
            _, _, name, devices = best
            grant = grant_of(shape, devices)
            self._take(name, grant, num)
            seats.append(Reservation(node=name, grant=grant))
        return tuple(seats)

    def _choose(self, name: str, shape: Shape) -> tuple[str, ...] | None:
        key = (name, replace(shape, barred=frozenset()))
        if key not in self._such:
            self._such[key] = tuple(gpu.uuid for gpu in matching(self._nodes[name], shape))
        free = [uuid for uuid in self._such[key] if uuid in self._free[name]]
        if len(free) < shape.num_gpus:
            return None
        free.sort(key=lambda uuid: self._num_runs[name, uuid])
        return tuple(free[: shape.num_gpus])

    def _fits(self, parts: Sequence[tuple[str, Grant, int]]) -> bool:
        cpu: dict[str, int] = defaultdict(int)
        memory: dict[str, int] = defaultdict(int)
        for node, grant, times in parts:
            cpu[node] += grant.cpu_milli * times
            memory[node] += grant.memory_bytes * times
            if node not in self._nodes or not self._free[node].issuperset(grant.gpu_uuids):
                return False
        return all(cpu[node] <= max(0, self._cpu[node]) and memory[node] <= max(0, self._memory[node]) for node in cpu)

    def _take(self, node: str, grant: Grant, times: int = 1) -> None:
        self._cpu[node] -= grant.cpu_milli * times
        self._memory[node] -= grant.memory_bytes * times
        if times > 0:
            self._free[node].difference_update(grant.gpu_uuids)
        else:
            self._free[node].update(grant.gpu_uuids)


@dataclass(slots=True)
class Openings:
    """The places of a round that are not taken yet, reserved during one pass.

    Attributes:
        seats: By uid of the waiting runs.
    """

    seats: dict[str, Seats] = field(default_factory=dict)
    _beside: dict[str, frozenset[str]] = field(default_factory=dict)
    _on: dict[Device, list[Pod]] = field(default_factory=dict)
    _free: FreeCapacity | None = None
    _grants: dict[str, list[tuple[str, Grant]]] = field(default_factory=dict)

    def __init__(
        self,
        chosen: Round | None = None,
        waiting: Mapping[str, Workload] | None = None,
        pods: Iterable[Pod] = (),
        free: FreeCapacity | None = None,
    ) -> None:
        self.seats, self._beside, self._on, self._free, self._grants = {}, {}, {}, free, {}
        if chosen is None or waiting is None or free is None:
            return
        wanted: set[Device] = set()
        for uid, assigned in chosen.assigned.items():
            self._beside[uid] = frozenset((uid, *assigned.beside))
            wanted |= _devices(assigned.seats)
            if uid in waiting:
                self.seats[uid] = assigned.seats
        for pod in pods if wanted else ():
            if not pod.phase.is_final:
                for uuid in pod.grant.gpu_uuids:
                    if (pod.node, uuid) in wanted:
                        self._on.setdefault((pod.node, uuid), []).append(pod)
        idle = wanted - self._on.keys()
        for uid, assigned in chosen.assigned.items():
            parts = []
            for seat in assigned.seats:
                own = tuple(uuid for uuid in seat.grant.gpu_uuids if (seat.node, uuid) in idle)
                idle.difference_update((seat.node, uuid) for uuid in own)
                if own:
                    parts.append(
                        (seat.node, Grant(gpu_uuids=own, gpu_milli=seat.grant.gpu_milli, cpu_milli=0, memory_bytes=0))
                    )
            for node, grant in parts:
                free.hold(node, grant)
            self._grants[uid] = parts

    def nodes_of(self, uid: str) -> list[str]:
        """Return the nodes of a run's place."""
        return [seat.node for seat in self.seats[uid]]

    def take(self, uid: str) -> tuple[Placement, ...] | None:
        """Start a run in its place; return None while others are there, or if cores or memory are short."""
        seats, free = self.seats[uid], self._free
        assert free is not None
        for device in _devices(seats):
            for pod in self._on.get(device, ()):
                if pod.workload_uid not in self._beside[uid] or pod.terminating_since is not None:
                    return None
        held: list[tuple[str, Grant]] = []
        for seat in seats:
            if not free.has(seat.node, replace(seat.grant, gpu_uuids=())):
                for node, grant in held:
                    free.hold(node, grant, -1)
                return None
            free.hold(seat.node, seat.grant)
            held.append((seat.node, seat.grant))
        for node, grant in self._grants.pop(uid, ()):
            free.hold(node, grant, -1)
        del self.seats[uid]
        return tuple(Placement(index=index, node=seat.node, grant=seat.grant) for index, seat in enumerate(seats))
