"""Where a gang goes: all of it or none, on the first nodes that have room.

Cost is linear in nodes x members. Packing, topology and fragmentation are not looked at.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fairlead.policy.quantities import plural, say_cpu, say_gpu, say_memory, say_resources
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Gpu, Grant, Node, Pod

WHOLE_GPU = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One member of a gang and the node it goes to."""

    index: int
    node: str
    grant: Grant


@dataclass(slots=True)
class Room:
    """What is free on one node; ``take`` is the only way it changes."""

    node: Node
    cpu_milli: int
    memory_bytes: int
    gpu_milli: dict[str, int]

    @classmethod
    def of(cls, node: Node) -> "Room":
        """The room of an empty node."""
        return cls(node, node.cpu_milli, node.memory_bytes, {gpu.uuid: WHOLE_GPU for gpu in node.gpus})

    def take(self, grant: Grant) -> None:
        """Count a grant as held."""
        self.cpu_milli -= grant.cpu_milli
        self.memory_bytes -= grant.memory_bytes
        for uuid in grant.gpu_uuids:
            if uuid in self.gpu_milli:
                self.gpu_milli[uuid] -= min(grant.gpu_milli, WHOLE_GPU)

    def fit(self, resources: Resources) -> Grant | None:
        """What one member would hold here; None when there is no room."""
        cpu, memory = resources.cpu_milli or 0, resources.memory_bytes or 0
        if not self.node.ready or self.node.closed is not None or cpu > self.cpu_milli or memory > self.memory_bytes:
            return None
        if resources.gpu is None:
            return Grant(cpu_milli=cpu, memory_bytes=memory)
        each = min(resources.gpu.milli, WHOLE_GPU)
        free = [gpu.uuid for gpu in self.matching(resources.gpu) if self.gpu_milli[gpu.uuid] >= each]
        if len(free) < resources.gpu.num_devices:
            return None
        # A share goes to the fullest device that still holds it, so that whole devices stay whole.
        free.sort(key=lambda uuid: self.gpu_milli[uuid])
        chosen = tuple(free[: resources.gpu.num_devices])
        return Grant(cpu_milli=cpu, memory_bytes=memory, gpu_uuids=chosen, gpu_milli=each)

    def matching(self, request: GpuRequest) -> list[Gpu]:
        """Devices of the node that are of the kind asked for, free or not."""
        return [gpu for gpu in self.node.gpus if _matches(gpu, request)]


def rooms(nodes: Iterable[Node], pods: Iterable[Pod]) -> list[Room]:
    """The free room of each node: a pod holds its grant until none of its processes is alive."""
    by_name = {node.name: Room.of(node) for node in nodes}
    for pod in pods:
        if not pod.phase.is_final and pod.node in by_name:
            by_name[pod.node].take(pod.grant)
    return list(by_name.values())


def place(spec: Training, free: list[Room]) -> tuple[Placement, ...] | None:
    """Nodes for the whole gang, taking the room in ``free``; None, with nothing taken, when it does not fit."""
    trial = [Room(room.node, room.cpu_milli, room.memory_bytes, dict(room.gpu_milli)) for room in free]
    placed: list[Placement] = []
    for index in range(spec.nodes):
        for room in trial:
            grant = room.fit(spec.resources)
            if grant is not None:
                room.take(grant)
                placed.append(Placement(index=index, node=room.node.name, grant=grant))
                break
        else:
            return None
    by_name = {room.node.name: room for room in free}
    for item in placed:
        by_name[item.node].take(item.grant)
    return tuple(placed)


def why_never(spec: Training, nodes: tuple[Node, ...]) -> Reason | None:
    """Why the gang would not fit even if nothing else ran; None when it would."""
    empty = [Room.of(replace(node, ready=True, closed=None)) for node in nodes]
    if place(spec, empty) is not None:
        return None
    need = f"{plural(spec.nodes, 'node')} with {say_resources(spec.resources)} each"
    capacity = "; ".join(_say_capacity(node) for node in nodes[:3]) or "no node at all"
    return Reason(
        code=Code.CANNOT_FIT,
        message=f"{spec.name} needs {need}, which can never fit here: {_shortfall(spec, nodes)}. There is {capacity}.",
        remedy=f"Ask for less ({_what_to_lower(spec, nodes)}), or run it on a larger cluster.",
    )


