"""A Cluster Autoscaler that is played by the objects that it documents: its status, and ProvisioningRequests.

No registry serves the program. The definition of the requests is its own.
"""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from fairlead.cluster.kubernetes.names import AUTOSCALER_STATUS
from tests.kubernetes.testcluster.binaries import source_of_module
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

API = "k8s.io/autoscaler/cluster-autoscaler/apis"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
REQUESTS = "/apis/autoscaling.x-k8s.io/v1/provisioningrequests"
STATUS = f"/api/v1/namespaces/kube-system/configmaps/{AUTOSCALER_STATUS}"
UPDATED = "cluster-autoscaler.kubernetes.io/last-updated"


def apply_kinds(plane: ControlPlane, source: Path, pattern: str) -> None:
    """Define the kinds of files in the source of a module."""
    for file in sorted(source.glob(pattern)):
        definition = yaml.safe_load(file.read_text())
        path = f"{DEFINITIONS}/{definition['metadata']['name']}?fieldManager=test&force=true"
        plane.request("PATCH", path, definition, kind="apply-patch+yaml")


class ClusterAutoscaler:
    """Answers each new ProvisioningRequest; use it as a context.

    Args:
        answer: Called with a request; returns the conditions that it then has, as (type, status, message).
    """

    def __init__(self, plane: ControlPlane, answer: Callable[[dict[str, Any]], list[tuple[str, str, str]]]) -> None:
        self._plane = plane
        self._answer = answer
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.asked: list[dict[str, Any]] = []
        """The requests that were answered."""

    def __enter__(self) -> "ClusterAutoscaler":
        apply_kinds(self._plane, source_of_module("cluster-autoscaler", API), "config/crd/*.yaml")
        until(lambda: self._plane.serves(REQUESTS), "served ProvisioningRequests")
        annotations = {UPDATED: f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}.0 +0000 UTC"}
        metadata = {"name": AUTOSCALER_STATUS, "annotations": annotations}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        self._plane.request("PATCH", f"{STATUS}?fieldManager=test&force=true", body, kind="apply-patch+yaml")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()
        self._plane.request("DELETE", STATUS)

    def _follow(self) -> None:
        while not self._over.wait(0.2):
            for request in self._plane.request("GET", REQUESTS)["items"]:
                if not (request.get("status") or {}).get("conditions"):
                    self._tell(request, self._answer(request))

    def _tell(self, request: dict[str, Any], told: list[tuple[str, str, str]]) -> None:
        if not told:
            return
        self.asked.append(request)
        at = f"{datetime.fromtimestamp(time.time(), UTC):%Y-%m-%dT%H:%M:%SZ}"
        conditions = [
            {"type": kind, "status": status, "reason": kind, "message": message, "lastTransitionTime": at}
            for kind, status, message in told
        ]
        metadata = request["metadata"]
        path = REQUESTS.replace("/provisioning", f"/namespaces/{metadata['namespace']}/provisioning")
        body = {"status": {"conditions": conditions}}
        self._plane.request("PATCH", f"{path}/{metadata['name']}/status", body, kind="merge-patch+json")
