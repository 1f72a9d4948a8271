"""A real Karpenter whose machines are kwok's: nodes come for pods without a place, as far as its NodePools allow."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.testcluster import binaries
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.processes import Server
from tests.ports import free_ports

GPU_LABEL = "nvidia.com/gpu.product"
NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Karpenter:
    """One Karpenter beside a control plane; use it as a context.

    Args:
        gpus: Of the one kind of machine that there is, which has 64 cores and 512 GiB.
    """

    def __init__(self, plane: ControlPlane, *, gpus: int = 8) -> None:
        self._plane = plane
        self._gpus = gpus
        self._server: Server | None = None

    def __enter__(self) -> "Karpenter":
        binary, kinds = binaries.ensure_karpenter()
        for file in kinds:
            for kind in yaml.safe_load_all(file.read_text()):
                self._apply(f"{DEFINITIONS}/{kind['metadata']['name']}", kind)
        home = self._plane.home
        machines = home / "machines.json"
        machines.write_text(json.dumps([self._machine()]))
        metrics, health = free_ports(2)
        settings = {
            "KUBECONFIG": str(self._plane.kubeconfig()),
            "SYSTEM_NAMESPACE": "kube-system",
            "KARPENTER_SERVICE": "karpenter",
            "DISABLE_LEADER_ELECTION": "true",
            "METRICS_PORT": str(metrics),
            "HEALTH_PROBE_PORT": str(health),
            "INSTANCE_TYPES_FILE_PATH": str(machines),
            "LOG_LEVEL": "info",
            "FEATURE_GATES": "CapacityBuffer=true",
        }
        argv = ["env", *(f"{name}={value}" for name, value in settings.items()), str(binary)]
        self._server = Server("karpenter", argv, self.log)
        self._server.start()
        path = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
        node_class = {
            "apiVersion": "karpenter.kwok.sh/v1alpha1",
            "kind": "KWOKNodeClass",
            "metadata": {"name": "default"},
        }
        try:
            self._server.until(lambda: self._plane.serves(path) and self._plane.serves(NODE_POOLS), "its kinds")
            self._apply(f"{path}/default", node_class)
        except BaseException:
            self._server.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.kill()

    @property
    def log(self) -> Path:
        """What it says."""
        return self._plane.home / "karpenter.log"

    def pool(self, name: str, *, model: str = "NVIDIA-A100", limits: Mapping[str, Any] | None = None) -> None:
        """Make a NodePool, or change it, and wait until it is ready; nodes that idle leave at once."""
        reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
        requirements = [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]
        pool = {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": name},
            "spec": {
                "template": {
                    "metadata": {"labels": {GPU_LABEL: model}},
                    "spec": {"nodeClassRef": reference, "requirements": requirements, "expireAfter": "Never"},
                },
                "limits": dict(limits or {}),
                "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s"},
            },
        }
        self._apply(f"{NODE_POOLS}/{name}", pool)
        assert self._server is not None
        self._server.until(lambda: self._is_ready(name), f"a ready NodePool {name}")

    def _is_ready(self, name: str) -> bool:
        status = self._plane.request("GET", f"{NODE_POOLS}/{name}").get("status") or {}
        return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())

    def _apply(self, path: str, content: Mapping[str, Any]) -> None:
        self._plane.request("PATCH", f"{path}?fieldManager=test&force=true", content, kind="apply-patch+yaml")

    def _machine(self) -> dict[str, Any]:
        requirements = [
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]},
        ]
        return {
            "name": "gpu-large",
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(self._gpus)},
            "offerings": [{"Price": 10.0, "Available": True, "Requirements": requirements}],
        }
