"""Chooses what a run with ``memory: auto`` or ``cpu: auto`` asks for, from what the runs of its kind used.

The greatest use of the last few runs counts, not a mean: a run that lacks memory is killed, and its repetition costs
more than what the margin holds. It is 1.2 times that, about the margin of Kubernetes' vertical autoscaler (1.15 over
the 90th percentile of peaks). A run that is killed at its limit gets half as much again, which asks for at most 1.5
times what it needs and finds any need in few starts.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from fairlead.policy.placement.placement import why_never
from fairlead.policy.queue.durations import kind_of
from fairlead.specs.training import Training
from fairlead.state.plan import Change, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Completed, Node, Phase, Pod, Requests, Usage, Workload, with_requests
from fairlead.text.quantities import describe_cpu, describe_memory, plural

MARGIN = 1.2
LAST_RUNS = 5
MORE_AFTER_KILL = 1.5
MIB = 1024**2
# People read and compare these amounts, so that they are round.
LEAST_MEMORY_BYTES = 32 * MIB
LEAST_CPU_MILLI = 100


def is_unsized(workload: Workload) -> bool:
    """Return whether a run that waits is still to be given what it asks for."""
    status = workload.status
    return workload.spec.resources.is_auto and status.requests is None and status.phase is Phase.PENDING


def size(workload: Workload, completed: Sequence[Completed], nodes: Sequence[Node]) -> Change | None:
    """Give a run what it asks for; None for one that needs nothing of that."""
    if not is_unsized(workload):
        return None
    requests = requests_of(workload.spec, completed, nodes)
    reason = Reason(code=Code.SIZED, message=requests.why)
    status = replace(workload.status, requests=requests)
    event = Event(type=Code.SIZED.value, reason=reason)
    return Change(workload_uid=workload.uid, version=workload.version, status=status, event=event)


def requests_of(spec: Training, completed: Sequence[Completed], nodes: Sequence[Node]) -> Requests:
    """Return what a run asks for by what runs of its kind used, as many ranks on a node as it has."""
    ranks = spec.ranks_on_each_node
    alike = sorted(
        ((run.at, run.used) for run in completed if run.used is not None and kind_of(run) == kind_of(spec)),
        key=lambda found: found[0],
    )
    used = [each for _, each in alike if each.ranks == ranks][-LAST_RUNS:]
    name = kind_of(spec)[1]
    if not used:
        return Requests(why=f"no earlier run of {name} has told what it uses, so that it gets the defaults")
    runs = "its last run" if len(used) == 1 else f"its last {plural(len(used), 'run')}"
    memory = cpu = None
    said = []
    if spec.resources.memory_auto:
        most = max(each.memory_bytes for each in used)
        memory = _within(_rounded(MARGIN * most), most, [node.memory_bytes for node in nodes], MIB)
        said.append(f"memory {describe_memory(memory)}: {memory / most:.2g} times what {name} used in {runs}")
    if spec.resources.cpu_auto:
        most = max(1, max(each.cpu_milli for each in used))
        wanted = max(LEAST_CPU_MILLI, math.ceil(MARGIN * most / 100) * 100)
        cpu = _within(wanted, most, [node.cpu_milli for node in nodes], 1)
        said.append(f"{describe_cpu(cpu)}: {MARGIN:g} times its busiest minute in {runs}, {most / 1000:.2g}")
    return Requests(memory_bytes=memory, cpu_milli=cpu, why="; ".join(said))


def more_memory(workload: Workload, nodes: tuple[Node, ...]) -> Requests | None:
    """Return what a run asks for after it was killed at its memory limit; None where that is not ours to change, or
    no node has more."""
    spec = workload.spec
    limit = spec.resources.memory_bytes
    if not spec.resources.memory_auto or limit is None:
        return None
    most = max((node.memory_bytes for node in nodes), default=0) // MIB * MIB
    more = min(_rounded(MORE_AFTER_KILL * limit), most)
    before = workload.status.requests or Requests(why="")
    why = f"memory {describe_memory(more)}: {describe_memory(limit)} was not enough"
    requests = replace(before, memory_bytes=more, why=why)
    fits = more > limit and why_never(with_requests(spec, requests), nodes) is None
    return requests if fits else None


def used_by(workload: Workload, pods: Sequence[Pod]) -> Usage | None:
    """Return the greatest use of a run's pods so far; None where nobody measured it."""
    found = [pod.usage for pod in pods if pod.usage is not None]
    if workload.status.used is not None:
        found.append(workload.status.used)
    if not found:
        return None
    return Usage(
        memory_bytes=max(each.memory_bytes for each in found),
        cpu_milli=max(each.cpu_milli for each in found),
        ranks=workload.spec.ranks_on_each_node,
    )


def _rounded(memory_bytes: float) -> int:
    """Round up by at most a sixty-fourth, or to a whole MiB."""
    step = max(MIB, 1 << max(0, int(memory_bytes).bit_length() - 7))
    return max(LEAST_MEMORY_BYTES, math.ceil(memory_bytes / step) * step)


def _within(wanted: int, used: int, of_nodes: Sequence[int], step: int) -> int:
    """Return what is wanted, or all of the largest node where that has room for what was used, but no margin."""
    most = max(of_nodes, default=wanted) // step * step
    return most if used <= most < wanted else wanted
