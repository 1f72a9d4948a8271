"""Repartitions the GPUs of nodes if pending runs gain more than it costs, one step at a time.

A layout is a way to divide all GPUs of a node, one of those that its pool names. The transition follows NVIDIA's GPU
Operator: the node is cordoned, runs that hold GPUs there save a checkpoint and resume elsewhere, a label names the
layout, the node's manager applies it and reports that, and the node is uncordoned. The node itself records its
progress, so that any pass knows the next step, and may repeat one.

Gain and cost are in GPU-seconds. The gain is the past wait of the runs that would start there, times their request: a
run that has waited is expected to wait as long again (Lindy's law). The cost is the time in which the node is unusable,
and what leaving runs lose since their last checkpoint and by restarting. So nothing is changed before waiting has cost
as much as the change, the break-even rule of ski rental (Karlin et al., Algorithmica 1988): at most twice the cost with
full knowledge.

Leaving runs without another place wait in turn. So they leave only for runs that were submitted earlier: the request of
these, times their age, has to exceed that of the leaving ones. A run that has made way does not become older than the
runs it left for, so two kinds of runs do not alternate on a node.

A node is not changed while pods outside Fairlead hold its GPUs, or while a run is there that has not saved a
checkpoint, or that has a higher priority than the pending ones. At most a tenth of a pool is changed at a time. A
layout that failed on a node is not retried there for ``RETRY_S``.

With W pending runs, N nodes that could change and L layouts: O(N L W) counts of pods, for the first W and the N
cheapest, at most ``MOST_WAITING`` and ``MOST_NODES``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.policy.disruption.defragmentation import can_resume
from fairlead.policy.disruption.preemption import restart_s
from fairlead.policy.gpu.device_inventory import in_layout
from fairlead.policy.placement.node_eligibility import doors_of
from fairlead.policy.placement.placement import NodeCapacity, shape_of, takes_pods, why_never
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.queue.priority_classes import Priorities
from fairlead.policy.queue.timeline import members
from fairlead.specs.gang import GangSpec
from fairlead.specs.pool import Partitions
from fairlead.state.partitions import (
    ManagerState,
    PartitionAction,
    PartitionedNode,
    PartitionStep,
)
from fairlead.state.plan import Change, CreatePod
from fairlead.state.reasons import Code
from fairlead.state.snapshot import WHOLE_MILLI, Intent, Node, Phase, Pod, Snapshot, Workload
from fairlead.text.lists import listed
from fairlead.text.quantities import describe_duration, plural

LOOK_S = 30.0
DRAIN_PATIENCE_S = 900.0
LEAST_PATIENCE_S = 600.0  # the manager may have to restart the GPU Operator's pods on the node, or the node itself
RETRY_S = 3600.0
MOST_WAITING = 64
MOST_NODES = 16
_WAITING = frozenset((Phase.PENDING, Phase.RESTARTING))
_FOR_ROOM = frozenset(
    (
        Code.WAITING_FOR_RESOURCES,
        Code.WAITING_FOR_TURN,
        Code.WAITING_FOR_NODES,
        Code.NODES_NOT_COMING,
        Code.PREEMPTED,
        Code.NODE_RECLAIMED,
        Code.MOVED,
    )
)


def partition_steps(snapshot: Snapshot, changes: Sequence[Change], now: float) -> tuple[PartitionStep, ...]:
    """Return the next step of each node that is changing, and of those that begin.

    Args:
        changes: All other decisions of this pass: runs that start are no longer pending, and occupy their places.
    """
    nodes = {node.name: node for node in snapshot.nodes}
    held: dict[str, list[Pod]] = {}
    for pod in snapshot.pods:
        if not pod.phase.is_final:
            held.setdefault(pod.node, []).append(pod)
    steps: list[PartitionStep] = []
    for node in snapshot.partitioned:
        if node.change is not None and node.node in nodes:
            step = _next_step(node, nodes[node.node], held.get(node.node, ()), now)
            if step is not None:
                steps.append(step)
    return (*steps, *_begin(snapshot, nodes, held, changes, now))


def look_times(snapshot: Snapshot, now: float) -> Iterator[float]:
    """Yield times at which a step may be due although nothing has happened."""
    if any(partitioned_node.change is not None for partitioned_node in snapshot.partitioned) or any(
        _waits(run, now) for run in snapshot.workloads
    ):
        yield (now // LOOK_S + 1) * LOOK_S


def layout_for(spec: GangSpec, snapshot: Snapshot) -> str | None:
    """Return a layout in which nodes would hold a run that none holds now; None without one."""
    nodes = {node.name: node for node in snapshot.nodes}
    of_pools: dict[str, list[PartitionedNode]] = {}
    for partitioned_node in snapshot.partitioned:
        if partitioned_node.node in nodes:
            of_pools.setdefault(partitioned_node.pool.name, []).append(partitioned_node)
    for partitioned in of_pools.values():
        for layout in _partitions(partitioned[0]).layouts:
            others = tuple(_opened(nodes[entry.node], entry, layout) for entry in partitioned[: spec.nodes])
            if why_never(spec, (*snapshot.nodes, *others)) is None:
                return layout
    return None


def _next_step(seen: PartitionedNode, node: Node, pods: Sequence[Pod], now: float) -> PartitionStep | None:
    """Return the next step of a changing node by its reports; None while it waits for one."""
    change = seen.change
    assert change is not None, "a node that rests is on no way"
    holders = [pod for pod in pods if pod.grant.gpu_uuids]
    waited_s = now - change.since

    def step(action: PartitionAction, why: str, to: str = change.to, failed: str | None = None) -> PartitionStep:
        return PartitionStep(node=seen.node, action=action, to=to, why=why, failed=failed)

    if seen.requested != change.to:
        if not holders:
            why = f"no run holds a GPU of {seen.node} any more; the layout {change.to} is requested"
            return step(PartitionAction.RELABEL, why)
        if waited_s < DRAIN_PATIENCE_S:
            return None
        why = (
            f"{plural(len(holders), 'pod')} still hold GPUs of {seen.node} after {describe_duration(waited_s)}; "
            f"it keeps the layout {change.back}"
        )
        return step(PartitionAction.GIVE_UP, why, change.back, change.to)
    says_so = _partitions(seen).by_device_plugin or seen.manager_state is ManagerState.SUCCESS
    if says_so and seen.layout == change.to:
        why = f"{seen.node} has the layout {change.to}, {describe_duration(waited_s)} after the request"
        return step(PartitionAction.UNCORDON, why)
    if change.to == change.back:
        return None  # it cannot return to its layout: a person has to examine it
    patience_s = max(LEAST_PATIENCE_S, 3 * _partitions(seen).reconfigure_s)
    if seen.manager_state is ManagerState.FAILED or waited_s >= patience_s:
        how = (
            "its manager reports a failure"
            if seen.manager_state is ManagerState.FAILED
            else "its manager reported no result"
        )
        why = (
            f"{seen.node} does not have the layout {change.to} {describe_duration(waited_s)} after the request: "
            f"{how}; it returns to {change.back}"
        )
        return step(PartitionAction.REVERT, why, change.back, change.to)
    return None


def _begin(
    snapshot: Snapshot,
    nodes: Mapping[str, Node],
    held: Mapping[str, Sequence[Pod]],
    changes: Sequence[Change],
    now: float,
) -> Iterator[PartitionStep]:
    """Yield the first step of nodes that are worth changing, at most one per pool."""
    others = {
        change.workload_uid for change in changes if change.status is not None and change.status.phase not in _WAITING
    }
    waiting = [run for run in snapshot.workloads if run.uid not in others and _waits(run, now)]
    if not waiting:
        return
    priorities = Priorities.of(snapshot)
    waiting.sort(key=lambda run: (-priorities.counted(run.spec), run.status.since, run.uid))
    starts = [create for change in changes for create in change.create]
    world = _World.of(snapshot, nodes, held, waiting[:MOST_WAITING], starts, now)
    if not world.waiting:
        return
    pools: dict[str, list[PartitionedNode]] = {}
    for partitioned_node in snapshot.partitioned:
        if partitioned_node.node in nodes:
            pools.setdefault(partitioned_node.pool.name, []).append(partitioned_node)
    for pool_nodes in pools.values():
        changing = sum(entry.change is not None for entry in pool_nodes)
        if changing >= max(1, len(pool_nodes) // 10):
            continue
        best = max(
            _worth_it(pool_nodes, world), key=lambda candidate: candidate.gain_s - candidate.cost_s, default=None
        )
        if best is not None:
            yield PartitionStep(
                node=best.node.node, action=PartitionAction.CORDON, to=best.layout, why=_describe(best)
            )  # fmt: skip


def _waits(run: Workload, now: float) -> bool:
    """Return whether a run waits for room on GPUs."""
    status = run.status
    return (
        status.phase in _WAITING
        and run.intent is Intent.RUN
        and run.spec.engine is None
        and run.spec.resources.gpu is not None
        and status.reason.code in _FOR_ROOM
        and (status.failures.retry_at is None or status.failures.retry_at <= now)
    )


def _partitions(seen: PartitionedNode) -> Partitions:
    assert seen.pool.partitions is not None, "its pool has layouts"
    return seen.pool.partitions


def _opened(node: Node, seen: PartitionedNode, layout: str) -> Node:
    """Return the node with that layout, open to all suitable runs."""
    return replace(node, gpus=in_layout(seen.pool, layout, node.name), closed=None, leaving=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A node, a possible layout, the runs that would start there, and those that would have to leave."""

    node: PartitionedNode
    layout: str
    starts: tuple[Workload, ...]
    leaves: tuple[Workload, ...]
    homeless: int
    gain_s: float
    out_of_use_s: float
    lost_s: float
    is_turn: bool

    @property
    def cost_s(self) -> float:
        return self.out_of_use_s + self.lost_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """The inputs for comparing candidates.

    Attributes:
        waiting: Pending runs that find no room now, with the shapes of their pods.
        rooms: The free capacity of every node.
        taken: Nodes on which a run starts now.
    """

    runs: Mapping[str, Workload]
    pods: Mapping[str, Sequence[Pod]]
    nodes: Mapping[str, Node]
    held: Mapping[str, Sequence[Pod]]
    waiting: Sequence[tuple[Workload, Shape]]
    rooms: Mapping[str, NodeCapacity]
    taken: frozenset[str]
    priorities: Priorities
    now: float

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        nodes: Mapping[str, Node],
        held: Mapping[str, Sequence[Pod]],
        waiting: Iterable[Workload],
        starts: Iterable[CreatePod],
        now: float,
    ) -> "_World":
        rooms = {}
        for name, node in nodes.items():
            rooms[name] = NodeCapacity.of(node)
            for pod in held.get(name, ()):
                rooms[name].take(pod.grant)
        for start in starts:
            rooms[start.node].take(start.grant)
        doors = doors_of(snapshot.nodes)
        shaped = [(run, shape_of(run.gang, doors)) for run in waiting]
        own: dict[str, list[Pod]] = {}
        for pods in held.values():
            for pod in pods:
                own.setdefault(pod.workload_uid, []).append(pod)
        return cls(
            runs={run.uid: run for run in snapshot.workloads},
            pods=own,
            nodes=nodes,
            held=held,
            waiting=[(run, shape) for run, shape in shaped if not _fits(shape, run.gang.nodes, rooms.values())],
            rooms=rooms,
            taken=frozenset(start.node for start in starts),
            priorities=Priorities.of(snapshot),
            now=now,
        )

    def leaving(self, name: str) -> list[Workload] | None:
        """Return the runs that hold GPUs of a node; None if one of them must not be stopped."""
        leaving: dict[str, Workload] = {}
        for pod in self.held.get(name, ()):
            if not pod.grant.gpu_uuids:
                continue
            run = self.runs.get(pod.workload_uid)
            if run is None or run.spec.engine is not None or run.intent is not Intent.RUN:
                return None
            if run.status.phase is not Phase.RUNNING or not can_resume(run):
                return None
            leaving[run.uid] = run
        return list(leaving.values())


