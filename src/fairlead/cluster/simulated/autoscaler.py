"""Simulates a cloud's autoscaler: adds nodes for pending runs and removes idle ones.

Pending gangs are fitted, in order of their requests, into free and arriving capacity, each pod first-fit; for the rest
the cheapest suitable pool adds nodes, all or none. A node without pods that no pending gang counts on is removed after
its ``idle_s``. The search for a gang visits every node.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import AddNode, RemoveNode
from fairlead.cluster.simulated.groups import NodeGroup
from fairlead.cluster.simulated.node_failures import Weather
from fairlead.policy.capacity.demand_history import DemandHistory
from fairlead.policy.capacity.prewarming import needed_nodes
from fairlead.policy.placement.node_eligibility import Eligibility
from fairlead.policy.placement.placement import NodeCapacity, shape_of, takes_pods
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.queue.timeline import members
from fairlead.policy.scaling.scale_up import is_asking, requested_pods
from fairlead.specs.pool import Pool
from fairlead.state.capacity_requests import Amount, CapacityRequest, Growth, Source
from fairlead.state.pool_demand import PoolDemand
from fairlead.state.snapshot import Grant, Node, Snapshot, Workload

# Ninth decile of the standard normal distribution.
Z90 = 1.2815515655446004
_Taken = list[tuple[NodeCapacity, Grant]]


class SimulatedAutoscaler:
    """Scales the groups that have provisioning; the nodes of other groups are static capacity."""

    def __init__(self, groups: Sequence[NodeGroup], weather: Weather, seed: int) -> None:
        self._groups = [group for group in groups if group.provisioning is not None]
        self._places = {group.pool.name: group.nodes() for group in self._groups}
        self._owners = {node.name: group for group in self._groups for node in self._places[group.pool.name]}
        self._doors = Eligibility([node for group in groups for node in group.nodes()])
        self._weather = weather
        self._streams = {group.pool.name: random.Random(f"{seed}/delays/{group.pool.name}") for group in self._groups}
        self._coming: dict[str, tuple[float, Node]] = {}
        self._asked_at: dict[str, float] = {}
        self._needed: frozenset[str] = frozenset()
        self._idle_since: dict[str, float] = {}
        self._last_came: float | None = None
        self._seen: tuple[object, ...] | None = None
        self._obstacles: dict[str, str] = {}
        self._histories = {group.pool.name: DemandHistory() for group in self._groups if group.pool.is_ahead}
        self._standby: dict[str, int] = {}

    @property
    def is_bringing(self) -> bool:
        """Return whether nodes are arriving."""
        return bool(self._coming)

    def next_at(self, cluster: SimulatedCluster) -> float:
        """Return the time at which the next node arrives, or has been idle for long enough."""
        if not self._groups:
            return math.inf
        comes = min((at for at, _ in self._coming.values()), default=math.inf)
        return min(comes, min((at for at, _ in self._goes(cluster.snapshot().nodes)), default=math.inf))

    def step(self, cluster: SimulatedCluster, now: float) -> bool:
        """Add due nodes, request missing ones, remove idle ones; return whether the set of nodes changed."""
        if not self._groups:
            return False
        came = sorted(name for name, (at, _) in self._coming.items() if at <= now)
        for name in came:
            at, node = self._coming.pop(name)
            self._note_lead(name, at)
            cluster.inject(AddNode(node=node))
            self._weather.comes(node, now)
            self._last_came = now
        self._standby = cluster.standby
        snapshot = cluster.snapshot()
        asking = sorted(
            filter(is_asking, snapshot.workloads), key=lambda run: (run.status.queue.nodes_requested_at, run.uid)
        )
        self._look(cluster, snapshot, asking, now)
        self._note_idle(cluster, snapshot.nodes, now)
        gone = [name for at, name in self._goes(snapshot.nodes) if at <= now]
        for name in gone:
            cluster.inject(RemoveNode(node=name))
            self._weather.leaves(name)
            del self._idle_since[name]
        self._answer(cluster, asking)
        self._tell_demand(cluster, now)
        return bool(came or gone)

    def _tell_demand(self, cluster: SimulatedCluster, now: float) -> None:
        """Report past demand to the cluster for pools with standby nodes."""
        if not self._histories:
            return
        snapshot = cluster.snapshot()
        here: dict[str, set[str]] = {name: set() for name in self._histories}
        for node in snapshot.nodes:
            owner = self._owners.get(node.name)
            if owner is not None and owner.pool.name in here:
                here[owner.pool.name].add(node.name)
        pools = [group.pool for group in self._groups if group.pool.name in self._histories]
        demand = tuple(PoolDemand(pool=pool, nodes=frozenset(here[pool.name])) for pool in pools)
        for pool_demand, needed in zip(demand, needed_nodes(demand, snapshot), strict=True):
            self._histories[pool_demand.pool.name] = self._histories[pool_demand.pool.name].noted(needed, now)
        cluster.prepare_ahead(
            tuple(
                replace(pool_demand, needed=history.needed, lead_s=history.lead_s)
                for pool_demand in demand
                for history in (self._histories[pool_demand.pool.name],)
            )
        )

    def _note_lead(self, name: str, at: float) -> None:
        """Record the lead time of a node that has arrived."""
        pool = self._owners[name].pool.name
        if pool in self._histories:
            self._histories[pool] = self._histories[pool].came(at - self._asked_at.pop(name))

    def _num_always(self, group: NodeGroup) -> int:
        """Return the minimum number of nodes of a group."""
        return max(group.num_always, min(group.pool.nodes, self._standby.get(group.pool.name, 0)))

    def _look(self, cluster: SimulatedCluster, snapshot: Snapshot, asking: Sequence[Workload], now: float) -> None:
        """Request missing nodes, if anything has changed since the last call."""
        here = tuple(node.name for node in snapshot.nodes if takes_pods(node))
        ahead = tuple(sorted(self._standby.items()))
        needs = tuple((run.uid, len(requested_pods(run))) for run in asking)
        seen = needs, cluster.num_created, here, tuple(self._coming), ahead
        if seen != self._seen:
            self._obstacles, needed = {}, set[str]()
            rooms = self._rooms(snapshot) if asking else {}
            for run in asking:
                taken = self._fit(run, rooms, snapshot.nodes, now)
                needed.update(room.node.name for room, _ in taken)
            self._needed = frozenset(needed)
            self._keep_least(snapshot.nodes, now)
            self._seen = *seen[:3], tuple(self._coming), ahead

    def _rooms(self, snapshot: Snapshot) -> dict[str, NodeCapacity]:
        """Return the free capacity of existing and of arriving nodes."""
        rooms = {node.name: NodeCapacity.of(node) for node in snapshot.nodes if takes_pods(node)}
        for pod in snapshot.pods:
            if not pod.phase.is_final and pod.node in rooms:
                rooms[pod.node].take(pod.grant)
        return rooms | {name: NodeCapacity.of(node) for name, (_, node) in self._coming.items()}

    def _fit(self, run: Workload, rooms: dict[str, NodeCapacity], nodes: Sequence[Node], now: float) -> _Taken:
        """Find capacity for a gang, with new nodes if necessary; return what it takes, empty if that is not enough."""
        num_pods, shape = len(requested_pods(run)), shape_of(run.spec, self._doors)
        taken: _Taken = []
        for room in rooms.values():
            if len(taken) == num_pods:
                break
            _fill(room, shape, num_pods - len(taken), taken)
        new: list[tuple[NodeGroup, Node]] = []
        suitable = [
            group for group in self._groups if members(NodeCapacity.of(self._places[group.pool.name][0]), shape, 1)
        ]
        for group in sorted(suitable, key=lambda group: (self._price(group.pool, shape), group.pool.name)):
            for node in self._free_places(group, nodes):
                if len(taken) == num_pods:
                    break
                room = NodeCapacity.of(node)
                if _fill(room, shape, num_pods - len(taken), taken):
                    new.append((group, node))
        if len(taken) < num_pods:
            for room, grant in taken:
                room.take(grant, -1)
            names = ", ".join(f"pool {group.pool.name}" for group in suitable) or "any pool"
            self._obstacles[run.uid] = f"no more nodes of {names} can be had"
            return []
        for group, node in new:
            self._bring(group, node, now)
        rooms |= {room.node.name: room for room, _ in taken}
        return taken

    def _price(self, pool: Pool, shape: Shape) -> float:
        """Return dollars per hour for one pod on a fully packed node; infinite where the price is unknown."""
        held = members(NodeCapacity.of(self._places[pool.name][0]), shape, 1000)
        return math.inf if pool.price_per_hour is None else pool.price_per_hour / held

    def _bring(self, group: NodeGroup, node: Node, now: float) -> None:
        assert group.provisioning is not None
        median_s, p90_s = group.provisioning.delay_s, group.provisioning.delay_p90_s
        delay_s = median_s
        if p90_s is not None and p90_s > median_s > 0:
            spread = math.log(p90_s / median_s) / Z90
            delay_s = self._streams[group.pool.name].lognormvariate(math.log(median_s), spread)
        self._coming[node.name] = now + delay_s, node
        self._asked_at[node.name] = now

    def _free_places(self, group: NodeGroup, nodes: Sequence[Node]) -> list[Node]:
        taken = {node.name for node in nodes} | set(self._coming)
        return [node for node in self._places[group.pool.name] if node.name not in taken]

    def _keep_least(self, nodes: Sequence[Node], now: float) -> None:
        """Add the nodes that a group lacks to its minimum."""
        for group in self._groups:
            places = self._free_places(group, nodes)
            existing = group.pool.nodes - len(places)
            for node in places[: max(0, self._num_always(group) - existing)]:
                self._bring(group, node, now)

    def _note_idle(self, cluster: SimulatedCluster, nodes: Sequence[Node], now: float) -> None:
        idle = {
            node.name
            for node in nodes
            if node.name in self._owners
            and cluster.is_empty(node.name)
            and node.name not in self._needed
            and node.leaving is None
        }
        self._idle_since = {name: self._idle_since.get(name, now) for name in sorted(idle)}

    def _goes(self, nodes: Sequence[Node]) -> list[tuple[float, str]]:
        """Return idle nodes beyond the minimum with the time at which each is removed; newest names first."""
        num = {group.pool.name: 0 for group in self._groups}
        for node in nodes:
            if node.name in self._owners:
                num[self._owners[node.name].pool.name] += 1
        goes = []
        for name in sorted(self._idle_since, key=lambda name: (self._idle_since[name], -len(name), name)):
            group = self._owners[name]
            assert group.provisioning is not None
            if num[group.pool.name] > self._num_always(group):
                num[group.pool.name] -= 1
                goes.append((self._idle_since[name] + group.provisioning.idle_s, name))
        return goes

    def _answer(self, cluster: SimulatedCluster, asking: Sequence[Workload]) -> None:
        """Report to the cluster which capacity may still be added, and the state of the requests."""
        nodes = cluster.snapshot().nodes
        sources = []
        for group in self._groups:
            gpu = group.pool.hardware.gpu
            left = len(self._free_places(group, nodes)) + sum(self._owners[name] is group for name in self._coming)
            sources.append(
                Source(
                    name=f"pool {group.pool.name}",
                    models=() if gpu is None else (gpu.model,),
                    price_per_hour=group.pool.price_per_hour,
                    most=_amount(group.pool, group.pool.nodes),
                    left=_amount(group.pool, left),
                )
            )
        growth = Growth(by="the autoscaler", look="the cluster file", sources=tuple(sources))
        requests = tuple(
            CapacityRequest(workload_uid=run.uid, bound_at=self._last_came, obstacle=self._obstacles.get(run.uid))
            for run in asking
        )
        cluster.grow_by(growth, requests)


def _fill(room: NodeCapacity, shape: Shape, most: int, taken: _Taken) -> int:
    """Take capacity for as many pods as fit; return their number."""
    number = members(room, shape, most)
    for place in range(number):
        grant = room.fit(shape)
        if grant is None:
            return place
        room.take(grant)
        taken.append((room, grant))
    return number


def _amount(pool: Pool, num_nodes: int) -> Amount:
    hardware = pool.hardware
    gpus = 0 if hardware.gpu is None else hardware.gpu.count
    return Amount(
        cpu_milli=num_nodes * hardware.cpu_milli, memory_bytes=num_nodes * hardware.memory_bytes, gpus=num_nodes * gpus
    )  # fmt: skip
