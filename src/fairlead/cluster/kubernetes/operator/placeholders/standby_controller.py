"""Keeps nodes of pools ready in advance: placeholders of one node each, and a record of the demand for them.

Where an autoscaler acts on CapacityBuffers, a pool has one of these in place of its placeholders.

The wanted number is decided from the Pools and their history; the actual one is in the cluster. The history is in the
status of the Pool, written there periodically, and gaps are filled with the last value: an operator that is killed
loses no more than that. A placeholder gives way to every pod; one that is no longer wanted is deleted, and its
autoscaler removes the node when it is empty.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.devices import DeviceResource, whole_resource
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.manifests.capacity_objects import (
    BUFFERS,
    BUFFERS_VERSION,
    buffer_name,
    render_capacity_buffer,
    render_pod_template,
)
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.cluster.kubernetes.manifests.standby import render_standby
from fairlead.cluster.kubernetes.names import POOL, controller_of, segment
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.placeholders.capacity_objects import SILENT_S, CapacityObjects
from fairlead.cluster.kubernetes.operator.placeholders.placeholder_pods import delete_placeholder
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.cluster.kubernetes.workloads.plain_objects import KindObject
from fairlead.errors import ClusterError
from fairlead.policy.capacity.demand_history import DemandHistory
from fairlead.policy.capacity.prewarming import needed_nodes
from fairlead.specs.pool import Pool
from fairlead.state.plan import Plan
from fairlead.state.pool_demand import PoolDemand, Standby
from fairlead.state.snapshot import Snapshot

log = logging.getLogger(__name__)

# A placeholder that was bound sooner found an existing node.
LEAST_LEAD_S = 15.0


class StandbyController(Controller):
    """Manages the placeholders of all pools.

    Args:
        pools: Returns the existing Pool objects; None while they are unknown.
        namespace: The namespace of the placeholders.
        may_act: Returns whether this process still leads; asked before each request that creates something.
        silent_s: Time after which a CapacityBuffer without a condition counts as unanswered.
    """

    name = "nodes ahead of demand"

    def __init__(
        self,
        view: Informers,
        pools: Callable[[], Iterable[KindObject[Pool]] | None],
        settings: PodSettings,
        namespace: str,
        *,
        may_act: Callable[[], bool] = lambda: True,
        silent_s: float = SILENT_S,
    ) -> None:
        self._view = view
        self._buffers = CapacityObjects(
            view.client, BUFFERS, BUFFERS_VERSION, POOL, wake=view.wake, may_act=may_act, namespace=namespace,
            isolation=view.isolation,
            is_ours=lambda pool, about: controller_of(about).get("name") == pool,
            silent_s=silent_s,
        )  # fmt: skip
        self._raised: dict[str, float] = {}  # since when a pool with a buffer has too few free nodes
        self._took: dict[str, list[float]] = {}
        self._pools = pools
        self._settings = settings
        self._namespace = namespace
        self._may_act = may_act
        self._lock = threading.Lock()
        self._held: dict[str, PodObject] = {}
        self._histories: dict[str, DemandHistory] = {}
        self._learnt: set[str] = set()
        self._known: dict[str, KindObject[Pool]] | None = None
        self.standby: tuple[Standby, ...] = ()
        """The latest decision."""
        view.pods.listen(self._pod_changed)

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Return the snapshot with the demand for pools that keep nodes ready in advance."""
        wanted = self._known = self._ahead()
        if wanted is None or (not wanted and not self.standby):
            return snapshot
        for name in set(self._histories) - set(wanted):
            del self._histories[name]
        pools = [pool_object.spec for pool_object in wanted.values() if pool_object.spec is not None]
        demand = tuple(PoolDemand(pool=pool, nodes=self._nodes_of(pool)) for pool in pools)
        for pool_demand, needed in zip(demand, needed_nodes(demand, snapshot), strict=True):
            known = self._histories.get(pool_demand.pool.name)
            if known is None:
                known = read_history(wanted[pool_demand.pool.name].state)
            self._histories[pool_demand.pool.name] = self._learn(pool_demand.pool.name, known).noted(needed, now)
        demands = tuple(
            replace(pool_demand, needed=history.needed, lead_s=history.lead_s)
            for pool_demand in demand
            for history in (self._histories[pool_demand.pool.name],)
        )
        return replace(snapshot, pools=demands, standby=self.standby)

    def take(self, plan: Plan) -> None:
        if plan.standby is None:
            return
        for standby in plan.standby:
            if standby not in self.standby:
                log.info("pool %s is to have %d nodes: %s", standby.pool, standby.nodes, standby.why)
        self.standby = plan.standby

    def status(self, pool: str) -> tuple[str, Mapping[str, Any]] | None:
        """Return what a pool's status shows and keeps of nodes ready in advance; None for a pool without any."""
        history = self._histories.get(pool)
        if history is None:
            return None
        why = next((target.why for target in self.standby if target.pool == pool), "no node is held ahead of time now")
        buffer = self._buffers.known.get(pool)
        if buffer is not None:
            lack = next((condition.message for condition in buffer.conditions.values() if not condition.is_true), None)
            why += f"; CapacityBuffer {buffer.name} asks for them" + (f": {lack}" if lack else "")
        return why, write_history(history)

    def act(self, turn: Turn) -> None:
        """Queue the work that is due."""
        agent, snapshot = turn.agent, turn.snapshot
        with self._lock:
            held = dict(self._held)
        ahead = self._known
        if ahead is None or (not held and not self.standby and self._buffers.is_clear):
            return
        busy = {pod.node for pod in snapshot.pods if not pod.phase.is_final}
        busy |= self._view.nodes_with_room()
        targets = {target.pool: target.nodes for target in self.standby}
        free = {}
        for name in {*targets, *(pod.pool for pod in held.values())}:
            pool = ahead.get(name)
            spec = None if pool is None else pool.spec
            in_use = 0 if spec is None else len(busy & self._nodes_of(spec))
            free[name] = 0 if spec is None else max(0, targets.get(name, 0) - in_use)
        by_buffer = self._keep_buffers(agent, {name: number for name, number in free.items() if number}, busy)
        for name, number in free.items():
            pool = ahead.get(name)
            own = [pod for pod in held.values() if pod.pool == name and pod.told_at is None]
            remaining = kept_of(own, 0 if by_buffer else number, busy)
            for pod in own:
                if pod not in remaining:
                    agent.submit(
                        f"pool {name}", f"take away {pod.key} {pod.uid}", partial(delete_placeholder, self._view, pod)
                    )
            if pool is None or pool.spec is None or by_buffer:
                continue
            indices = (index for index in range(number + len(own)) if index not in {pod.index for pod in own})
            for _ in range(number - len(remaining)):
                index = next(indices)
                order = partial(self._create, pool, pool.spec, index)
                agent.submit(f"pool {name}", f"hold a node {name} {index}", order)

    def _keep_buffers(self, agent: PodAgent, free: Mapping[str, int], busy: set[str]) -> bool:
        """Keep a CapacityBuffer for each pool that needs so many free nodes; return whether they are used here."""
        now = time.time()
        try:
            is_used = self._buffers.is_used(now)
        except ClusterError as error:
            log.warning("whether CapacityBuffers are served is not known: %s", error)
            return not self._buffers.is_clear
        is_known = self._buffers.follow(agent, free if is_used else {}, now)
        for name, number in free.items() if is_used and is_known else ():
            pool = (self._known or {}).get(name)
            if pool is None or pool.spec is None:
                continue
            known = self._buffers.known.get(name)
            if known is None or known.replicas != number:
                template = render_pod_template(self._placeholder(pool, pool.spec, 0), buffer_name(name))
                self._buffers.put(agent, name, template, render_capacity_buffer(template, number))
            if len(self._nodes_of(pool.spec) - busy) < number:
                self._raised.setdefault(name, now)
            elif name in self._raised:
                self._took.setdefault(name, []).append(now - self._raised.pop(name))
        self._raised = {name: at for name, at in self._raised.items() if name in free}
        return is_used

    def _ahead(self) -> dict[str, KindObject[Pool]] | None:
        """Return pools that keep nodes ready in advance, and have labels that identify their nodes."""
        pools = self._pools()
        if pools is None:
            return None
        present = (pool for pool in pools if pool.spec is not None and not pool.is_leaving)
        return {pool.name: pool for pool in present if pool.spec and pool.spec.is_ahead and pool.spec.labels}

    def _nodes_of(self, pool: Pool) -> frozenset[str]:
        wanted = dict(pool.labels).items()
        return frozenset(node.key for node in self._view.nodes.all() if wanted <= dict(node.labels).items())

    def _learn(self, pool: str, history: DemandHistory) -> DemandHistory:
        """Record how long nodes took that placeholders or a buffer waited for."""
        for took_s in self._took.pop(pool, ()):
            if took_s >= LEAST_LEAD_S:
                history = history.came(took_s)
        with self._lock:
            own = [pod for pod in self._held.values() if pod.pool == pool and pod.bound_at is not None]
            self._learnt &= {pod.uid for pod in self._held.values()}
        for pod in own:
            if pod.uid not in self._learnt:
                self._learnt.add(pod.uid)
                took_s = (pod.bound_at or 0.0) - pod.created_at
                if took_s >= LEAST_LEAD_S:
                    history = history.came(took_s)
        return history

    def _placeholder(self, pool: KindObject[Pool], spec: Pool, index: int) -> dict[str, Any]:
        device = None
        if spec.hardware.gpu is not None:
            names = {name for node in self._view.nodes.all() for name, _ in node.allocatable.devices}
            device = DeviceResource(name=whole_resource(names), count=spec.hardware.gpu.count)
        return render_standby(spec, pool.uid, index, self._namespace, self._settings, device)

    def _create(self, pool: KindObject[Pool], spec: Pool, index: int) -> None:
        if not self._may_act():
            return
        pod = self._placeholder(pool, spec, index)
        try:
            self._view.pods.put(self._view.client.create(f"/api/v1/namespaces/{segment(self._namespace)}/pods", pod))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    def _pod_changed(self, before: PodObject | None, after: PodObject | None) -> None:
        for pod, is_there in ((before, False), (after, True)):
            # Placeholders of pools are in the operator's namespace alone.
            if pod is not None and pod.pool and pod.key.startswith(f"{self._namespace}/"):
                with self._lock:
                    if is_there:
                        self._held[pod.key] = pod
                    else:
                        self._held.pop(pod.key, None)


def kept_of(own: list[PodObject], number: int, busy: set[str]) -> list[PodObject]:
    """Choose which placeholders stay: first those that hold a free node, last those on a node that is in use."""
    ranked = sorted(own, key=lambda pod: (pod.is_over, pod.node in busy, not pod.node, pod.index))
    return ranked[:number]


def write_history(history: DemandHistory) -> dict[str, Any]:
    """Return a history as plain data: equal minutes in a row are one pair of a number and a count."""
    pairs: list[list[int]] = []
    for number in history.needed:
        if pairs and pairs[-1][0] == number:
            pairs[-1][1] += 1
        else:
            pairs.append([number, 1])
    return {
        "needed": pairs,
        "minute": history.minute,
        "greatest": history.greatest,
        "latest": history.latest,
        "leads": [round(lead, 1) for lead in history.leads],
    }


def read_history(state: Mapping[str, Any]) -> DemandHistory:
    """Return the history that ``write_history`` wrote; an empty one if there is none."""
    if not state:
        return DemandHistory()
    return DemandHistory(
        needed=tuple(number for number, times in state["needed"] for _ in range(times)),
        minute=state["minute"],
        greatest=state["greatest"],
        latest=state["latest"],
        leads=tuple(state["leads"]),
    )
