"""Converts a cluster's history to a trace and its nodes to pools, for ``simulate --from-cluster``.

The duration of a run that ended, for whatever reason, is the time for which it held its nodes. A run that has not ended
is censored: only a lower bound is known. Its duration is estimated as the median of similar runs that lasted as long,
by the estimator of Kaplan and Meier (JASA 1958), in which censored runs count for the time they were observed.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from fairlead.cluster.port import EventRecord
from fairlead.frozen import dataclass
from fairlead.policy.placement.node_eligibility import SPOT_MARKS, spot_label
from fairlead.policy.queue.durations import kind_of
from fairlead.specs.pool import CapacityType, Hardware, Pool, PoolGpu, Taint, TaintEffect
from fairlead.specs.resources import Resources
from fairlead.specs.training import Checkpoint, Training
from fairlead.state.snapshot import Node, Phase, Workload
from fairlead.traces.arrivals import Arrival
from fairlead.traces.reading import with_own_names

HOLDING = frozenset((Phase.STARTING, Phase.RUNNING, Phase.STOPPING))
FALLBACK_S = 3600.0
"""Duration of a run that has not held its nodes yet, in a history without ended runs."""
ENOUGH = 5
"""Minimum ended runs of one kind for estimates from that kind alone."""

_POOL_LABELS = (
    "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTime:
    """The time for which a run held its nodes; a lower bound if the run has not ended."""

    lasted_s: float
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The history of a cluster.

    Attributes:
        arrivals: In order of arrival, the first at 0.
        began_at: Unix time of the first arrival.
        num_censored: Number of arrivals that have not ended, whose durations are estimates.
        num_left_out: Number of runs that ended before they started.
    """

    arrivals: tuple[Arrival, ...]
    pools: tuple[Pool, ...]
    began_at: float
    num_censored: int
    num_left_out: int


def record(
    workloads: Iterable[Workload], events: Iterable[EventRecord], nodes: Iterable[Node], now: float
) -> Recording:
    """Record the history of workloads, and the current nodes."""
    records: defaultdict[str, list[EventRecord]] = defaultdict(list)
    for event in events:
        records[event.workload_uid].append(event)
    ordered = sorted(workloads, key=lambda run: (run.created_at, run.uid))
    seen = {run.uid: _seen(run, records[run.uid], now) for run in ordered}
    recorded = [run for run in ordered if seen[run.uid].lasted_s > 0 or not seen[run.uid].is_over]
    everybody = [seen[run.uid] for run in recorded]
    alike: defaultdict[tuple[str, str], list[HeldTime]] = defaultdict(list)
    for run in recorded:
        alike[kind_of(run.spec)].append(seen[run.uid])
    began_at = recorded[0].created_at if recorded else now
    arrivals = []
    for run in recorded:
        peers = alike[kind_of(run.spec)]
        history = peers if sum(peer.is_over for peer in peers) >= ENOUGH else everybody
        arrivals.append(
            Arrival(
                at_s=round(run.created_at - began_at, 3),
                duration_s=round(expected_s(seen[run.uid], history), 3),
                spec=_bare(run.spec),
            )
        )
    return Recording(
        arrivals=tuple(with_own_names(arrivals)),
        pools=pools_of(nodes),
        began_at=began_at,
        num_censored=sum(not lifetime.is_over for lifetime in everybody),
        num_left_out=len(ordered) - len(recorded),
    )


def expected_s(run: HeldTime, history: Sequence[HeldTime]) -> float:
    """Return the total duration of a run: the known one, or the median of those that lasted at least as long.

    If the median is beyond the last end in the history, return that end, or without any twice the duration so far.
    """
    if run.is_over:
        return run.lasted_s
    surviving, half = 1.0, None
    ends = sorted({lifetime.lasted_s for lifetime in history if lifetime.is_over})
    for end in ends:
        if end <= run.lasted_s:
            continue
        at_risk = sum(lifetime.lasted_s >= end for lifetime in history)
        surviving *= 1 - sum(lifetime.is_over and lifetime.lasted_s == end for lifetime in history) / at_risk
        if surviving <= 0.5:
            half = end
            break
    if half is not None:
        return half
    later = [end for end in ends if end > run.lasted_s]
    return later[-1] if later else 2 * run.lasted_s or FALLBACK_S