def _fits(shape: Shape, count: int, rooms: Iterable[NodeCapacity]) -> bool:
    for room in rooms:
        if count <= 0:
            break
        count -= members(room, shape, count)
    return count <= 0


def _worth_it(candidates: Sequence[PartitionedNode], world: _World) -> Iterator[_Candidate]:
    """Yield changes that gain more than they cost."""
    able: list[tuple[float, PartitionedNode, list[Workload]]] = []
    alike = set()
    for partitioned_node in candidates:
        node = world.nodes[partitioned_node.node]
        if (
            partitioned_node.change is not None
            or partitioned_node.layout is None
            or partitioned_node.manager_state is ManagerState.PENDING
        ):
            continue
        if not takes_pods(node) or node.leaving is not None or partitioned_node.node in world.taken:
            continue
        leaves = world.leaving(partitioned_node.node)
        if leaves is None:
            continue
        if not leaves and not world.held.get(partitioned_node.node):
            if (partitioned_node.pool.name, partitioned_node.layout) in alike and not partitioned_node.failed:
                continue  # a similar empty node is considered already
            alike.add((partitioned_node.pool.name, partitioned_node.layout))
        able.append((sum(_lost_s(run, world) for run in leaves), partitioned_node, leaves))
    able.sort(key=lambda item: (item[0], item[1].node))
    for _, partitioned_node, leaves in able[:MOST_NODES]:
        for layout in _partitions(partitioned_node).layouts:
            failed_at = partitioned_node.failed.get(layout)
            if layout in (partitioned_node.layout, partitioned_node.requested) or (
                failed_at is not None and world.now - failed_at < RETRY_S
            ):
                continue
            candidate = _candidate(partitioned_node, layout, leaves, world)
            if candidate.is_turn and candidate.gain_s > candidate.cost_s:
                yield candidate


