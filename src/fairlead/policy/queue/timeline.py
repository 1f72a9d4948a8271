"""Tracks the free capacity of each node over time, the profile in which pending runs are promised a start.

Each holding has an expected end; a promise (a claim) takes capacity from its start on. The earliest start at which the
whole gang fits, beside all claims, is found by walking through the ends in order: as in conservative backfilling
(Mu'alem and Feitelson, TPDS 2001), with nodes instead of a number of processors. For N nodes and E earlier ends: N + E
counts of how many pods fit on a node, each linear in its devices.

Pods of a gang are alike, so counting how many fit on each node is exact; which devices they get is left to placement.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TypeVar

from fairlead.frozen import dataclass
from fairlead.policy.placement.node_eligibility import Eligibility, doors_of
from fairlead.policy.placement.placement import NodeCapacity, takes_pods
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.queue.occupancy import Holding, Occupancy, Part
from fairlead.state.snapshot import Grant, Node, Pod

Told = TypeVar("Told")
# What a run gives back is a holding of its own, whose uid ends like this; no other uid does.
IN_PART = " in part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A promise of capacity from ``start`` on; infinity if unknown.

    Attributes:
        parts: What it will hold, by node; empty if its start is unknown.
        keeps: What of the currently free capacity has to stay free for it, from now on.
        after: Uid of the run whose end it waits for; None if it waits for none.
        team: The team to which it is promised.
    """

    start: float
    end: float
    parts: tuple[Part, ...] = ()
    keeps: tuple[Part, ...] = ()
    after: str | None = None
    team: str = ""


