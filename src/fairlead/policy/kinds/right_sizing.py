"""Chooses the requests of a run with ``memory``, ``cpu`` or GPU memory ``auto`` from the usage of runs of its kind.

The maximum over the last few runs counts, not a mean: a run that lacks memory is killed, and its repetition costs more
than the margin. The request is 1.2 times that, about the margin of Kubernetes' vertical autoscaler (1.15 over the 90th
percentile of peaks). A run that is killed at its limit gets half as much again, which requests at most 1.5 times its
need and reaches any need in few starts.

A recommendation of Kubernetes' vertical autoscaler is one more source: the larger counts. Its target is 1.15 times the
90th percentile of peaks, and a tenth of peaks may exceed that, so that it gets an additional margin.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from fairlead.policy.placement.placement import why_never
from fairlead.policy.queue.durations import kind_of
from fairlead.specs.resources import MOST_BYTES, MOST_CPU_MILLI
from fairlead.specs.training import Training
from fairlead.state.plan import Change, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import (
    Completed,
    Node,
    Phase,
    Pod,
    Recommendation,
    Requests,
    Snapshot,
    Usage,
    Workload,
    with_requests,
)
from fairlead.text.quantities import describe_cpu, describe_memory, plural

MARGIN = 1.2
RECOMMENDED_MARGIN = 1.1
LAST_RUNS = 5
MORE_AFTER_KILL = 1.5
MIB = 1024**2
# People read and compare these amounts, so they are rounded.
LEAST_MEMORY_BYTES = 32 * MIB
LEAST_CPU_MILLI = 100


def is_unsized(workload: Workload) -> bool:
    """Return whether a pending run still needs its requests decided."""
    status = workload.status
    return workload.spec.resources.is_auto and status.measured.requests is None and status.phase is Phase.PENDING


def size(workload: Workload, snapshot: Snapshot) -> Change | None:
    """Return the change that sets a run's requests; None if they need no decision."""
    if not is_unsized(workload):
        return None
    requests = requests_of(workload.spec, snapshot.completed, snapshot.nodes, snapshot.recommended)
    reason = Reason(code=Code.SIZED, message=requests.why)
    status = replace(workload.status, measured=replace(workload.status.measured, requests=requests))
    event = Event(type=Code.SIZED.value, reason=reason)
    return Change(workload_uid=workload.uid, version=workload.version, status=status, event=event)


def requests_of(
    spec: Training,
    completed: Sequence[Completed],
    nodes: Sequence[Node],
    recommended: Sequence[Recommendation] = (),
) -> Requests:
    """Return a run's requests: the larger of recommendations and usage by similar runs with as many ranks per node."""
    ranks, (team, name) = spec.ranks_on_each_node, kind_of(spec)
    timed_usages = sorted(
        ((run.at, run.used) for run in completed if run.used is not None and kind_of(run) == (team, name)),
        key=lambda pair: pair[0],
    )
    usages = [usage for _, usage in timed_usages if usage.ranks == ranks][-LAST_RUNS:]
    matching = [
        recommendation for recommendation in recommended if (recommendation.team, recommendation.name) == (team, name)
    ]
    if not usages and not matching:
        return Requests(why=f"no earlier run of {name} has told what it uses, so that it gets the defaults")
    runs = "its last run" if len(usages) == 1 else f"its last {plural(len(usages), 'run')}"
    memory, cpu = list[_SourcedAmount](), list[_SourcedAmount]()
    if usages:
        peak_bytes = max(1, *(usage.memory_bytes for usage in usages), 0)
        peak_milli = max(1, *(usage.cpu_milli for usage in usages), 0)
        request_bytes = _memory(MARGIN * peak_bytes, peak_bytes, nodes)
        memory.append((request_bytes, f"{request_bytes / peak_bytes:.2g} times what {name} used in {runs}"))
        cpu_source = f"{MARGIN:g} times its busiest minute in {runs}, {peak_milli / 1000:.2g}"
        cpu.append((_cpu(MARGIN * peak_milli, peak_milli, nodes), cpu_source))
    for recommendation in matching:
        source = f"{RECOMMENDED_MARGIN:g} times what {recommendation.by} recommends"
        if recommendation.memory_bytes:
            memory.append(
                (_memory(RECOMMENDED_MARGIN * recommendation.memory_bytes, recommendation.memory_bytes, nodes), source)
            )
        if recommendation.cpu_milli:
            cpu.append((_cpu(RECOMMENDED_MARGIN * recommendation.cpu_milli, recommendation.cpu_milli, nodes), source))
    reasons = []
    gpu = None if spec.resources.gpu is None or not spec.resources.gpu.memory_auto else _gpu_memory(usages, nodes)
    if gpu is not None:
        reasons.append(f"GPUs with {describe_memory(gpu)}: {MARGIN:g} times what {name} used of one in {runs}")
    if spec.resources.memory_auto and memory:
        reasons.append(f"memory {_largest(memory, describe_memory)}")
    if spec.resources.cpu_auto and cpu:
        reasons.append(_largest(cpu, describe_cpu))
    return Requests(
        memory_bytes=max(memory)[0] if spec.resources.memory_auto and memory else None,
        cpu_milli=max(cpu)[0] if spec.resources.cpu_auto and cpu else None,
        gpu_memory_bytes=gpu,
        why="; ".join(reasons)
        or f"{_source_of_nothing(matching)} nothing of what {name} leaves open, so that it gets the defaults",
    )


