"""Simulates failures and repairs of nodes, and reclaims of spot nodes.

Each node has a separate random stream for each purpose, so that a change in one place alters nothing elsewhere.
Intervals are drawn when a node arrives or is repaired, never ahead.
"""

import heapq
import math
import random
from collections.abc import Sequence
from enum import StrEnum

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import AddNode, LoseNode, RemoveNode, ReturnNode, WarnNode
from fairlead.cluster.simulated.groups import Group
from fairlead.state.snapshot import Node

RECLAIMED = "spot reclaim"


class _Turn(StrEnum):
    BREAKS = "breaks"
    REPAIRED = "repaired"
    CLAIMED = "claimed"
    GONE = "gone"
    BACK = "back"


class Weather:
    """The failures and reclaims of all nodes."""

    def __init__(self, groups: Sequence[Group], seed: int) -> None:
        self._seed = seed
        self._groups = {node.name: (group, node) for group in groups for node in group.nodes()}
        self._queue: list[tuple[float, int, _Turn, str, int]] = []
        self._num_pushed = 0
        self._lives: dict[str, int] = {}
        self._streams: dict[tuple[str, str], random.Random] = {}

    @property
    def next_at(self) -> float:
        """Return the time of the next event of a node."""
        return self._queue[0][0] if self._queue else math.inf

    @property
    def brings_back(self) -> bool:
        """Return whether a removed or failed node will come back."""
        return any(
            turn in (_Turn.REPAIRED, _Turn.BACK) and self._lives.get(node) == life
            for _, _, turn, node, life in self._queue
        )

    def comes(self, node: Node, at: float) -> None:
        """Schedule the events of a healthy node that has arrived."""
        group, _ = self._groups[node.name]
        self._lives[node.name] = self._lives.get(node.name, 0) + 1
        self._expect_failure(node.name, group, at)
        if group.reclaims is not None:
            self._push(at + self._draw("reclaims", node.name, group.reclaims.every_s), _Turn.CLAIMED, node.name)

    def leaves(self, node: str) -> None:
        """Cancel the events of a node that was removed for other reasons."""
        self._lives[node] += 1

    def step(self, cluster: SimulatedCluster, now: float) -> bool:
        """Apply due events; return whether there were any."""
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
            cluster.inject(LoseNode(node=name))
            self._push(now + group.failures.repair_s, _Turn.REPAIRED, name)
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

    def _expect_failure(self, name: str, group: Group, at: float) -> None:
        if group.failures is not None:
            self._push(at + self._draw("failures", name, group.failures.mtbf_s), _Turn.BREAKS, name)

    def _push(self, at: float, turn: _Turn, node: str) -> None:
        self._num_pushed += 1
        heapq.heappush(self._queue, (at, self._num_pushed, turn, node, self._lives[node]))

    def _draw(self, purpose: str, node: str, mean_s: float) -> float:
        key = purpose, node
        if key not in self._streams:
            self._streams[key] = random.Random(f"{self._seed}/{purpose}/{node}")
        return self._streams[key].expovariate(1 / mean_s)