@dataclass(slots=True)
class Timeline:
    """Capacity now and in future, updated as the pass starts runs or makes claims.

    Attributes:
        kept: The source of rooms and ends, if that is kept between passes; it is not modified.
    """

    now: float
    rooms: dict[str, NodeCapacity]
    doors: Eligibility
    holdings: dict[str, Holding] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    kept: Occupancy | None = None
    _claimed: dict[str, list[tuple[Claim, Grant]]] = field(default_factory=lambda: defaultdict(list))
    # Holdings that differ from ``kept``, copied rooms, and those of them in which something else is held.
    _changed: set[str] = field(default_factory=set)
    _own: set[str] = field(default_factory=set)
    _differs: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, nodes: Iterable[Node], pods: Iterable[Pod], until: dict[str, float], now: float) -> "Timeline":
        """Return the holdings of live pods, each run's until its given time, and others forever."""
        nodes = tuple(nodes)
        timeline = cls(now, {node.name: NodeCapacity.of(node) for node in nodes}, doors_of(nodes))
        parts = defaultdict[str, list[Part]](list)
        for pod in pods:
            if not pod.phase.is_final and pod.node in timeline.rooms:
                parts[pod.workload_uid].append((pod.node, pod.grant))
        for uid, held in parts.items():
            timeline.hold(uid, held, until.get(uid, math.inf))
        return timeline

    @classmethod
    def since(cls, occupancy: Occupancy, now: float) -> "Timeline":
        """Return the same as ``of``, from what is kept of the same nodes and pods, which must not change meanwhile."""
        return cls(now, dict(occupancy.rooms), occupancy.doors, dict(occupancy.holdings), kept=occupancy)

    def hold(self, uid: str, parts: Iterable[Part], until: float) -> None:
        """Let a run hold these parts from now until then."""
        held = tuple(parts)
        for node, grant in held:
            self._room(node).take(grant)
            self._differs.add(node)
        self._is(uid, Holding(held, until))

    def end_by(self, uid: str, until: float) -> None:
        """Let a run end earlier than expected."""
        holding = self.holdings[uid]
        self._is(uid, Holding(holding.parts, min(holding.until, until)))

    def end_parts(self, uid: str, parts: Sequence[Part], until: float) -> None:
        """Let a run give back some of its parts earlier than expected."""
        holding, left = self.holdings[uid], list(parts)
        self._is(uid, Holding(tuple(part for part in holding.parts if not _taken(part, left)), holding.until))
        self._is(uid + IN_PART, Holding(tuple(parts), min(holding.until, until)))

    def claim(self, claim: Claim) -> None:
        """Reserve the parts of a claim."""
        self.claims.append(claim)
        for node, grant in claim.parts:
            self._claimed[node].append((claim, grant))

    def earliest(self, shape: Shape, count: int, length_s: float) -> Claim:
        """Return the first start at which so many pods fit for so long beside all claims."""
        released: list[Holding] = []
        try:
            return self._walk(shape, count, length_s, released)
        finally:
            for holding in released:
                for node, grant in holding.parts:
                    self.rooms[node].take(grant)

    def freest(self, shape: Shape, most: int) -> list[NodeCapacity]:
        """Return the nodes with the most free capacity for such pods: those with such devices first, then open ones."""

        def rank(room: NodeCapacity) -> tuple[bool, bool, int, int, str]:
            such = room.such(shape)
            free = sum(max(0, room.gpu_milli[gpu.uuid]) for gpu in such)
            return len(such) < shape.num_gpus, not takes_pods(room.node), -free, -room.cpu_milli, room.node.name

        return [self.rooms[name] for *_, name in heapq.nsmallest(most, self.of_rooms(("free", shape), rank).values())]

    def of_rooms(self, what: Hashable, describe: Callable[[NodeCapacity], Told]) -> dict[str, Told]:
        """Return a value for each room as it is now, by node.

        Args:
            what: A key of the function, which has to return the same for the same room.
        """
        if self.kept is None:
            return {name: describe(room) for name, room in self.rooms.items()}
        facts = dict(self.kept.of_rooms(what, describe))
        for name in self._differs:
            facts[name] = describe(self.rooms[name])
        return facts

    @contextmanager
    def at(self, moment: float) -> Iterator[Mapping[str, NodeCapacity]]:
        """Provide the rooms as expected at a time, beside all claims from then on; not to be modified."""
        ended = [grant for holding in self.holdings.values() if holding.until <= moment for grant in holding.parts]
        claimed = [part for claim in self.claims if claim.end > moment for part in claim.parts]
        changes = [(part, -1) for part in ended] + [(part, 1) for part in claimed]
        for node in self.rooms:
            self._room(node)
        for (node, grant), times in changes:
            self.rooms[node].take(grant, times)
        yield self.rooms
        for (node, grant), times in changes:
            self.rooms[node].take(grant, -times)

    def _is(self, uid: str, holding: Holding) -> None:
        """Set the holding of a uid, overriding the kept one."""
        self.holdings[uid] = holding
        self._changed.add(uid)

    def _room(self, node: str) -> NodeCapacity:
        """Return the room of a node for modification."""
        if self.kept is not None and node not in self._own:
            self._own.add(node)
            self.rooms[node] = self.rooms[node].copy()
        return self.rooms[node]

    def _ends(self) -> Iterator[tuple[float, str]]:
        """Yield the known ends of holdings from now on, in ascending order."""
        own = sorted(
            (until, uid) for uid in self._changed if self.now < (until := self.holdings[uid].until) < math.inf
        )  # fmt: skip
        if self.kept is None:
            return iter(own)
        ends = (end for end in self.kept.ends_after(self.now) if end[1] not in self._changed)
        return heapq.merge(ends, own)

    def _walk(self, shape: Shape, count: int, length_s: float, released: list[Holding]) -> Claim:
        fits = self.of_rooms(("fits", shape, count), lambda room: members(room, shape, count))
        total = sum(fits.values())
        ends, over = self._ends(), sorted({claim.end for claim in self.claims if self.now < claim.end < math.inf})
        end, latest, at = next(ends, None), None, self.now
        while True:
            touched = set(self._claimed)
            while end is not None and end[0] <= at:
                released.append(self.holdings[end[1]])
                latest = end[1].removesuffix(IN_PART)
                for node, grant in released[-1].parts:
                    self._room(node).take(grant, -1)
                    touched.add(node)
                end = next(ends, None)
            for node in touched:
                now_fit = self._members(self._room(node), shape, count, at, length_s)
                total += now_fit - fits[node]
                fits[node] = now_fit
            if total >= count:
                return self._claim(shape, count, at, length_s, fits, released, latest)
            while over and over[0] <= at:
                over.pop(0)
            if end is None and not over:
                return Claim(start=math.inf, end=math.inf, keeps=tuple(self._any_time(shape, count)))
            at = min(([] if end is None else [end[0]]) + over[:1])

    def _members(self, room: NodeCapacity, shape: Shape, most: int, at: float, length_s: float) -> int:
        """Return how many pods fit there from then on, beside the overlapping claims."""
        overlapping = self._overlapping(room.node.name, at, length_s)
        for grant in overlapping:
            room.take(grant)
        number = members(room, shape, most)
        for grant in overlapping:
            room.take(grant, -1)
        return number

    def _overlapping(self, node: str, at: float, length_s: float) -> list[Grant]:
        """Return all claims on a node that overlap a stay; they need not overlap each other, so it may be too much."""
        if node not in self._claimed:
            return []
        return [grant for claim, grant in self._claimed[node] if claim.start < at + length_s and at < claim.end]

    def _claim(
        self,
        shape: Shape,
        count: int,
        at: float,
        length_s: float,
        fits: dict[str, int],
        released: Sequence[Holding],
        latest: str | None,
    ) -> Claim:
        back: dict[str, list[Grant]] = defaultdict(list)
        for holding in released:
            for node, grant in holding.parts:
                back[node].append(grant)
        parts: list[Part] = []
        keeps: list[Part] = []
        for name in sorted((name for name, number in fits.items() if number), key=lambda name: (-fits[name], name)):
            number = min(fits[name], count - len(parts))
            if not number:
                break
            room, overlapping = self._room(name), self._overlapping(name, at, length_s)
            for grant in overlapping:
                room.take(grant)
            before = NodeCapacity(room.node, room.cpu_milli, room.memory_bytes, dict(room.gpu_milli))
            for grant in back[name]:
                before.take(grant)
            for _ in range(number):
                grant = _grant(room, shape, before)
                room.take(grant)
                parts.append((name, grant))
            # What stays free at the start may be used by any run until then and beyond; the rest of what is free now is
            # kept.
            keeps += _lost_capacity(name, before, room)
            for grant in (*overlapping, *(grant for node, grant in parts if node == name)):
                room.take(grant, -1)
        return Claim(start=at, end=at + length_s, parts=tuple(parts), keeps=tuple(keeps), after=latest)

    def _any_time(self, shape: Shape, count: int) -> Iterator[Part]:
        """Yield the capacity that pods could use once any others have left."""
        for name, room in self.rooms.items():
            number = members(NodeCapacity.of(room.node), shape, count)
            if number:
                after = NodeCapacity(
                    room.node,
                    room.cpu_milli - number * shape.cpu_milli,
                    room.memory_bytes - number * shape.memory_bytes,
                    dict(room.gpu_milli),
                )
                for gpu in room.such(shape):
                    after.gpu_milli[gpu.uuid] = 0
                yield from _lost_capacity(name, room, after)


