"""``fairlead top``: current resource usage of runs."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from fairlead.cli.families import leaves
from fairlead.cli.live_top import watch_cluster
from fairlead.cli.names import RunName, find
from fairlead.cli.show import as_json, json_option, message, table
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.process_metrics import usages
from fairlead.cluster.usages import GpuUsage, PodUsage, Usages
from fairlead.deferred import deferred
from fairlead.text.quantities import describe_memory

if TYPE_CHECKING:
    from fairlead.cluster.kubernetes.client import pod_metrics
else:
    pod_metrics = deferred("fairlead.cluster.kubernetes.client.pod_metrics")


@click.command()
@click.argument("name", required=False, type=RunName())
@click.option("--watch", "-w", "watches", is_flag=True, help="Show the whole cluster, updated until q.")
@cluster_options
@json_option
def top(name: str | None, watches: bool, target: Target, json_: bool) -> None:
    """Show the CPU, memory and GPU usage of the pods of NAME, or of all runs, beside their requests.

    Unknown values are shown as `-`, with the reason. With --watch the terminal shows nodes with
    their GPUs, runs with their cost an hour, and why runs wait; Up and Down select a run, Enter shows its details.
    """
    if watches:
        _watch(target, name, json_=json_)
        return
    usage = _on_kubernetes(target, name) if target.is_kubernetes else _here(target, name)
    if json_:
        print(as_json(asdict(usage)))
    elif usage.pods:
        head = ("RUN", "POD", "PHASE", "NODE", "CPU", "MEMORY", "GPU", "GPU MEMORY")
        print(table([head, *(_row(pod) for pod in usage.pods)]))
    else:
        message("Nothing runs now." if name is None else f"{name} has no pod that runs now.")
    for why in usage.missing:
        message(f"{why[:1].upper()}{why[1:]}.")


def _watch(target: Target, name: str | None, *, json_: bool) -> None:
    if name is not None or json_:
        raise click.UsageError("--watch is of the whole cluster, in a terminal: give neither NAME nor --json.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("--watch needs a terminal; `fairlead status --watch` tells changes line by line.")
    watch_cluster(target.open())


def _on_kubernetes(target: Target, name: str | None) -> Usages:
    client = target.client()
    if name is None:
        return pod_metrics.usages(client, client.access.namespace)
    run = find(target.quietly(), name)
    return pod_metrics.usages(client, run.spec.team, run.spec.name)


def _here(target: Target, name: str | None) -> Usages:
    cluster = LocalCluster.open()
    runs = cluster.unfinished() if name is None else (find(target.quietly(), name),)
    return usages(cluster, leaves(cluster, runs))


def _row(pod: PodUsage) -> tuple[str, ...]:
    cpu = "-" if pod.cpu_milli is None else f"{pod.cpu_milli / 1000:.2f}"
    memory = "-" if pod.memory_bytes is None else describe_memory(pod.memory_bytes)
    return (
        pod.run,
        str(pod.index),
        pod.phase,
        pod.node,
        f"{cpu} of {pod.granted_cpu_milli / 1000:g}" if pod.granted_cpu_milli else cpu,
        f"{memory} of {describe_memory(pod.granted_memory_bytes)}" if pod.granted_memory_bytes else memory,
        _each(pod.gpus, lambda gpu: "-" if gpu.busy is None else f"{gpu.busy:.0%}"),
        _each(pod.gpus, lambda gpu: "-" if gpu.memory_bytes is None else describe_memory(gpu.memory_bytes)),
    )


def _each(gpus: tuple[GpuUsage, ...], say: Callable[[GpuUsage], str]) -> str:
    return ", ".join(map(say, gpus)) or "-"
