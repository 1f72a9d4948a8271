"""Reads from a node which layout its GPUs have and how far a change of it is, and renders the steps. Pure.

NVIDIA's MIG manager takes the name of a layout from one label and reports the result in another; the device plugin
takes it from its own label, and shows it by the resources that it offers. The change itself is in an annotation,
written in the same request that cordons the node, and removed in the one that uncordons it.
"""

import json
from collections.abc import Mapping
from typing import Any

from fairlead.cluster.kubernetes.api.objects import NodeObject
from fairlead.cluster.kubernetes.names import PARTITIONING, PARTITIONS_FAILED
from fairlead.policy.gpu.device_inventory import layout_of
from fairlead.specs.pool import Pool
from fairlead.state.partitions import (
    ManagerState,
    PartitionAction,
    PartitionChange,
    PartitionedNode,
    PartitionStep,
)
from fairlead.state.snapshot import Node
from fairlead.untrusted_json import moment, parse_object, text

MIG_CONFIG, MIG_STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
PLUGIN_CONFIG = "nvidia.com/device-plugin.config"
MOST_BYTES = 256 << 10


def partitioned_node(pool: Pool, seen: NodeObject, node: Node) -> PartitionedNode:
    """Return a node of a pool with layouts, as decisions see it.

    Raises:
        InvalidSpec: A layout does not fit on the pool's GPUs.
    """
    assert pool.partitions is not None, "its pool has layouts"
    requested = seen.labels.get(PLUGIN_CONFIG if pool.partitions.by_device_plugin else MIG_CONFIG)
    return PartitionedNode(
        node=node.name,
        pool=pool,
        layout=layout_of(pool, node.gpus, requested),
        requested=requested,
        manager_state=ManagerState.UNKNOWN if pool.partitions.by_device_plugin else _manager_state(seen.labels),
        change=read_change(seen.partitioning),
        failed=_times(seen.partitions_failed),
    )


def read_change(annotation: str) -> PartitionChange | None:
    """Return the change that a node is in; None if there is none, or its annotation cannot be read."""
    try:
        content = parse_object(annotation, max_bytes=MOST_BYTES)
    except ValueError:
        return None
    to, back, since = text(content.get("to")), text(content.get("back")), moment(content.get("since"))
    return None if to is None or back is None or since is None else PartitionChange(to=to, back=back, since=since)


def render_step(step: PartitionStep, node: PartitionedNode, seen: NodeObject, now: float) -> dict[str, Any]:
    """Render a merge patch of the node, which applies only to the version that was read."""
    assert node.pool.partitions is not None, "its pool has layouts"
    metadata: dict[str, Any] = {"resourceVersion": str(seen.version)}
    annotations: dict[str, str | None] = {}
    spec: dict[str, Any] = {}
    if step.action is PartitionAction.CORDON:
        annotations[PARTITIONING] = _way(step.to, node.layout or step.to, now)
        spec = {"unschedulable": True}
    elif step.action in (PartitionAction.RELABEL, PartitionAction.REVERT):
        assert node.change is not None, "it is on its way"
        annotations[PARTITIONING] = _way(step.to, node.change.back, now)
        # The manager's state for the previous layout would be mistaken for that of the new one.
        labels = {PLUGIN_CONFIG: step.to}
        if not node.pool.partitions.by_device_plugin:
            labels = {MIG_CONFIG: step.to, MIG_STATE: ManagerState.PENDING.value}
        metadata["labels"] = labels
    else:
        annotations[PARTITIONING] = None
        spec = {"unschedulable": None}
    if step.failed is not None:
        annotations[PARTITIONS_FAILED] = json.dumps({**node.failed, step.failed: now})
    metadata["annotations"] = annotations
    return {"metadata": metadata, **({"spec": spec} if spec else {})}


def _way(to: str, back: str, since: float) -> str:
    return json.dumps({"to": to, "back": back, "since": round(since, 3)})


def _manager_state(labels: Mapping[str, str]) -> ManagerState:
    """Return the MIG manager's state; other values, such as while a node restarts, mean that it is working."""
    state = labels.get(MIG_STATE, "")
    try:
        return ManagerState(state)
    except ValueError:
        return ManagerState.PENDING


def _times(annotation: str) -> Mapping[str, float]:
    try:
        content = parse_object(annotation, max_bytes=MOST_BYTES)
    except ValueError:
        return {}
    return {name: at for name, value in content.items() if (at := moment(value)) is not None}
