"""Replays the steps of a distributed training with other durations of its operations, for many scenarios at once.

All steps of a trace have one structure, so it is walked once, with arrays of scenarios and steps as values. The rules:

- A worker has five streams: computation with collectives, and sends and receives in both directions. An operation
  starts when the one before it in its stream has ended.
- The i-th computation that needs an input also waits for the i-th receive; the i-th send waits for the i-th computation
  that produces an output. A receive is posted when the receive before it has ended.
- The members of a collective, and a send with its receive, start when all of them are ready.

The own time of a group's member is its end less the latest start of the group: before that it waited. These are the
rules of Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), section 3,
with the times of receives as their simulator has them.

See decision 215.
"""

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fairlead.frozen import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairlead.state.step_operations import StepOperations

FORWARD, BACKWARD = "forward-compute", "backward-compute"
TRANSFERS = {
    # send, receive, computation, and the stage that the send goes to
    "forward": ("forward-send", "forward-recv", FORWARD, 1),
    "backward": ("backward-send", "backward-recv", BACKWARD, -1),
}
OF_STAGE = frozenset({"params-all-gather", "grads-reduce-scatter"})
OF_DATA_RANK = frozenset({"embedding-grads-all-reduce"})
OF_ALL = frozenset({"optimizer-clip-main-grad"})
COMPUTATION = frozenset({FORWARD, BACKWARD, "layernorm-grads-all-reduce", "optimizer", "gc"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGraph:
    """The structure that all steps share, and the own times of its operations.

    Attributes:
        kinds: Names of the kinds of operations.
        kind, data_rank, stage, number: Of each operation of a step; arrays of one length.
        own_s: Own times in seconds, an operation in each row and a step in each column.
        order: Groups of operations that start together, in an order in which they can be walked.
        before: Of each operation those that it waits for.
        steps: The numbers of the steps.
    """

    kinds: tuple[str, ...]
    kind: "NDArray[np.int64]"
    data_rank: "NDArray[np.int64]"
    stage: "NDArray[np.int64]"
    number: "NDArray[np.int64]"
    own_s: "NDArray[np.float64]"
    order: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]
    steps: "NDArray[np.int64]"


def step_graph(operations: "StepOperations") -> StepGraph:
    """Return the structure of the steps of a trace; a step that lacks operations of the first one is left out.

    Raises:
        ValueError: The operations of a step wait for one another, so that no order is possible.
    """
    kinds = operations.kinds
    key = np.stack([operations.data_rank, operations.stage, operations.kind, operations.number])
    steps, index, counts = np.unique(operations.step, return_inverse=True, return_counts=True)
    order = np.lexsort((*key[::-1], index))
    num = int(np.bincount(counts).argmax())
    chosen = [step for step in range(len(steps)) if counts[step] == num]
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = np.stack([order[starts[step] : starts[step + 1]] for step in chosen], axis=1)
    alike = [column for column in range(rows.shape[1]) if (key[:, rows[:, column]] == key[:, rows[:, 0]]).all()]
    rows, steps = rows[:, alike], steps[[chosen[column] for column in alike]]
    first = rows[:, 0]
    data_rank, stage, kind, number = key[:, first]
    groups, before = _structure(
        kinds, kind, data_rank, stage, number, operations.start_s[first], operations.chunk[first]
    )
    start_s, duration_s = operations.start_s[rows], operations.duration_s[rows]
    own_s = duration_s.copy()
    for group in groups:
        if len(group) > 1:
            members = list(group)
            latest = start_s[members].max(axis=0)
            own_s[members] = np.maximum(start_s[members] + duration_s[members] - latest, 0.0)
    return StepGraph(
        kinds=kinds, kind=kind, data_rank=data_rank, stage=stage, number=number, own_s=own_s,
        order=_walkable(groups, before), before=before, steps=steps,
    )  # fmt: skip


def step_times(graph: StepGraph, own_s: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return the seconds of each step.

    Args:
        own_s: Own times, with an operation of the graph in each row; further axes are scenarios and steps.
    """
    ends = np.empty_like(own_s)
    zero = np.zeros(own_s.shape[1:])
    for group in graph.order:
        ready = zero
        waits = [earlier for member in group for earlier in graph.before[member]]
        if waits:
            ready = ends[waits[0]]
            for earlier in waits[1:]:
                ready = np.maximum(ready, ends[earlier])
        for member in group:
            np.add(ready, own_s[member], out=ends[member])
    result: NDArray[np.float64] = ends.max(axis=0)
    return result


def _structure(
    kinds: tuple[str, ...],
    kind: "NDArray[np.int64]",
    data_rank: "NDArray[np.int64]",
    stage: "NDArray[np.int64]",
    number: "NDArray[np.int64]",
    start_s: "NDArray[np.float64]",
    chunk: "NDArray[np.int64]",
) -> tuple[list[tuple[int, ...]], tuple[tuple[int, ...], ...]]:
    """Return the groups of operations that start together, and what each operation waits for."""
    names = [kinds[index] for index in kind.tolist()]
    data, stages = data_rank.tolist(), stage.tolist()
    streams: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    computed: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    moves = {name for send, receive, _, _ in TRANSFERS.values() for name in (send, receive)}
    for index in np.lexsort((number, start_s)).tolist():
        name = names[index]
        streams[data[index], stages[index], name if name in moves else "compute"].append(index)
        if name in (FORWARD, BACKWARD):
            computed[data[index], stages[index], name].append(index)
    before: list[list[int]] = [[] for _ in names]
    for stream in streams.values():
        for earlier, later in pairwise(stream):
            before[later].append(earlier)
    last = int(chunk.max())
    num_stages = int(stage.max()) + 1
    together: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for send, receive, computation, direction in TRANSFERS.values():
        entry, exit_ = (0, last) if direction > 0 else (last, 0)
        for (d, s, name), own in computed.items():
            if name != computation:
                continue
            inputs = [index for index in own if chunk[index] != entry]
            outputs = [index for index in own if chunk[index] != exit_]
            for index, received in zip(inputs, streams.get((d, s, receive), ()), strict=False):
                before[index].append(received)
            for count, (index, sent) in enumerate(zip(outputs, streams.get((d, s, send), ()), strict=False)):
                before[sent].append(index)
                together[send, d, (s + direction) % num_stages, count].append(sent)
        for (d, s, name), received_all in streams.items():
            if name == receive:
                for count, received in enumerate(received_all):
                    together[send, d, s, count].append(received)
    for index, name in enumerate(names):
        if name in OF_STAGE:
            together[name, stages[index], number[index]].append(index)
        elif name in OF_DATA_RANK:
            together[name, data[index], number[index]].append(index)
        elif name in OF_ALL:
            together[name, number[index]].append(index)
        elif name not in moves:
            together[index,].append(index)
    grouped = {index for group in together.values() for index in group}
    alone = [(index,) for index in range(len(names)) if index not in grouped]
    return [tuple(group) for group in together.values()] + alone, tuple(tuple(waits) for waits in before)


def _walkable(groups: list[tuple[int, ...]], before: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return the groups in an order in which everything that one waits for comes first (Kahn's algorithm)."""
    of = {index: number for number, group in enumerate(groups) for index in group}
    waits = [{of[earlier] for index in group for earlier in before[index]} for group in groups]
    after: dict[int, list[int]] = defaultdict(list)
    for number, earlier in enumerate(waits):
        for other in earlier:
            after[other].append(number)
    missing = [len(earlier) for earlier in waits]
    ready = [number for number, count in enumerate(missing) if not count]
    for number in ready:
        for later in after[number]:
            missing[later] -= 1
            if not missing[later]:
                ready.append(later)
    if len(ready) < len(groups):
        raise ValueError(f"{len(groups) - len(ready)} groups of operations wait for one another")
    return tuple(groups[number] for number in ready)