def why_waiting(spec: Training, free: list[Room], holders: Mapping[str, Resources]) -> Reason:
    """Why the gang does not fit now although it could; ``holders`` are the running workloads and their shares."""
    need = f"{plural(spec.nodes, 'node')} with {say_resources(spec.resources)} each"
    freest = "; ".join(_say_free(room, spec) for room in free[:3])
    held = ", ".join(sorted(holders)[:5]) or "nothing of ours"
    first = sorted(holders)[0] if holders else None
    return Reason(
        code=Code.WAITING_FOR_RESOURCES,
        message=f"needs {need}; {freest}; held by {held}",
        remedy=f"It starts when {held} ends; `fairlead suspend {first}` would free it now." if first else None,
    )


def _matches(gpu: Gpu, request: GpuRequest) -> bool:
    if request.model is not None and request.model.lower() not in gpu.model.lower():
        return False
    return request.min_memory_bytes is None or gpu.memory_bytes >= request.min_memory_bytes


def _say_capacity(node: Node) -> str:
    gpus = (
        f"{plural(len(node.gpus), 'GPU')} ({', '.join(sorted({g.model for g in node.gpus}))})"
        if node.gpus
        else "0 GPUs"
    )
    return f"{node.name} with {gpus}, {say_cpu(node.cpu_milli)}, {say_memory(node.memory_bytes)} of memory"


def _say_free(room: Room, spec: Training) -> str:
    if not room.node.ready or room.node.closed is not None:
        return f"{room.node.name} is {room.node.closed or 'not ready'}"
    parts = []
    if spec.resources.gpu is not None:
        matching = room.matching(spec.resources.gpu)
        idle = sum(room.gpu_milli[gpu.uuid] for gpu in matching) / WHOLE_GPU
        parts.append(f"{idle:g} of {len(matching)} GPUs")
    if spec.resources.cpu_milli is not None:
        parts.append(f"{max(0, room.cpu_milli) / 1000:g} of {say_cpu(room.node.cpu_milli)}")
    if spec.resources.memory_bytes is not None:
        parts.append(f"{say_memory(max(0, room.memory_bytes))} of {say_memory(room.node.memory_bytes)}")
    return f"{room.node.name} has {', '.join(parts)} free"


def _shortfall(spec: Training, nodes: tuple[Node, ...]) -> str:
    one = spec.resources
    short = []
    if one.gpu is not None:
        most = max((len(Room.of(node).matching(one.gpu)) for node in nodes), default=0)
        if most < one.gpu.num_devices:
            short.append(f"{say_gpu(one.gpu)} asked for on one node, the most on any is {most}")
    most_cpu = max((node.cpu_milli for node in nodes), default=0)
    if one.cpu_milli is not None and one.cpu_milli > most_cpu:
        short.append(f"{say_cpu(one.cpu_milli)} asked for on one node, the most on any is {say_cpu(most_cpu)}")
    most_memory = max((node.memory_bytes for node in nodes), default=0)
    if one.memory_bytes is not None and one.memory_bytes > most_memory:
        short.append(
            f"{say_memory(one.memory_bytes)} asked for on one node, the most on any is {say_memory(most_memory)}"
        )
    return "; ".join(short) or f"one member fits, {spec.nodes} together do not"


def _what_to_lower(spec: Training, nodes: tuple[Node, ...]) -> str:
    one = spec.resources
    if one.gpu is not None and all(len(Room.of(node).matching(one.gpu)) < one.gpu.num_devices for node in nodes):
        return "`resources.gpu`"
    if one.cpu_milli is not None and all(one.cpu_milli > node.cpu_milli for node in nodes):
        return "`resources.cpu`"
    if one.memory_bytes is not None and all(one.memory_bytes > node.memory_bytes for node in nodes):
        return "`resources.memory`"
    return "`nodes` or `resources`"