def _taken(part: Part, left: list[Part]) -> bool:
    """Return whether the part is among those left, and remove it; each counts once."""
    if part not in left:
        return False
    left.remove(part)
    return True


def members(room: NodeCapacity, shape: Shape, most: int) -> int:
    """Return how many pods of a shape fit into a room, at most ``most``."""
    if not takes_pods(room.node) or room.node.name in shape.barred:
        return 0
    number = min(most, 1) if shape.apart else most
    if shape.cpu_milli:
        number = min(number, max(0, room.cpu_milli) // shape.cpu_milli)
    if shape.memory_bytes:
        number = min(number, max(0, room.memory_bytes) // shape.memory_bytes)
    if shape.num_gpus and number:
        free = room.gpu_milli
        slots = sum(
            max(0, free[gpu.uuid]) // shape.gpu_milli if gpu.divisible else free[gpu.uuid] >= shape.gpu_milli
            for gpu in room.such(shape)
        )
        number = min(number, slots // shape.num_gpus)
    return number


def _grant(room: NodeCapacity, shape: Shape, before: NodeCapacity) -> Grant:
    """Choose the grant of one pod: devices that others hold before it starts rather than those free until then."""
    free = [gpu.uuid for gpu in room.such(shape) if room.gpu_milli[gpu.uuid] >= shape.gpu_milli]
    free.sort(key=lambda uuid: (before.gpu_milli[uuid], room.gpu_milli[uuid]))
    return Grant(
        cpu_milli=shape.cpu_milli,
        memory_bytes=shape.memory_bytes,
        gpu_uuids=tuple(free[: shape.num_gpus]),
        gpu_milli=shape.gpu_milli,
    )


def _lost_capacity(name: str, before: NodeCapacity, after: NodeCapacity) -> Iterator[Part]:
    """Yield what is free before and may not be held past the start, if no more than ``after`` is free after it."""
    cpu = max(0, before.cpu_milli - max(0, after.cpu_milli)) if before.cpu_milli > 0 else 0
    memory = max(0, before.memory_bytes - max(0, after.memory_bytes)) if before.memory_bytes > 0 else 0
    if cpu or memory:
        yield name, Grant(cpu_milli=cpu, memory_bytes=memory)
    for uuid, milli in before.gpu_milli.items():
        rest = max(0, milli - max(0, after.gpu_milli[uuid]))
        if rest:
            yield name, Grant(gpu_uuids=(uuid,), gpu_milli=rest)
