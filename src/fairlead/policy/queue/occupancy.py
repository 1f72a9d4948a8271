"""Keeps between passes what runs hold of nodes and until when; timelines start from it.

A pass modifies a timeline as it starts and stops runs. It starts from what live pods hold, which is updated by changes
only. An end is recomputed when its run or pods are other objects, when other runs of its kind have ended, and when the
time comes at which it may change (``Durations.same_until``).
"""

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fairlead.frozen import dataclass
from fairlead.policy.placement.node_eligibility import doors_of
from fairlead.policy.placement.placement import NodeCapacity
from fairlead.policy.queue.durations import Durations, kind_of
from fairlead.state.snapshot import Grant, Node, Pod, Workload

Told = TypeVar("Told")
Part = tuple[str, Grant]
# An end is recomputed this long before it may change, because the sum of two times is not exact.
EARLY_S = 1.0
# More than the number of shapes in a queue at a time.
MOST_TOLD = 256
# Outdated entries of the heap are removed once there are more entries than this and most of them are outdated.
LEAST_TIMES = 64
# Sorts after every uid.
_LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Holding:
    """Parts of nodes that a run holds, and until when."""

    parts: tuple[Part, ...]
    until: float


class Occupancy:
    """The holdings of live pods on a set of nodes.

    Attributes:
        rooms: The free capacity of each node besides the holdings.
        holdings: The holding of each workload that has one.
    """

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.doors = doors_of(nodes)
        self.rooms = {node.name: NodeCapacity.of(node) for node in nodes}
        self.holdings: dict[str, Holding] = {}
        self._ends: list[tuple[float, str]] = []
        self._stale: set[str] = set()
        self._same_until: list[tuple[float, str]] = []
        self._until: dict[str, float] = {}
        self._durations: Durations | None = None
        self._of_kind: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._kind: dict[str, tuple[str, str]] = {}
        self._facts: dict[Hashable, tuple[dict[str, Any], set[str]]] = {}

    def changed(self, uids: Iterable[str]) -> None:
        """Mark the runs of these uids, or their pods, as changed."""
        self._stale.update(uids)

    def refresh(
        self,
        holders: Mapping[str, object],
        runs: Mapping[str, Workload],
        pods: Mapping[str, Sequence[Pod]],
        durations: Durations,
        now: float,
    ) -> None:
        """Update all holdings and ends.

        Args:
            holders: Runs whose end may be known, by uid.
            runs, pods: All of them, by uid of the run.
        """
        stale = self._stale
        while self._same_until and self._same_until[0][0] - EARLY_S <= now:
            at, uid = heapq.heappop(self._same_until)
            if self._until.get(uid) == at:
                del self._until[uid]
                stale.add(uid)
        if self._durations is not durations:
            before, self._durations = self._durations, durations
            for kind, uids in self._of_kind.items():
                if before is None or before.took(kind) is not durations.took(kind):
                    for uid in uids - stale:
                        self._end(uid, runs[uid], pods.get(uid, ()), durations, now)
        for uid in stale:
            self._hold(uid, [pod for pod in pods.get(uid, ()) if not pod.phase.is_final and pod.node in self.rooms])
            self._note_kind(uid, runs[uid] if uid in holders else None)
            self._end(uid, runs[uid] if uid in holders else None, pods.get(uid, ()), durations, now)
        stale.clear()

    def ends_after(self, now: float) -> Iterator[tuple[float, str]]:
        """Yield the ends of holdings with their uids, in ascending order."""
        for at in range(bisect_right(self._ends, (now, _LAST)), len(self._ends)):
            yield self._ends[at]

    def of_rooms(self, what: Hashable, describe: Callable[[NodeCapacity], Told]) -> Mapping[str, Told]:
        """Return the same as ``Timeline.of_rooms``, recomputed only for rooms that have changed."""
        facts = self._facts.get(what)
        if facts is None:
            if len(self._facts) >= MOST_TOLD:
                self._facts.clear()
            facts = self._facts[what] = ({name: describe(room) for name, room in self.rooms.items()}, set())
        known, stale = facts
        for name in stale:
            known[name] = describe(self.rooms[name])
        stale.clear()
        return known

    def _hold(self, uid: str, pods: Sequence[Pod]) -> None:
        parts = tuple((pod.node, pod.grant) for pod in pods)
        before = self.holdings.get(uid)
        if before is not None and before.parts == parts:
            return
        for node, grant in () if before is None else before.parts:
            self._take(node, grant, -1)
        for node, grant in parts:
            self._take(node, grant, 1)
        if before is not None:
            self._forget_end(uid, before.until)
            del self.holdings[uid]
        if parts:
            self.holdings[uid] = Holding(parts, math.inf)

    def _take(self, node: str, grant: Grant, times: int) -> None:
        self.rooms[node].take(grant, times)
        for _, stale in self._facts.values():
            stale.add(node)

    def _note_kind(self, uid: str, run: Workload | None) -> None:
        """Record the kind of a run that holds something, or that it holds nothing any more."""
        kind = None if run is None or uid not in self.holdings else kind_of(run.spec)
        before = self._kind.get(uid)
        if kind == before:
            return
        if before is not None:
            self._of_kind[before].discard(uid)
            del self._kind[uid]
        if kind is not None:
            self._kind[uid] = kind
            self._of_kind[kind].add(uid)

    def _end(self, uid: str, run: Workload | None, pods: Sequence[Pod], durations: Durations, now: float) -> None:
        held = self.holdings.get(uid)
        if held is None or run is None:
            self._until.pop(uid, None)
        if held is None:
            return
        until = math.inf
        if run is not None:
            until = durations.ends_at(run, pods, now)
            self._look_again_at(uid, durations.same_until(run, pods, now))
        if until != held.until:
            self._forget_end(uid, held.until)
            self.holdings[uid] = Holding(held.parts, until)
            if until < math.inf:
                insort(self._ends, (until, uid))

    def _look_again_at(self, uid: str, at: float) -> None:
        """Have the end of a run recomputed at a time; an end that is known already costs no entry of the heap."""
        if at == math.inf:
            self._until.pop(uid, None)
        elif self._until.get(uid) != at:
            self._until[uid] = at
            heapq.heappush(self._same_until, (at, uid))
            if len(self._same_until) > max(LEAST_TIMES, 2 * len(self._until)):
                self._same_until = [(at, entry) for entry, at in self._until.items()]
                heapq.heapify(self._same_until)

    def _forget_end(self, uid: str, until: float) -> None:
        if until < math.inf:
            del self._ends[bisect_left(self._ends, (until, uid))]
