"""Simulates failures and repairs of nodes, and reclaims of spot nodes.

Each node has a separate random stream for each purpose, so that a change in one place alters nothing elsewhere.
Intervals are drawn when a node arrives or is repaired, never ahead.
"""

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import (
    AddNode,
    GiveBackNode,
    KillRunsOnNode,
    LoseNode,
    RemoveNode,
    ReturnNode,
    WarnNode,
)
from fairlead.cluster.simulated.groups import NodeGroup
from fairlead.frozen import dataclass
from fairlead.specs.simulation import TAKEN_OUT_S, Lemons
from fairlead.state.snapshot import Node

RECLAIMED = "spot reclaim"


class _Turn(StrEnum):
    BREAKS = "breaks"
    REPAIRED = "repaired"
    DEGRADES = "degrades"
    TESTED = "tested"
    CLAIMED = "claimed"
    GONE = "gone"
    BACK = "back"


YEAR_S = 365.25 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOut:
    """A node that was taken out. Times are Unix seconds.

    Attributes:
        until: When it was given back; None while it is out.
        is_lemon: Whether it was one of those that fail more often.
    """

    node: str
    since: float
    until: float | None = None
    is_lemon: bool


class Weather:
    """The failures and reclaims of all nodes.

    Attributes:
        lemons: Nodes that fail more often than others now.
        taken_out: Nodes that were taken out, in that order.
    """

    def __init__(self, groups: Sequence[NodeGroup], seed: int) -> None:
        self._seed = seed
        self._groups = {node.name: (group, node) for group in groups for node in group.nodes()}
        self._queue: list[tuple[float, int, _Turn, str, int]] = []
        self._num_pushed = 0
        self._lives: dict[str, int] = {}
        self._streams: dict[tuple[str, str], random.Random] = {}
        self.lemons = set[str]()
        self._breaks_at: dict[str, float] = {}
        self._out: dict[str, int] = {}
        self.taken_out: list[TakenOut] = []

    @property
    def next_at(self) -> float:
        """Return the time of the next event of a node."""
        return self._queue[0][0] if self._queue else math.inf

    @property
    def brings_back(self) -> bool:
        """Return whether a removed or failed node will come back."""
        return any(
            turn in (_Turn.REPAIRED, _Turn.BACK, _Turn.TESTED) and self._lives.get(node) == life
            for _, _, turn, node, life in self._queue
        )

    def comes(self, node: Node, at: float) -> None:
        """Schedule the events of a healthy node that has arrived."""
        group, _ = self._groups[node.name]
        self._lives[node.name] = self._lives.get(node.name, 0) + 1
        self._arrive(node.name, group, at, None if group.failures is None else group.failures.lemons)
        if group.reclaims is not None:
            self._push(at + self._draw("reclaims", node.name, group.reclaims.every_s), _Turn.CLAIMED, node.name)

    def leaves(self, node: str) -> None:
        """Cancel the events of a node that was removed for other reasons."""
        self._lives[node] += 1

    def step(self, cluster: SimulatedCluster, now: float) -> bool:
        """Apply due events; return whether there were any."""
        for name in cluster.taken_out:
            if name not in self._out:
                self._take_out(name, now)
        happened = False
        while self._queue and self._queue[0][0] <= now:
            _, _, turn, name, life = heapq.heappop(self._queue)
            if self._lives.get(name) == life:
                self._take(cluster, turn, name, now)
                happened = True
        return happened

    def _take(self, cluster: SimulatedCluster, turn: _Turn, name: str, now: float) -> None:
        group, node = self._groups[name]
        if turn is _Turn.BREAKS and group.failures is not None:
            if self._breaks_at[name] != now:
                return  # it has begun to fail more often since
            if group.failures.known < 1 and self._stream("known", name).random() >= group.failures.known:
                cluster.inject(KillRunsOnNode(node=name))
                self._expect_failure(name, group, now)
                return
            cluster.inject(LoseNode(node=name))
            self._push(now + group.failures.repair_s, _Turn.REPAIRED, name)
        elif turn is _Turn.DEGRADES:
            self.lemons.add(name)
            self._expect_failure(name, group, now)
        elif turn is _Turn.TESTED:
            self._give_back(cluster, name, group, now)
        elif turn is _Turn.REPAIRED:
            cluster.inject(ReturnNode(node=name))
            self._expect_failure(name, group, now)
        elif turn is _Turn.CLAIMED and group.reclaims is not None:
            cluster.inject(WarnNode(node=name, why=RECLAIMED, within_s=group.reclaims.notice_s))
            self._push(now + group.reclaims.notice_s, _Turn.GONE, name)
        elif turn is _Turn.GONE and group.reclaims is not None:
            cluster.inject(RemoveNode(node=name))
            self.leaves(name)
            if group.provisioning is None:
                self._push(now + group.reclaims.away_s, _Turn.BACK, name)
        elif turn is _Turn.BACK:
            cluster.inject(AddNode(node=node))
            self.comes(node, now)

    def _expect_failure(self, name: str, group: NodeGroup, at: float) -> None:
        failures = group.failures
        if failures is not None:
            is_lemon = failures.lemons is not None and name in self.lemons
            mtbf_s = failures.lemons.mtbf_s if failures.lemons is not None and is_lemon else failures.mtbf_s
            self._breaks_at[name] = at + self._draw("failures", name, mtbf_s)
            self._push(self._breaks_at[name], _Turn.BREAKS, name)

    def _arrive(self, name: str, group: NodeGroup, at: float, lemons: Lemons | None) -> None:
        """Draw whether a new node is a lemon, and when it becomes one otherwise."""
        self.lemons.discard(name)
        if lemons is not None and self._stream("lemons", name).random() < lemons.share:
            self.lemons.add(name)
        self._serve(name, group, at)

    def _serve(self, name: str, group: NodeGroup, at: float) -> None:
        """Schedule what happens to a node that begins to serve."""
        self._expect_failure(name, group, at)
        lemons = None if group.failures is None else group.failures.lemons
        if lemons is not None and lemons.yearly and name not in self.lemons:
            self._push(at + self._draw("degrades", name, YEAR_S / lemons.yearly), _Turn.DEGRADES, name)

    def _take_out(self, name: str, now: float) -> None:
        group, _ = self._groups[name]
        self.leaves(name)
        self._out[name] = len(self.taken_out)
        self.taken_out.append(TakenOut(node=name, since=now, is_lemon=name in self.lemons))
        away_s = TAKEN_OUT_S if group.failures is None else group.failures.taken_out_s
        self._push(now + away_s, _Turn.TESTED, name)

    def _give_back(self, cluster: SimulatedCluster, name: str, group: NodeGroup, now: float) -> None:
        cluster.inject(GiveBackNode(node=name))
        place = self._out.pop(name)
        self.taken_out[place] = replace(self.taken_out[place], until=now)
        lemons = None if group.failures is None else group.failures.lemons
        if lemons is not None and self._stream("cured", name).random() < lemons.cured:
            self.lemons.discard(name)
        self._serve(name, group, now)

    def _push(self, at: float, turn: _Turn, node: str) -> None:
        self._num_pushed += 1
        heapq.heappush(self._queue, (at, self._num_pushed, turn, node, self._lives[node]))

    def _draw(self, purpose: str, node: str, mean_s: float) -> float:
        return self._stream(purpose, node).expovariate(1 / mean_s)

    def _stream(self, purpose: str, node: str) -> random.Random:
        key = purpose, node
        if key not in self._streams:
            self._streams[key] = random.Random(f"{self._seed}/{purpose}/{node}")
        return self._streams[key]
