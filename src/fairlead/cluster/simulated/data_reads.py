"""Simulates runs that read data from one store through caches that their nodes share.

Between two moments rates are constant. A run's unread part of its epoch is cached to some share, which is its hits:
what it fetches itself it needs again in its next epoch only, what others fetch meanwhile it finds, and what is evicted
it loses, both in the share in which the cached part of the whole version changes, as each run reads in an order of its
own. Within a moment of at most ten minutes hits do not change. See ``fairlead.policy.data.caching`` for the rules.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field

from fairlead.policy.data.caching import CachedVersion, ReadDemand, StoreReader, store_rates, targets_gb

LONGEST_STEP_S = 600.0
"""Hits change continuously while others fetch, and are brought up to date at least so often."""
SHORTEST_STEP_S = 1e-3
_NOTHING_GB = 1e-9


@dataclass(slots=True)
class _Reader:
    """One run that reads.

    Attributes:
        left_gb: What it reads until it ends, its hits included.
        epoch_gb: What it reads until its epoch or itself ends.
        hit_share: Cached share of what is left of its epoch.
        store_gb_s: What it gets of the store.
        speed: Share of its full rate.
    """

    demand: ReadDemand
    left_gb: float
    epoch_gb: float
    hit_share: float
    store_gb_s: float = 0.0
    speed: float = 1.0

    @property
    def is_through(self) -> bool:
        """Return whether it has read all that it reads."""
        return self.left_gb <= _NOTHING_GB * self.demand.size_gb

    @property
    def wanted_gb_s(self) -> float:
        return 0.0 if self.is_through else self.demand.gb_s * max(0.0, 1.0 - self.hit_share)

    @property
    def read_gb_s(self) -> float:
        return 0.0 if self.is_through else self.demand.gb_s * self.speed


@dataclass(slots=True)
class DataReads:
    """All readers, caches and the store, up to a time.

    Attributes:
        limit_gb_s: What the store serves in a second, to all together.
        node_gb: Cache of each node.
        num_nodes: Nodes that are up, which hold an even part of everything.
        at: The time up to which all was read.
        store_gb: What has left the store.
        next_at: When rates may change next by themselves; infinity when never.
    """

    limit_gb_s: float
    node_gb: float
    num_nodes: int
    at: float
    store_gb: float = 0.0
    next_at: float = math.inf
    _readers: dict[str, _Reader] = field(default_factory=dict)
    _cached_gb: dict[str, float] = field(default_factory=dict)
    _size_gb: dict[str, float] = field(default_factory=dict)
    _targets_gb: dict[str, float] = field(default_factory=dict)

    def begin(self, uid: str, demand: ReadDemand, done_s: float, left_s: float, at: float) -> None:
        """Let a run read from a time on.

        Args:
            done_s: Its work so far at full speed, by which its epoch has begun.
            left_s: Its work until it ends; may be infinite.
        """
        self._advance(at)
        size_gb = self._size_gb.setdefault(demand.version, demand.size_gb)
        left_gb = left_s * demand.gb_s
        of_epoch_gb = size_gb - done_s * demand.gb_s % size_gb
        hit_share = self._cached_gb.get(demand.version, 0.0) / size_gb
        self._readers[uid] = _Reader(demand, left_gb, min(of_epoch_gb, left_gb), hit_share)
        self._settle()

    def end(self, uid: str, at: float) -> None:
        """Let a run read no more from a time on; nothing happens when it does not read."""
        if uid in self._readers:
            self._advance(at)
            del self._readers[uid]
            self._settle()

    def nodes_are(self, num_nodes: int, at: float) -> None:
        """Change the number of nodes that are up from a time on; what a lost one had is lost."""
        if num_nodes == self.num_nodes:
            return
        self._advance(at)
        if num_nodes < self.num_nodes:
            self._set_cached({key: gb * num_nodes / self.num_nodes for key, gb in self._cached_gb.items()})
        self.num_nodes = num_nodes
        self._settle()

    def proceed(self, at: float) -> None:
        """Bring rates up to date at a time."""
        self._advance(at)
        self._settle()

    def speeds(self) -> dict[str, float]:
        """Return the speed of each reader as a share of its full speed; above 0, at most 1."""
        return {uid: reader.speed for uid, reader in self._readers.items()}

    def _advance(self, at: float) -> None:
        seconds = at - self.at
        self.at = at
        if seconds <= 0.0:
            return
        fetched_gb: defaultdict[str, float] = defaultdict(float)
        for reader in self._readers.values():
            fetched_gb[reader.demand.version] += reader.store_gb_s * seconds
        self.store_gb += sum(fetched_gb.values())
        after_gb = dict(self._cached_gb)
        for version, gb in fetched_gb.items():
            before_gb = self._cached_gb.get(version, 0.0)
            after_gb[version] = max(before_gb, min(self._targets_gb.get(version, 0.0), before_gb + gb))
        over_gb = sum(after_gb.values()) - self.node_gb * self.num_nodes
        for version in sorted(after_gb, key=lambda key: (self._rank(key), key)):
            if over_gb <= _NOTHING_GB:
                break
            evicted_gb = min(over_gb, max(0.0, after_gb[version] - self._targets_gb.get(version, 0.0)))
            after_gb[version] -= evicted_gb
            over_gb -= evicted_gb
        by_self = {
            uid: reader.store_gb_s * seconds / total_gb if (total_gb := fetched_gb[reader.demand.version]) else 0.0
            for uid, reader in self._readers.items()
        }
        self._set_cached(after_gb, by_self)
        for reader in self._readers.values():
            read_gb = reader.read_gb_s * seconds
            reader.left_gb = max(0.0, reader.left_gb - read_gb)
            reader.epoch_gb -= read_gb
            if reader.epoch_gb <= _NOTHING_GB * reader.demand.size_gb and not reader.is_through:
                version = reader.demand.version
                reader.epoch_gb = min(self._size_gb[version], reader.left_gb)
                reader.hit_share = self._cached_gb.get(version, 0.0) / self._size_gb[version]

    def _rank(self, version: str) -> float:
        """Return the order of eviction: what is cached beyond its target by the largest part first."""
        target_gb, cached_gb = self._targets_gb.get(version, 0.0), self._cached_gb.get(version, 0.0)
        return target_gb / cached_gb if cached_gb else 0.0

    def _set_cached(self, after_gb: dict[str, float], by_self: dict[str, float] | None = None) -> None:
        """Change what is cached, and the hits of all readers with it.

        Args:
            by_self: Share of the new part that a reader fetched itself, by uid; none when left out.
        """
        for uid, reader in self._readers.items():
            version = reader.demand.version
            size_gb = self._size_gb[version]
            before, after = self._cached_gb.get(version, 0.0) / size_gb, after_gb.get(version, 0.0) / size_gb
            if after > before and before < 1.0:
                by_others = (after - before) * (1.0 - (by_self or {}).get(uid, 0.0))
                reader.hit_share = min(1.0, reader.hit_share + (1.0 - reader.hit_share) * by_others / (1.0 - before))
            elif after < before:
                reader.hit_share *= after / before
        self._cached_gb = {version: gb for version, gb in after_gb.items() if gb > _NOTHING_GB}

    def _settle(self) -> None:
        """Set targets, rates and speeds from now on, and the time at which they may change."""
        taken_gb_s: defaultdict[str, float] = defaultdict(float)
        for reader in self._readers.values():
            taken_gb_s[reader.demand.version] += reader.demand.gb_s
        versions = [
            CachedVersion(
                version=version,
                size_gb=self._size_gb[version],
                cached_gb=self._cached_gb.get(version, 0.0),
                gb_s=taken_gb_s[version],
            )
            for version in {**self._cached_gb, **taken_gb_s}
        ]
        self._targets_gb = targets_gb(versions, self.node_gb * self.num_nodes)
        wanting = [
            StoreReader(uid=uid, wanted_gb_s=wanted, left_gb=reader.left_gb * max(0.0, 1.0 - reader.hit_share))
            for uid, reader in self._readers.items()
            if (wanted := reader.wanted_gb_s) > _NOTHING_GB
        ]
        rates = store_rates(wanting, self.limit_gb_s)
        fetched_gb_s: defaultdict[str, float] = defaultdict(float)
        next_s = LONGEST_STEP_S if rates else math.inf
        for uid, reader in self._readers.items():
            reader.store_gb_s = rates.get(uid, 0.0)
            reader.speed = min(1.0, reader.store_gb_s / reader.wanted_gb_s) if uid in rates else 1.0
            fetched_gb_s[reader.demand.version] += reader.store_gb_s
            is_complete = self._cached_gb.get(reader.demand.version, 0.0) >= reader.demand.size_gb - _NOTHING_GB
            # An epoch matters only where hits change with it.
            if not reader.is_through and not (is_complete and reader.hit_share >= 1.0):
                next_s = min(next_s, max(0.0, reader.epoch_gb) / reader.read_gb_s)
        for version, gb_s in fetched_gb_s.items():
            missing_gb = self._targets_gb[version] - self._cached_gb.get(version, 0.0)
            if gb_s > 0.0 and missing_gb > _NOTHING_GB:
                next_s = min(next_s, missing_gb / gb_s)
        self.next_at = self.at + max(next_s, SHORTEST_STEP_S)
