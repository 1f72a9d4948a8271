"""Writes to the status of every Pool its effect on a Kubernetes cluster: its price, and nodes kept in advance.

Pools describe machines to the simulator. The growth of a cluster is up to its autoscaler, whose own objects are read
instead.
"""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.watching import IDLE_S, ObjectCache
from fairlead.cluster.kubernetes.manifests.conditions import INVALID, READY, condition, ready_conditions
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.workloads.plain_objects import KindObject, read_kind
from fairlead.policy.kinds.readiness import SpecProgress
from fairlead.specs.keys import API_VERSION
from fairlead.specs.pool import Pool

POOLS = f"/apis/{API_VERSION}/pools"
UNUSED = (
    "of a Pool this cluster takes the price of the nodes with its labels, where a ledger is kept, and nothing else: "
    "its nodes, and its autoscaler's NodePools or node groups, are taken as they are; `fairlead simulate` takes a Pool "
    "as a description of machines"
)


HELD = (
    "its nodes, by its labels, are asked for ahead of time with placeholders, by the size that it says; a ledger takes "
    "their price; `fairlead simulate` takes it as a description of machines"
)
CHOSEN = (
    "the GPUs of its nodes, selected by its labels, are repartitioned as the load changes; a ledger takes "
    "their price; `fairlead simulate` takes it as a description of machines"
)
NO_LABELS = "`prewarm`, `peaks` and `partitions` need `labels`, which select the nodes of the pool; nothing is done"
# The history of a pool that may be lost when an operator is killed.
WRITE_EVERY_S = 600.0


class PoolKeeper(Controller):
    """The pools of a cluster.

    Args:
        wake: Called when one of them has changed.
    """

    name = "pools"

    def __init__(
        self,
        client: Client,
        *,
        wake: Callable[[], None] = lambda: None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._ahead: Callable[[str], tuple[str, Mapping[str, Any]] | None] = lambda _: None
        self._partitions: Callable[[str], str | None] = lambda _: None
        self._written: dict[str, tuple[str, float]] = {}
        self._client = client
        self._wake = wake
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self.pools: ObjectCache[KindObject[Pool]] = ObjectCache(
            client, POOLS, partial(read_kind, Pool), self._pool_changed, idle_s=idle_s
        )

    def tell_of(
        self,
        *,
        ahead: Callable[[str], tuple[str, Mapping[str, Any]] | None],
        partitions: Callable[[str], str | None],
    ) -> None:
        """Write into the status of a pool what the controllers of its nodes know.

        Args:
            ahead: Returns which nodes of a pool are kept in advance and why, and its history; None for none.
            partitions: Returns how the nodes of a pool are partitioned; None if it has no choice of layouts.
        """
        self._ahead, self._partitions = ahead, partitions

    def start(self) -> None:
        """Start to watch."""
        self.pools.start()

    @property
    def caches(self) -> tuple[ObjectCache[KindObject[Pool]], ...]:
        return (self.pools,)

    def stop(self) -> None:
        """Stop the watch."""
        self.pools.stop()

    def specs(self) -> list[Pool]:
        """Return the pools whose specs are valid."""
        return [pool.spec for pool in self.pools.all() if pool.spec is not None]

    def objects(self) -> tuple[KindObject[Pool], ...] | None:
        """Return all pools as they were read; None while they are not."""
        return self.pools.all() if self.pools.is_synced else None

    def act(self, turn: Turn) -> None:
        """Queue the work that is due."""
        agent = turn.agent
        with self._lock:
            changed, self._changed = self._changed, set()
        now = time.monotonic()
        for item in self.pools.all():
            ahead, partitioned = self._ahead(item.name), self._partitions(item.name)
            if ahead is None and partitioned is None:
                continue
            words = f"{ahead[0] if ahead else ''} {partitioned}"
            message, at = self._written.get(item.name, ("", -WRITE_EVERY_S))
            if message != words or now - at >= WRITE_EVERY_S:
                self._written[item.name] = words, now
                agent.submit(f"pool {item.name}", f"tell of pool {item.name} at {now}", partial(self._write, item))
        for name in changed:
            pool = self.pools.get(name)
            is_told = pool is not None and pool.observed == pool.generation and pool.has_condition(READY)
            if pool is not None and not is_told:
                agent.submit(f"pool {name}", f"tell of pool {name} {pool.version}", partial(self._write, pool))

    def _write(self, pool: KindObject[Pool]) -> None:
        spec, ahead = pool.spec, self._ahead(pool.name)
        is_ahead = spec is not None and spec.is_ahead
        is_used = is_ahead and spec is not None and bool(spec.labels)
        is_chosen = spec is not None and spec.partitions is not None
        is_partitioned = is_chosen and spec is not None and bool(spec.labels)
        used = [*([HELD] if is_used else ()), *([CHOSEN] if is_partitioned else ())]
        message = pool.problem or ". ".join(used) or (NO_LABELS if is_ahead or is_chosen else UNUSED)
        about: dict[str, Any] = {"at": time.time(), "generation": pool.generation, "before": pool.conditions}
        reason = "Partitioned" if is_partitioned else "NotUsedHere"
        reason = "HeldAhead" if is_used else "NoLabels" if not used and (is_ahead or is_chosen) else reason
        conditions = [condition("Used", bool(used), reason=reason, message=message, **about)]
        is_wrong = bool(pool.problem) or (not used and (is_ahead or is_chosen))
        why = INVALID if pool.problem else reason
        conditions += ready_conditions(
            SpecProgress.STALLED if is_wrong else SpecProgress.READY, reason=why, message=message, **about
        )  # fmt: skip
        status: dict[str, Any] = {"observedGeneration": pool.generation, "conditions": conditions}
        if ahead is not None:
            why, state = ahead
            conditions.append(condition("Ahead", True, reason="Decided", message=why, **about))
            status["state"] = dict(state)
        if (partitioned := self._partitions(pool.name)) is not None:
            conditions.append(condition("Partitions", True, reason="AsTheyAre", message=partitioned, **about))
        metadata = {"name": pool.name, "uid": pool.uid}
        body = {"apiVersion": API_VERSION, "kind": "Pool", "metadata": metadata, "status": status}
        try:
            self.pools.put(self._client.apply(f"{POOLS}/{segment(pool.name)}/status", body))
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _pool_changed(self, before: KindObject[Pool] | None, after: KindObject[Pool] | None) -> None:
        if after is not None:
            with self._lock:
                self._changed.add(after.name)
            self._wake()
