"""Fake nodes, and what their pods do: kwok plays them by ``stages.yaml``.

A pod on a fake node becomes Running at once and runs until it is deleted, unless its annotations say otherwise:

    fake/start        how long until it runs, such as 2s
    fake/run          how long it runs; without it, for ever
    fake/exit-code    how its containers end; 0 without it
    fake/reason       why, such as OOMKilled; Completed or Error without it
    fake/message      their termination message
    fake/stop         how long it takes to end once it is deleted
    fake/on-term      `ends`: before it is gone it says that SIGTERM ended it; `ignores`: that SIGKILL did, once its
                      grace was over; without it, it is gone without a word
    fake/address      where it is found, such as one of 127.0.0.0/8 at which a test listens; without it, at one that
                      nobody has, so that packets for it may leave this machine and be answered there
    fake/image        `missing`, `unreachable`: its image cannot be pulled, and it does not run while that stands there

A node with the annotation ``fake/lost`` is not ready, until it is taken away.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.kubernetes.testcluster.control_plane import ControlPlane


def add_nodes(
    plane: ControlPlane,
    count: int,
    *,
    prefix: str = "fake",
    gpus: int = 8,
    model: str = "NVIDIA-H100-80GB-HBM3",
    gpu_memory_mib: int = 81_559,
    cpu: str = "96",
    memory: str = "1Ti",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    zones: Sequence[str] = (),
    others: Mapping[str, str] | None = None,
) -> list[str]:
    """Create fake nodes ``<prefix>-0`` and on, labelled as GPU feature discovery labels real ones; their names.

    They are in the zones in turn. ``others`` are further resources, such as MIG slices.
    `is_ready` says when pods can go there, moments later.
    """
    names = [f"{prefix}-{index}" for index in range(count)]
    gpu_labels = {
        "nvidia.com/gpu.product": model,
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.memory": str(gpu_memory_mib),
    }
    resources: dict[str, str] = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    resources |= others or {}
    if gpus:
        resources["nvidia.com/gpu"] = str(gpus)

    def create(index: int) -> None:
        name = names[index]
        zone = {"topology.kubernetes.io/zone": zones[index % len(zones)]} if zones else {}
        node: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {
                    "kubernetes.io/hostname": name,
                    **zone,
                    **(gpu_labels if gpus or others else {}),
                    **(labels or {}),
                },
            },
            "spec": {"taints": list(taints)},
            "status": {"capacity": resources, "allocatable": resources},
        }
        plane.request("POST", "/api/v1/nodes", node)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(create, range(count)))
    return names


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether a node takes pods: it says that it is ready, and the taint that a new one carries is gone."""
    conditions = node.get("status", {}).get("conditions", [])
    tainted = any(taint["key"] == "node.kubernetes.io/not-ready" for taint in node["spec"].get("taints", []))
    return not tainted and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