def _gpu_memory(usages: Sequence[Usage], nodes: Sequence[Node]) -> int | None:
    """Return the memory that each GPU must have; None if none of the runs has told what it used."""
    peak_bytes = max((usage.gpu_memory_bytes for usage in usages if usage.gpu_memory_bytes is not None), default=None)
    if peak_bytes is None:
        return None
    return _bounded(
        _rounded(MARGIN * peak_bytes),
        peak_bytes,
        [gpu.memory_bytes for node in nodes for gpu in node.gpus],
        MIB,
        MOST_BYTES,
    )


def _source_of_nothing(matching: Sequence[Recommendation]) -> str:
    return f"{matching[0].by} says" if matching else "its earlier runs have told"


_SourcedAmount = tuple[int, str]
"""An amount and its source."""


def _largest(sources: Sequence[_SourcedAmount], describe: Callable[[int], str]) -> str:
    """Describe the largest amount with its source, and the smaller ones."""
    chosen, *smaller = sorted(sources, key=lambda source: -source[0])
    others = "".join(f" (rather than {describe(amount)}, {why})" for amount, why in smaller)
    return f"{describe(chosen[0])}: {chosen[1]}{others}"


def _memory(wanted_bytes: float, used_bytes: int, nodes: Sequence[Node]) -> int:
    return _bounded(_rounded(wanted_bytes), used_bytes, [node.memory_bytes for node in nodes], MIB, MOST_BYTES)


def _cpu(wanted_milli: float, used_milli: int, nodes: Sequence[Node]) -> int:
    wanted = max(LEAST_CPU_MILLI, math.ceil(wanted_milli / 100) * 100)
    return _bounded(wanted, used_milli, [node.cpu_milli for node in nodes], 1, MOST_CPU_MILLI)


def more_memory(workload: Workload, nodes: tuple[Node, ...]) -> Requests | None:
    """Return a run's requests after a kill at its memory limit; None if they are fixed, or no node has more."""
    spec = workload.spec
    limit = spec.resources.memory_bytes
    if not spec.resources.memory_auto or limit is None:
        return None
    largest_node_bytes = max((node.memory_bytes for node in nodes), default=0) // MIB * MIB
    raised_bytes = min(_rounded(MORE_AFTER_KILL * limit), largest_node_bytes)
    requests_before = workload.status.measured.requests or Requests(why="")
    why = f"memory {describe_memory(raised_bytes)}: {describe_memory(limit)} was not enough"
    requests = replace(requests_before, memory_bytes=raised_bytes, why=why)
    fits = raised_bytes > limit and why_never(with_requests(spec, requests), nodes) is None
    return requests if fits else None


def more_gpu_memory(workload: Workload, nodes: tuple[Node, ...]) -> Requests | None:
    """Return a run's requests after its GPUs had too little memory; None if they are fixed, or no node has more."""
    gpu = workload.spec.resources.gpu
    if gpu is None or not gpu.memory_auto or gpu.min_memory_bytes is None:
        return None
    largest_gpu_bytes = max((device.memory_bytes for node in nodes for device in node.gpus), default=0) // MIB * MIB
    raised_bytes = min(_rounded(MORE_AFTER_KILL * gpu.min_memory_bytes), largest_gpu_bytes)
    requests_before = workload.status.measured.requests or Requests(why="")
    why = f"GPUs with {describe_memory(raised_bytes)}: {describe_memory(gpu.min_memory_bytes)} was not enough"
    requests = replace(requests_before, gpu_memory_bytes=raised_bytes, why=why)
    fits = raised_bytes > gpu.min_memory_bytes and why_never(with_requests(workload.spec, requests), nodes) is None
    return requests if fits else None


def used_by(workload: Workload, pods: Sequence[Pod]) -> Usage | None:
    """Return the peak usage of a run's pods so far; None if not measured."""
    usages = [pod.usage for pod in pods if pod.usage is not None]
    if workload.status.measured.usage is not None:
        usages.append(workload.status.measured.usage)
    if not usages:
        return None
    return Usage(
        memory_bytes=max(usage.memory_bytes for usage in usages),
        cpu_milli=max(usage.cpu_milli for usage in usages),
        gpu_memory_bytes=max(
            (usage.gpu_memory_bytes for usage in usages if usage.gpu_memory_bytes is not None), default=None
        ),
        ranks=workload.spec.ranks_on_each_node,
    )


def _rounded(memory_bytes: float) -> int:
    """Round up by at most a sixty-fourth, or to a whole MiB."""
    step = max(MIB, 1 << max(0, int(memory_bytes).bit_length() - 7))
    return max(LEAST_MEMORY_BYTES, math.ceil(memory_bytes / step) * step)


def _bounded(wanted: int, used: int, node_amounts: Sequence[int], step: int, limit: int) -> int:
    """Return the wanted amount, or all of the largest node if that holds what was used, but not the margin.

    ``limit`` is the most that a spec may request: programs and objects of tenants may report any amount.
    """
    largest = max(node_amounts, default=wanted) // step * step
    return min(largest if used <= largest < wanted else wanted, limit)
