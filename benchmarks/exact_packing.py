"""Random small instances of placing a list of gangs, and the same problem as a model for CP-SAT.

A placed gang is worth what it requests: the mean of its shares of all GPUs, cores and memory of the nodes. Fairlead
places gang after gang, skips those that do not fit, and moves nothing: in order of value, as for a list known in
advance; or in order of arrival, as a queue must. The optimum knows the whole list and may leave out any. The model
shares no code with the policy: how many members of each gang a node has, how many devices are given whole, and how the
others are cut (the patterns of Gilmore and Gomory, Oper. Res. 9, 1961).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from fairlead.policy.placement.free_capacity import rooms
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.placement.task_mix import TaskMix
from fairlead.state.snapshot import Gpu, Node

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

GIB = 1024**3
SCALE = 10**6
CORES_EACH, GIB_EACH = 12, 96
# Units of the solver's own deterministic time, about seconds. What is not proven by then counts with its upper bound.
PATIENCE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """So many members of one shape, all or none."""

    shape: Shape
    count: int


def instance(seed: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """What solves an instance by the policy, what is worth most first, and what solves it exactly."""
    nodes, gangs = draw(seed)
    largest_first = sorted(gangs, key=lambda gang: -worth(gang, nodes))
    return lambda: ours(nodes, largest_first), lambda: optimum(nodes, gangs)


def in_order(seed: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """The same in order of arrival."""
    nodes, gangs = draw(seed)
    return lambda: ours(nodes, gangs), lambda: optimum(nodes, gangs)


def draw(seed: int) -> tuple[list[Node], list[Gang]]:
    """Two to five nodes of up to eight GPUs, and gangs that ask for 70 to 130 % of the GPUs together."""
    random = Random(seed)
    nodes = [_node(f"node-{number}", random) for number in range(random.randint(2, 5))]
    wanted = random.uniform(0.7, 1.3) * WHOLE_GPU * sum(len(node.gpus) for node in nodes)
    gangs = list[Gang]()
    while sum(gang.count * gang.shape.total_gpu_milli for gang in gangs) < wanted:
        gangs.append(_gang(random))
    return nodes, gangs


def ours(nodes: Sequence[Node], gangs: Sequence[Gang]) -> float:
    """What is worth all that the policy places."""
    free = rooms(nodes, (), TaskMix.settled([(gang.shape, gang.count) for gang in gangs]))
    placed = [gang for gang in gangs if free.place(gang.shape, gang.count) is not None]
    return sum(worth(gang, nodes) for gang in placed) / SCALE


def worth(gang: Gang, nodes: Sequence[Node]) -> int:
    """Millionths of the cluster."""
    gpus = WHOLE_GPU * sum(len(node.gpus) for node in nodes)
    cpu, memory = sum(node.cpu_milli for node in nodes), sum(node.memory_bytes for node in nodes)
    shape = gang.shape
    parts = shape.total_gpu_milli / gpus + shape.cpu_milli / cpu + shape.memory_bytes / memory
    return round(SCALE * gang.count * parts / 3)


def optimum(nodes: Sequence[Node], gangs: Sequence[Gang]) -> float:
    """The most that can be placed, or a bound above it where that takes too long to prove."""
    from ortools.sat.python import cp_model  # nearly a second, with pandas

    model = cp_model.CpModel()
    there = [model.new_bool_var("") for _ in gangs]
    members = [[model.new_int_var(0, gang.count, "") for _ in nodes] for gang in gangs]
    for gang, is_there, on in zip(gangs, there, members, strict=True):
        model.add(cp_model.LinearExpr.sum(on) == gang.count * is_there)
    for i, node in enumerate(nodes):
        on_node = [(gang.shape, on[i]) for gang, on in zip(gangs, members, strict=True)]
        model.add(sum(shape.cpu_milli * number for shape, number in on_node) <= node.cpu_milli)
        model.add(sum(shape.memory_bytes // GIB * number for shape, number in on_node) <= node.memory_bytes // GIB)
        _add_devices(model, len(node.gpus), on_node)
    model.maximize(sum(worth(gang, nodes) * is_there for gang, is_there in zip(gangs, there, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = PATIENCE
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE), solver.status_name(status)
    return solver.best_objective_bound / SCALE


def _add_devices(model: cp_model.CpModel, num: int, on_node: Sequence[tuple[Shape, cp_model.IntVar]]) -> None:
    """The devices of a node: those that are given whole, and the others by which shares each of them has room for."""
    whole = sum(shape.num_gpus * number for shape, number in on_node if not shape.is_share)
    sizes = sorted({shape.gpu_milli for shape, _ in on_node if shape.is_share})
    cut = {pattern: model.new_int_var(0, num, "") for pattern in _patterns(WHOLE_GPU, sizes)}
    model.add(whole + sum(cut.values()) <= num)
    for at, size in enumerate(sizes):
        asked = sum(number for shape, number in on_node if shape.is_share and shape.gpu_milli == size)
        model.add(asked <= sum(pattern[at] * number for pattern, number in cut.items()))


def _patterns(left: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """How many shares of each size fill a device, such that no further one fits."""
    if not sizes:
        return
    first, *rest = sizes
    if not rest:
        yield (left // first,)
        return
    for number in range(left // first + 1):
        for others in _patterns(left - number * first, rest):
            if left - number * first - sum(n * size for n, size in zip(others, rest, strict=True)) < first:
                yield (number, *others)


def _node(name: str, random: Random) -> Node:
    num = random.choice((2, 4, 4, 8))
    gpus = tuple(Gpu(uuid=f"{name}-{i}", model="A100", memory_bytes=80 * GIB) for i in range(num))
    return Node(name=name, cpu_milli=1000 * CORES_EACH * num, memory_bytes=GIB_EACH * num * GIB, gpus=gpus)


def _gang(random: Random) -> Gang:
    """One of six shares, whole devices, or none; several members one time in four."""
    milli = random.choice((200, 300, 500, 700, 1000, 1000, 1000, 2000, 2000, 4000, 0))
    share = max(milli, 500) / WHOLE_GPU
    shape = Shape(
        cpu_milli=round(1000 * share * random.uniform(0.3, 1.1) * CORES_EACH),
        memory_bytes=max(1, round(share * random.uniform(0.2, 1.0) * GIB_EACH)) * GIB,
        num_gpus=-(-milli // WHOLE_GPU),
        gpu_milli=min(milli, WHOLE_GPU),
    )
    return Gang(shape=shape, count=random.choice((1, 1, 1, 1, 1, 1, 2, 3)))
