"""Defines the inputs of metrics: a cluster at one instant, with its costs and devices."""

from collections.abc import Iterable, Mapping
from dataclasses import field

from fairlead.cluster.usages import GpuUsage
from fairlead.control.pass_counts import PassCounts
from fairlead.frozen import dataclass
from fairlead.ledger.goodput import Goodput
from fairlead.ledger.usage import WHOLE, share_of
from fairlead.state.node_pools import pool_name
from fairlead.state.shared_limits import by_turns
from fairlead.state.snapshot import Node, Pod, Snapshot, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUsage:
    """A run's usage so far; None where it is not recorded, or no price is known."""

    goodput: Goodput | None = None
    cost_microusd: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """A device as NVML, or a DCGM exporter on Kubernetes, reports it; None for values it does not report.

    Attributes:
        utilization: Share of the last sample period in which it was busy, from 0 to 1.
    """

    node: str
    uuid: str
    utilization: float | None = None
    memory_used_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None


def gpu_reading(node: str, usage: GpuUsage) -> GpuReading:
    """Convert the usage of a device of a node."""
    return GpuReading(
        node=node,
        uuid=usage.name,
        utilization=usage.busy,
        memory_used_bytes=usage.memory_bytes,
        power_watts=usage.power_watts,
        temperature_celsius=usage.temperature_celsius,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """A cluster at one instant.

    Attributes:
        counts: Counters of the loop; None if no loop answers.
        usage: Usage by uid of the run.
        month: Micro-dollars of this calendar month, UTC, by team and use.
        models: The same by model.
        held: Uids of runs by node and UUID of the devices that they hold, if grants do not name devices by UUID.
    """

    now: float
    seen: Snapshot
    counts: PassCounts | None = None
    usage: Mapping[str, RunUsage] = field(default_factory=dict)
    month: Mapping[tuple[str, str], int] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)
    gpus: tuple[GpuReading, ...] = ()
    held: Mapping[tuple[str, str], str] = field(default_factory=dict)


def pool_of(node: Node) -> str:
    """Return the pool of a node."""
    return pool_name(node.name, node.labels)


def dollars_per_hour(
    pods: Iterable[Pod], nodes: Mapping[str, Node], held: Mapping[tuple[str, str], int] | None = None
) -> float | None:
    """Sum up the hourly cost of live pods, divided as in bills; None if the price of none of their nodes is known.

    Args:
        held: Number of pods that hold each GPU whole, from ``whole_holders``.
    """
    amount, is_priced = 0.0, False
    for pod in pods:
        node = nodes.get(pod.node)
        if node is not None and node.price_per_hour is not None:
            amount, is_priced = amount + node.price_per_hour * share_of(pod.grant, node, held) / WHOLE, True
    return amount if is_priced else None


def shown_runs(seen: Snapshot, most: int) -> tuple[list[Workload], int]:
    """Return the runs with series of their own, and the number of others.

    One of each team in turn: of a team, holders of nodes first, then the oldest.
    """
    holding = {pod.workload_uid for pod in seen.pods if not pod.phase.is_final}
    runs = [run for run in seen.workloads if not run.status.phase.is_final]
    runs.sort(key=lambda run: (run.uid not in holding, run.created_at, run.uid))
    return by_turns(runs, lambda run: run.spec.team, most), max(0, len(runs) - most)