def pools_of(nodes: Iterable[Node]) -> tuple[Pool, ...]:
    """Group nodes into pools of equal hardware, price, capacity type and node pool."""
    alike: Counter[tuple[str, bool, tuple[Taint, ...], Hardware, float | None]] = Counter(
        (_stem(node), bool(_spot_taints(node)), _spot_taints(node), _hardware(node), node.price_per_hour)
        for node in nodes
    )
    used: Counter[str] = Counter()
    pools = []
    for (stem, is_spot, taints, hardware, price), count in sorted(
        alike.items(), key=lambda entry: (entry[0][0], -entry[1])
    ):
        used[stem] += 1
        pools.append(
            Pool(
                name=stem if used[stem] == 1 else f"{stem}-kind{used[stem]}",
                nodes=count,
                hardware=hardware,
                capacity_type=CapacityType.SPOT if is_spot else CapacityType.ON_DEMAND,
                price_per_hour=price,
                taints=taints,
            )
        )
    return tuple(pools)


def _seen(run: Workload, events: Sequence[EventRecord], now: float) -> HeldTime:
    """Compute how long a run held its nodes, by its events if they reach back to its start, else from start to end."""
    status = run.status
    if status.started_at is None:
        return HeldTime(lasted_s=0.0, is_over=status.phase.is_final)
    until = now if status.finished_at is None else status.finished_at
    phases = [(event.at, Phase(event.type)) for event in events if event.type in set(Phase)]
    whole_s = max(0.0, until - status.started_at)
    if not phases or phases[0][0] > status.started_at + 1.0:
        return HeldTime(lasted_s=whole_s, is_over=status.phase.is_final)
    held_s, since = 0.0, None
    for at, phase in phases:
        if phase in HOLDING:
            since = at if since is None else since
        elif since is not None:
            held_s, since = held_s + at - since, None
    if since is not None:
        held_s += until - since
    return HeldTime(lasted_s=min(whole_s, max(0.0, held_s)), is_over=status.phase.is_final)


def _bare(spec: Training) -> Training:
    """Reduce a spec to what a trace has: its queue settings, its size and its checkpoints."""
    requests = spec.resources
    return Training(
        name=spec.name,
        team=spec.team,
        run="simulated",
        nodes=spec.nodes,
        resources=Resources(gpu=requests.gpu, cpu_milli=requests.cpu_milli, memory_bytes=requests.memory_bytes),
        priority=spec.priority,
        max_duration_s=spec.max_duration_s,
        expected_duration_s=spec.expected_duration_s,
        capacity=spec.capacity,
        checkpoint=Checkpoint(every_s=spec.checkpoint.every_s),
    )


def _hardware(node: Node) -> Hardware:
    """Return the hardware of a node; a part of a device that is allocated by itself counts as a device."""
    gpu = None
    if node.gpus:
        first = node.gpus[0]
        gpu = PoolGpu(model=first.model or "GPU", count=len(node.gpus), memory_bytes=first.memory_bytes or None)
    return Hardware(cpu_milli=node.cpu_milli, memory_bytes=node.memory_bytes, gpu=gpu)


def _spot_taints(node: Node) -> tuple[Taint, ...]:
    """Return the spot taints, the only ones whose toleration a trace records; a spot label counts as one."""
    label = spot_label(node)
    tainted = {(taint.key, taint.value): taint for taint in (*node.taints, *(() if label is None else (label,)))}
    return tuple(
        Taint(key=taint.key, value=taint.value, effect=TaintEffect(taint.effect))
        for key, taint in tainted.items()
        if key in SPOT_MARKS
    )


def _stem(node: Node) -> str:
    """Return the name of a pool of such nodes."""
    labelled = next((node.labels[label] for label in _POOL_LABELS if node.labels.get(label)), None)
    hardware = f"{node.gpus[0].model}x{len(node.gpus)}" if node.gpus else "cpu"
    return re.sub(r"[^a-z0-9]+", "-", (labelled or hardware).lower())[:40].strip("-") or "nodes"
