"""Says in the status of every Pool that it changes no node of a Kubernetes cluster: a ledger takes its price alone.

Pools describe machines to the simulator. What a cluster may grow by is the business of its autoscaler, whose own
objects are looked at instead.
"""

import threading
import time
from collections.abc import Callable
from functools import partial

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.watching import IDLE_S, Cache
from fairlead.cluster.kubernetes.manifests.statuses import condition
from fairlead.cluster.kubernetes.operator.pods.pod_agent import Agent
from fairlead.cluster.kubernetes.operator.teams.plain_objects import KindObject, read_kind
from fairlead.specs.keys import API_VERSION
from fairlead.specs.pool import Pool

POOLS = f"/apis/{API_VERSION}/pools"
UNUSED = (
    "of a Pool this cluster takes the price of the nodes with its labels, where a ledger is kept, and nothing else: "
    "its nodes, and its autoscaler's NodePools or node groups, are taken as they are; `fairlead simulate` takes a Pool "
    "as a description of machines"
)


class PoolKeeper:
    """The pools of a cluster.

    Args:
        wake: Called when one of them has changed.
    """

    def __init__(self, client: Client, *, wake: Callable[[], None] = lambda: None, idle_s: float = IDLE_S) -> None:
        self._client = client
        self._wake = wake
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self.pools: Cache[KindObject[Pool]] = Cache(
            client, POOLS, partial(read_kind, Pool), self._pool_changed, idle_s=idle_s
        )

    def start(self) -> None:
        """Begin to watch."""
        self.pools.start()

    def stop(self) -> None:
        """End the watch."""
        self.pools.stop()

    def specs(self) -> list[Pool]:
        """The pools that can be read."""
        return [each.spec for each in self.pools.all() if each.spec is not None]

    def act(self, agent: Agent) -> None:
        """Give out what is to be done now."""
        with self._lock:
            changed, self._changed = self._changed, set()
        for name in changed:
            pool = self.pools.get(name)
            if pool is not None and pool.observed != pool.generation:
                agent.submit(f"pool {name}", f"tell of pool {name} {pool.version}", partial(self._write, pool))

    def _write(self, pool: KindObject[Pool]) -> None:
        unused = condition(
            "Used", False, reason="NotUsedHere", message=pool.problem or UNUSED, at=time.time(),
            generation=pool.generation, before=pool.conditions,
        )  # fmt: skip
        status = {"observedGeneration": pool.generation, "conditions": [unused]}
        metadata = {"name": pool.name, "uid": pool.uid}
        body = {"apiVersion": API_VERSION, "kind": "Pool", "metadata": metadata, "status": status}
        try:
            self.pools.put(self._client.apply(f"{POOLS}/{pool.name}/status", body))
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _pool_changed(self, before: KindObject[Pool] | None, after: KindObject[Pool] | None) -> None:
        if after is not None:
            with self._lock:
                self._changed.add(after.name)
            self._wake()