def _lost_s(run: Workload, world: _World) -> float:
    """Return the GPU-seconds that a run loses by saving, leaving and restarting."""
    return _gpus(run) * restart_s(run, world.pods[run.uid], world.now)


def _gpus(run: Workload, num: int | None = None) -> float:
    """Return the GPUs of so many pods of a run; of all if omitted."""
    return Shape.of(run.gang.resources).total_gpu_milli * (run.gang.nodes if num is None else num) / WHOLE_MILLI


def _candidate(seen: PartitionedNode, layout: str, leaves: Sequence[Workload], world: _World) -> _Candidate:
    """Compute the gain and cost of a node in a layout."""
    node, now = world.nodes[seen.node], world.now
    room = NodeCapacity.of(_opened(node, seen, layout))
    for pod in world.held.get(seen.node, ()):
        if not pod.grant.gpu_uuids:
            room.take(pod.grant)
    others = {
        name: NodeCapacity(other.node, other.cpu_milli, other.memory_bytes, dict(other.gpu_milli))
        for name, other in world.rooms.items()
        if name != seen.node
    }
    takes_s = _partitions(seen).reconfigure_s + max((run.spec.grace_s for run in leaves), default=0.0)
    lost_s = held = claimed_s = 0.0
    homeless = 0
    for run in leaves:
        on_node = [pod for pod in world.pods[run.uid] if pod.node == seen.node]
        shape = Shape.of(run.gang.resources)
        held += _gpus(run, len(on_node))
        lost_s += _lost_s(run, world)
        if not _take(shape, len(on_node), [*others.values(), room]):
            homeless += 1
            claimed_s += _gpus(run) * (now - run.created_at)
    before = dict(room.gpu_milli)
    starts: list[Workload] = []
    gain_s = 0.0
    for run, shape in world.waiting:
        if any(world.priorities.is_lower(run.spec, other.spec) for other in leaves):
            continue
        here = members(room, shape, run.gang.nodes)
        if here and _fits(shape, run.gang.nodes - here, others.values()):
            _take(shape, here, [room])
            _take(shape, run.gang.nodes - here, list(others.values()))
            starts.append(run)
            gain_s += _gpus(run) * (now - run.status.since)
            claimed_s -= _gpus(run) * (now - run.created_at)
    taken = sum(before[uuid] - free for uuid, free in room.gpu_milli.items()) / WHOLE_MILLI
    return _Candidate(
        node=seen,
        layout=layout,
        starts=tuple(starts),
        leaves=tuple(leaves),
        homeless=homeless,
        gain_s=gain_s,
        out_of_use_s=takes_s * max(taken, held),
        lost_s=lost_s,
        is_turn=not homeless or claimed_s < 0,
    )


def _take(shape: Shape, count: int, rooms: Sequence[NodeCapacity]) -> bool:
    """Allocate so many pods where there is room; return whether all found some."""
    for room in rooms:
        while count and (grant := room.fit(shape)) is not None:
            room.take(grant)
            count -= 1
    return not count


def _describe(best: _Candidate) -> str:
    """Describe the purpose and cost of a change, as a sentence."""
    names = listed([run.spec.name for run in best.starts], 3)
    text = (
        f"{best.node.node} goes from the layout {best.node.layout} to {best.layout} for {names}, which have "
        f"waited {_hours(best.gain_s)} GPU-hours; that costs {_hours(best.cost_s)}: "
        f"{_hours(best.out_of_use_s)} out of use"
    )
    if best.leaves:
        text += (
            f", {_hours(best.lost_s)} of {plural(len(best.leaves), 'run')} that saved and started again"
            f"{f', {best.homeless} of which wait for another place' if best.homeless else ''}"
        )
    return text


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g}"
