"""``fairlead clusters``: list available clusters."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fairlead import __version__
from fairlead.cli.show import as_json, json_option, message, table
from fairlead.cli.target import LOCAL, Target, cluster_options
from fairlead.cluster.kubernetes.api.config import contexts
from fairlead.cluster.kubernetes.client.discovery import look_at_all
from fairlead.cluster.local.machine import node

if TYPE_CHECKING:
    from fairlead.cluster.kubernetes.client.discovery import InstalledOperator, Overview
    from fairlead.state.snapshot import Node


@click.command()
@cluster_options
@json_option
def clusters(target: Target, json_: bool) -> None:
    """List this machine and every context of the kubeconfig; `*` marks the one that commands use."""
    names, current = contexts()
    overviews = look_at_all(names, current)
    chosen = (target.context or current) if target.is_kubernetes else LOCAL
    if json_:
        print(as_json([_local_json(chosen), *(_json(overview, chosen) for overview in overviews)]))
        return
    head = ("", "NAME", "VERSION", "NODES", "GPUS", "OPERATOR", "WHERE")
    print(table([head, _local_row(chosen), *(_row(overview, chosen) for overview in overviews)]))
    if not overviews:
        message("No Kubernetes cluster is configured; set KUBECONFIG, or create ~/.kube/config.")


def _row(overview: "Overview", chosen: str | None) -> tuple[str, ...]:
    mark = "*" if overview.context == chosen else ""
    if overview.why is not None:
        return (mark, overview.context, "-", "-", "-", "-", f"unreachable: {overview.why}")
    nodes = "?" if overview.num_nodes is None else f"{overview.num_ready}/{overview.num_nodes}"
    gpus = "?" if overview.num_nodes is None else describe_gpus(overview.gpus)
    return (
        mark,
        overview.context,
        overview.version,
        nodes,
        gpus,
        describe_operator(overview.operator),
        overview.server,
    )


def describe_operator(operator: "InstalledOperator | None") -> str:
    """Describe the state of the operator in a few words."""
    if operator is None:
        return "-"
    if operator.unknown:
        return "?"
    if operator.leader is not None:
        return f"{operator.version or 'elsewhere'}, leading"
    if operator.version is not None or operator.replicas:
        return f"{operator.version or '?'}, no leader"
    return "none"


def describe_gpus(gpus: Mapping[str, int]) -> str:
    """Format numbers of GPUs by model."""
    return ", ".join(f"{number} {model}" for model, number in sorted(gpus.items())) or "0"


def _json(overview: "Overview", chosen: str | None) -> dict[str, Any]:
    return {
        "name": overview.context,
        "is_default": overview.context == chosen,
        "reachable": overview.why is None,
        **asdict(overview),
    }


def _local_row(chosen: str | None) -> tuple[str, ...]:
    mark = "*" if chosen == LOCAL else ""
    return (mark, LOCAL, __version__, "1/1", describe_gpus(_models(_node())), "starts by itself", "this machine")


def _local_json(chosen: str | None) -> dict[str, Any]:
    own = {"name": LOCAL, "is_default": chosen == LOCAL, "reachable": True, "version": __version__}
    return {**own, "num_nodes": 1, "num_ready": 1, "gpus": _models(_node())}


def _node() -> "Node":
    return node()


def _models(node: "Node") -> dict[str, int]:
    counts: dict[str, int] = {}
    for gpu in node.gpus:
        counts[gpu.model] = counts.get(gpu.model, 0) + 1
    return counts
