"""Tests the nodes of a cluster by hand, by a short run in the queue like any other. See ``docs/preflight.md``."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fairlead.api import RunHandle, submit
from fairlead.cli.show import table
from fairlead.cluster.client import ClusterClient
from fairlead.control.admission import admit, with_images
from fairlead.errors import Conflict
from fairlead.runtime.network.__main__ import LEAST_NODES
from fairlead.specs.preflight import Preflight
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Launch, Training
from fairlead.state.snapshot import Node, Phase
from fairlead.text.quantities import plural
from fairlead.untrusted_json import parse_object

MOST_RESULT = 4 << 20
MORE_THAN_HALF = 0.6
"""The share of the cores of a node that a pod without GPUs asks for, so that no two pods share one."""


def run_for(nodes: Iterable[Node], test: Preflight, num_nodes: int, *, name: str) -> Training:
    """Return the run that tests a number of nodes, with a pod on each: all GPUs of a node, or more than half its cores.

    Raises:
        Conflict: No node can take a pod, or the test of GPUs finds none.
    """
    usable = [node for node in nodes if node.ready and node.closed is None]
    if not usable:
        raise Conflict("no node of the cluster takes pods now; `fairlead nodes` shows them")
    num_gpus = max(len(node.gpus) for node in usable)
    if test.gpu_s is not None and not num_gpus:
        raise Conflict("no node of the cluster has a GPU to test; `fairlead nodes` shows them")
    if num_gpus and (test.gpu_s is not None or all(node.gpus for node in usable)):
        resources = Resources(gpu=GpuRequest(milli=1000 * num_gpus))
    else:
        resources = Resources(cpu_milli=int(MORE_THAN_HALF * min(node.cpu_milli for node in usable)))
    seconds = (("--network", test.network_s), ("--gpu", test.gpu_s))
    options = " ".join(f"{option} {value:g}" for option, value in seconds if value is not None)
    return Training(
        name=name, run=f"python -m fairlead.runtime.preflight {options}", nodes=num_nodes,
        ranks_per_node=1, resources=resources, launch=Launch.TORCHRUN,
    )  # fmt: skip


def result_of(cluster: ClusterClient, spec: Training, directory: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Submit such a run, wait for its end, and return what rank 0 printed as data.

    A run whose wait is interrupted is stopped.

    Raises:
        CannotFit: The cluster could never start it.
        Conflict: It did not succeed, or printed no result.
    """
    admitted = with_images(cluster, admit(cluster, spec, directory), tell)
    run = RunHandle(cluster, submit(cluster, admitted).uid)
    tell(f"Submitted {run.name}; it starts when {plural(spec.nodes, 'node')} have room.")
    try:
        status = run.wait()
    except BaseException:
        run.stop()
        raise
    if status.phase is not Phase.SUCCEEDED:
        raise Conflict(f"{run.name} has {status.phase.value.lower()}: {status.reason.message}")
    for line in reversed(list(run.logs())):
        try:
            return parse_object(line.text, max_bytes=MOST_RESULT)
        except ValueError:
            continue  # a line for people
    raise Conflict(f"{run.name} printed no result; `fairlead logs {run.name}` has its output")


def table_of(result: Mapping[str, Any]) -> str:
    """Return what people read of a result: a row for each node, and the median rate between two."""
    rows: list[tuple[str, ...]] = [("NODE", "GPUS", "TFLOP/S", "VERDICT", "WHY")]
    for node in result["nodes"]:
        rates = [gpu["tflops"] for gpu in result["gpus"] if gpu["node"] == node["node"]]
        span = f"{min(rates):.3g} to {max(rates):.3g}" if rates else "-"
        rows.append((node["node"], str(len(rates)), span, node["verdict"] or "fine", node["says"] or ""))
    lines = [table(rows)]
    network = result["network"]
    if network is not None:
        rate = f"a median of {network['median_gb_s']:.3g} GB/s between two" if network["median_gb_s"] else "no rate"
        lines.append(f"network: {plural(network['nodes'], 'node')}, {plural(network['rounds'], 'round')}: {rate}")
        if network["nodes"] < LEAST_NODES:
            lines.append(f"Of {network['nodes']} nodes nobody can say which is slow; measure {LEAST_NODES} or more.")
    return "\n".join(lines)
