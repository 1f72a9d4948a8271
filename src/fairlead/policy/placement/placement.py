"""Places gangs, all pods or none, and explains why they wait or can never fit."""

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Protocol

from fairlead.frozen import dataclass
from fairlead.policy.gpu.gpu_sharing import choices, describe_parts, describe_shared, remedy
from fairlead.policy.placement.device_matching import serves
from fairlead.policy.placement.node_eligibility import Eligibility, doors_of, keeps_apart
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.specs.gang import GangSpec
from fairlead.specs.sharing import Sharing
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Gpu, Grant, Node
from fairlead.text.quantities import describe_cpu, describe_gpu, describe_memory, describe_need, describe_ways, plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One pod of a gang and its node."""

    index: int
    node: str
    grant: Grant


class Free(Protocol):
    """The free capacity of some nodes, and their eligibility for runs."""

    @property
    def doors(self) -> Eligibility:
        """Return which nodes accept which runs."""
        ...

    def freest(self, shape: Shape, most: int) -> "list[NodeCapacity]":
        """Return some nodes that come nearest to having room."""
        ...


class FreeCapacity(Free, Protocol):
    """The free capacity of some nodes."""

    @property
    def sharing(self) -> frozenset[Sharing]:
        """Return the ways in which parts of devices are isolated here."""
        ...

    def place(self, shape: Shape, count: int, peers: Sequence[str] = ()) -> tuple[tuple[str, Grant], ...] | None:
        """Allocate nodes and grants for so many pods; return None, with nothing allocated, if they do not all fit.

        Args:
            peers: The nodes of replicas of the same endpoint; others are preferred where that costs nothing.
        """
        ...

    def may_place(self, shape: Shape, count: int) -> bool:
        """Return whether so many pods fit; a gang may need more than that. Allocates nothing."""
        ...

    def hold(self, node: str, grant: Grant, times: int = 1) -> None:
        """Hold a grant on a node, even beyond what exists; with -1 release it."""
        ...

    def has(self, node: str, grant: Grant) -> bool:
        """Return whether the node exists, accepts pods, and has this grant free."""
        ...


@dataclass(slots=True)
class NodeCapacity:
    """The free capacity of one node, by the uuid of each device."""

    node: Node
    cpu_milli: int
    memory_bytes: int
    gpu_milli: dict[str, int]
    _such: dict[Shape, list[Gpu]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, node: Node) -> "NodeCapacity":
        """Return the capacity of an empty node."""
        return cls(node, node.cpu_milli, node.memory_bytes, {gpu.uuid: gpu.milli for gpu in node.gpus})

    def copy(self) -> "NodeCapacity":
        """Return an independent copy."""
        return NodeCapacity(self.node, self.cpu_milli, self.memory_bytes, dict(self.gpu_milli), self._such)

    def take(self, grant: Grant, times: int = 1) -> None:
        """Hold a grant; with -1 release it."""
        self.cpu_milli -= times * grant.cpu_milli
        self.memory_bytes -= times * grant.memory_bytes
        for gpu in self.node.gpus if grant.gpu_uuids else ():
            if gpu.uuid in grant.gpu_uuids:
                self.gpu_milli[gpu.uuid] -= times * (min(grant.gpu_milli, WHOLE_GPU) if gpu.divisible else gpu.milli)

    def such(self, shape: Shape) -> list[Gpu]:
        """Return ``matching`` of its node, cached for each shape."""
        if shape not in self._such:
            self._such[shape] = matching(self.node, shape)
        return self._such[shape]

    def has(self, grant: Grant) -> bool:
        """Return whether this grant is free on a node that accepts pods."""
        milli = min(grant.gpu_milli, WHOLE_GPU)
        return (
            takes_pods(self.node)
            and grant.cpu_milli <= max(0, self.cpu_milli)
            and grant.memory_bytes <= max(0, self.memory_bytes)
            and all(self.gpu_milli.get(uuid, 0) >= milli for uuid in grant.gpu_uuids)
        )

    def fit(self, shape: Shape) -> Grant | None:
        """Return what one pod would hold here; None if there is no room."""
        if not takes_pods(self.node) or self.node.name in shape.barred:
            return None
        if shape.cpu_milli > self.cpu_milli or shape.memory_bytes > self.memory_bytes:
            return None
        free = [gpu.uuid for gpu in self.such(shape) if self.gpu_milli[gpu.uuid] >= shape.gpu_milli]
        if len(free) < shape.num_gpus:
            return None
        # A share goes to the fullest device that still holds it, so that whole devices stay whole.
        free.sort(key=lambda uuid: self.gpu_milli[uuid])
        return grant_of(shape, tuple(free[: shape.num_gpus]))


def place(
    spec: GangSpec, free: FreeCapacity, peers: Sequence[str] = (), shape: Shape | None = None
) -> tuple[Placement, ...] | None:
    """Allocate nodes for the whole gang in ``free``; return None, with nothing allocated, if it does not fit.

    Args:
        peers: The nodes of replicas of the same endpoint.
        shape: The shape of a pod there, if known.
    """
    shape = shape_of(spec, free.doors) if shape is None else shape
    for sharing in choices(spec, free.sharing) if shape.is_share else (None,):
        placed = free.place(replace(shape, sharing=sharing) if shape.is_share else shape, spec.nodes, peers)
        if placed is not None:
            return tuple(Placement(index=i, node=node, grant=grant) for i, (node, grant) in enumerate(placed))
    return None


def may_place(spec: GangSpec, free: FreeCapacity, shape: Shape) -> bool:
    """Return whether enough pods of the gang fit; if not, ``place`` returns None."""
    ways = choices(spec, free.sharing) if shape.is_share else (None,)
    return any(
        free.may_place(replace(shape, sharing=sharing) if shape.is_share else shape, spec.nodes) for sharing in ways
    )


def has_room(spec: GangSpec, free: FreeCapacity) -> bool:
    """Return whether the whole gang would find room now."""
    placed = place(spec, free)
    for at in placed or ():
        free.hold(at.node, at.grant, -1)
    return placed is not None


def ways_of(gpus: Iterable[Gpu]) -> frozenset[Sharing]:
    """Return the ways in which parts of these devices are isolated."""
    return frozenset(gpu.sharing for gpu in gpus if gpu.sharing is not None)


def takes_pods(node: Node) -> bool:
    """Return whether a node accepts new pods, regardless of capacity."""
    return node.ready and node.closed is None


def grant_of(shape: Shape, gpu_uuids: tuple[str, ...]) -> Grant:
    """Return what a pod of the shape holds on these devices."""
    return Grant(
        cpu_milli=shape.cpu_milli, memory_bytes=shape.memory_bytes, gpu_uuids=gpu_uuids, gpu_milli=shape.gpu_milli
    )  # fmt: skip


def matching(node: Node, shape: Shape) -> list[Gpu]:
    """Return the devices of the node of the requested kind, free or not; none for a shape without devices."""
    if not shape.num_gpus:
        return []
    return [gpu for gpu in node.gpus if serves(gpu, shape)]


def why_never(spec: GangSpec, nodes: tuple[Node, ...]) -> Reason | None:
    """Return why the gang would not fit even if nothing else ran; None if it would."""
    barred = doors_of(tuple(nodes)).barred_for_good(spec)
    if _would_hold(spec, [node for node in nodes if node.name not in barred]):
        return None
    need = describe_need(spec)
    if barred and _would_hold(spec, nodes):
        text = "; ".join(f"{name} is {refusal.why}" for name, refusal in list(barred.items())[:3])
        return Reason(
            code=Code.CANNOT_FIT,
            message=f"{spec.name} needs {need}, and {_how_many(len(barred), len(nodes))} closed to it: {text}.",
            remedy=" ".join(sorted({refusal.remedy for refusal in barred.values()})),
        )
    capacity = "; ".join(_say_capacity(node) for node in nodes[:3]) or "no node at all"
    return Reason(
        code=Code.CANNOT_FIT,
        message=f"{spec.name} needs {need}, which can never fit here: {_shortfall(spec, nodes)}. There is {capacity}.",
        remedy=remedy(spec.resources, nodes)
        or f"Ask for less ({_what_to_lower(spec, nodes)}), or run it on a larger cluster.",
    )


def why_waiting(spec: GangSpec, free: Free, held_by: str = "", own: str | None = None) -> Reason:
    """Return why the gang does not fit now although it could.

    Args:
        held_by: The runs that hold something, as its team may know them.
        own: One of them that is of its team.
    """
    need = describe_need(spec)
    shape, barred = shape_of(spec, free.doors), free.doors.barred(spec)
    freest = "; ".join(
        f"{room.node.name} is {barred[room.node.name].why}"
        if room.node.name in barred and takes_pods(room.node)
        else _say_free(room, spec)
        for room in free.freest(shape, 3)
    )
    frees = f"; `fairlead suspend {own}` would free it now" if own else ""
    return Reason(
        code=Code.WAITING_FOR_RESOURCES,
        message=f"needs {need}; {freest}; held by {held_by or 'nothing of ours'}",
        remedy=f"It starts when {held_by} ends{frees}." if held_by else None,
    )


def shape_of(spec: GangSpec, doors: Eligibility) -> Shape:
    """Return the shape of a pod, with the nodes that do not accept it."""
    shape, barred, apart = Shape.of(spec.resources), doors.barred(spec), keeps_apart(spec.kubernetes)
    return replace(shape, barred=frozenset(barred), apart=apart) if barred or apart else shape


def _how_many(num: int, total: int) -> str:
    if num == total:
        return "the only node is" if num == 1 else f"all {total} nodes are"
    return f"{num} of {plural(total, 'node')} {'is' if num == 1 else 'are'}"


def _would_hold(spec: GangSpec, nodes: Iterable[Node]) -> bool:
    """Return whether the nodes would hold the gang if nothing else ran."""
    shape, missing = replace(Shape.of(spec.resources), apart=keeps_apart(spec.kubernetes)), spec.nodes
    for node in nodes:
        missing -= _most_members(node, shape, missing)
        if missing <= 0:
            return True
    return False


def _most_members(node: Node, shape: Shape, limit: int) -> int:
    """Return how many pods the node would hold if nothing else ran, at most ``limit``."""
    most = min(limit, 1) if shape.apart else limit
    if shape.cpu_milli:
        most = min(most, node.cpu_milli // shape.cpu_milli)
    if shape.memory_bytes:
        most = min(most, node.memory_bytes // shape.memory_bytes)
    if shape.num_gpus:
        held = sum(WHOLE_GPU // shape.gpu_milli if gpu.divisible else 1 for gpu in matching(node, shape))
        most = min(most, held // shape.num_gpus)
    return most


def _say_capacity(node: Node) -> str:
    models = f" ({', '.join(sorted({gpu.model for gpu in node.gpus}))})" if node.gpus else ""
    parts = sum(gpu.milli < WHOLE_GPU for gpu in node.gpus)
    whole = plural(len(node.gpus) - parts, "GPU") if parts < len(node.gpus) or not parts else ""
    gpus = " and ".join(
        text for text in (whole, f"{parts} {describe_parts(node.gpus, parts)}" if parts else "") if text
    )
    gpus += models
    return f"{node.name} with {gpus}, {describe_cpu(node.cpu_milli)}, {describe_memory(node.memory_bytes)} of memory"


def _say_free(room: NodeCapacity, spec: GangSpec) -> str:
    if not takes_pods(room.node):
        return f"{room.node.name} is {room.node.closed or 'not ready'}"
    parts = []
    if spec.resources.gpu is not None:
        devices = room.such(Shape.of(spec.resources))
        idle = sum(max(0, room.gpu_milli[gpu.uuid]) / gpu.milli for gpu in devices)
        what = describe_parts(devices) if any(gpu.milli < WHOLE_GPU for gpu in devices) else "GPUs"
        parts.append(f"{idle:g} of {len(devices)} {what}")
    if spec.resources.cpu_milli is not None:
        parts.append(f"{max(0, room.cpu_milli) / 1000:g} of {describe_cpu(room.node.cpu_milli)}")
    if spec.resources.memory_bytes is not None:
        parts.append(f"{describe_memory(max(0, room.memory_bytes))} of {describe_memory(room.node.memory_bytes)}")
    return f"{room.node.name} has {', '.join(parts)} free"


def _shortfall(spec: GangSpec, nodes: tuple[Node, ...]) -> str:
    one = spec.resources
    short = []
    if one.gpu is not None:
        most = max((len(matching(node, Shape.of(one))) for node in nodes), default=0)
        if most < one.gpu.num_devices:
            short.append(
                f"{describe_gpu(one.gpu)}{describe_ways(one)} requested on one node, the largest node has {most}"
            )
            if Shape.of(one).is_share:
                short.append(f"what may be shared is {describe_shared(nodes)}")
    most_cpu = max((node.cpu_milli for node in nodes), default=0)
    if one.pod_cpu_milli > most_cpu:
        short.append(
            f"{describe_cpu(one.pod_cpu_milli)} requested on one node, the largest node has {describe_cpu(most_cpu)}"
        )
    most_memory = max((node.memory_bytes for node in nodes), default=0)
    if one.pod_memory_bytes > most_memory:
        short.append(
            f"{describe_memory(one.pod_memory_bytes)} requested on one node, "
            f"the largest node has {describe_memory(most_memory)}"
        )
    return "; ".join(short) or f"one pod fits, {spec.nodes} together do not"


def _what_to_lower(spec: GangSpec, nodes: tuple[Node, ...]) -> str:
    one = spec.resources
    if one.gpu is not None and all(len(matching(node, Shape.of(one))) < one.gpu.num_devices for node in nodes):
        return "`resources.gpu`"
    if nodes and all(one.pod_cpu_milli > node.cpu_milli for node in nodes):
        return "`resources.cpu`"
    if nodes and all(one.pod_memory_bytes > node.memory_bytes for node in nodes):
        return "`resources.memory`"
    return "`nodes` or `resources`"
