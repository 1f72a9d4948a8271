"""Operators and runs for tests on a real control plane with fake nodes."""

import threading
import time
import urllib.error
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fairlead.cluster.kubernetes.api.client import Client, Limits
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import FixedToken
from fairlead.cluster.kubernetes.kinds import kept_kinds, objects_path
from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.cluster.kubernetes.manifests.roles import OPERATOR
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle_name
from fairlead.cluster.kubernetes.system_namespaces import SystemNamespaces
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.controllers import OperatorSettings
from fairlead.control.operator import Operator
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.snapshot import Phase, Workload
from tests.kubernetes.audit import token_of
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.engines import await_served
from tests.waiting import until

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVED_TIMEOUT_S = 180.0  # with a fixture of the session all tests of its worker would fail
GIB = 1024**3
GPUS = 8
OPERATED: set[tuple[str, str]] = set()
"""API servers and namespaces in which an operator of these tests had its account."""

HARMLESS = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@contextmanager
def operating(access: ClusterAccess, namespace: str, **settings: Any) -> Iterator[Operator]:
    """An operator for one namespace, with the rights that an installed one has and no others."""
    operator = an_operator(access, namespace, **settings)
    thread = threading.Thread(target=operator.run, daemon=True)
    thread.start()
    try:
        yield operator
    finally:
        operator.stop()
        operator.view.wake()
        thread.join(timeout=20)
        assert not thread.is_alive()


def an_operator(access: ClusterAccess, namespace: str, **settings: Any) -> Operator:
    installed = FixedToken(token_of(Client(access), namespace, OPERATOR))
    OPERATED.add((access.server, namespace))
    client = Client(replace(access, credentials=installed), Limits(patience_s=8.0))
    system = settings.pop("system", SystemNamespaces())
    pods = PodSettings(runtime=bundle_name(), system=system)
    given: dict[str, Any] = {"watch_namespace": namespace, "listen": ("127.0.0.1", 0), **settings}
    own = OperatorSettings(namespace=namespace, **given)
    return Operator(client, pods, own)


def gang(namespace: str, name: str = "train", *, nodes: int = 2, gpus: int = GPUS, **fakes: str) -> Training:
    """A run whose pods behave as their annotations ``fake/...`` say."""
    annotations = {f"fake/{key.replace('_', '-')}": value for key, value in fakes.items()}
    resources = Resources(cpu_milli=1000, memory_bytes=GIB, gpu=GpuRequest(milli=1000 * gpus) if gpus else None)
    spec = Training(name=name, team=namespace, run="work", nodes=nodes, resources=resources)
    return replace(spec, kubernetes=overlay({"metadata": {"annotations": annotations}})) if annotations else spec


def comes_to(cluster: WorkloadApi, name: str, phase: Phase, *, attempt: int | None = None) -> Workload:
    """The run, once it is there."""
    namespace = cluster.workloads()[0].spec.team
    found: list[Workload] = []

    def there() -> bool:
        found[:] = [cluster.named(name, namespace)]
        status = found[0].status
        return status.phase is phase and attempt in (None, status.attempt)

    def told() -> object:
        return found[0].status, [event.reason.message for event in cluster.events(found[0].uid)]

    until(there, told)
    return found[0]


def live_pods(cluster: WorkloadApi, namespace: str) -> list[str]:
    pods = cluster.client.items(f"/api/v1/namespaces/{namespace}/pods")
    return sorted(pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") in ("Pending", "Running"))


def delete_runs(plane: ControlPlane, *namespaces: str) -> None:
    """Delete all trainings of the namespaces while an operator still runs, and wait until they are gone.

    Deleting the namespaces takes seconds for each hundred of runs, which the operators of other tests would start.
    """
    for namespace in namespaces:
        path = f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings"
        while plane.request("GET", f"{path}?limit=1")["items"]:
            plane.request("DELETE", f"{path}?limit=25")  # all at once take longer than a request may on a busy machine


def teach_kinds(plane: ControlPlane) -> None:
    """Put our kinds on a control plane, and wait until they are served."""
    query = "fieldManager=test&force=true&fieldValidation=Strict"
    for each in definitions():
        path = f"{DEFINITIONS}/{each['metadata']['name']}?{query}"
        plane.request("PATCH", path, each, kind="apply-patch+yaml")
    await_kinds(plane)


def await_kinds(plane: ControlPlane) -> None:
    """Wait until the API server serves our kinds."""
    deadline = time.monotonic() + SERVED_TIMEOUT_S
    while True:
        try:
            for kind in kept_kinds():
                plane.request("GET", objects_path(kind))
        except urllib.error.HTTPError:
            assert time.monotonic() < deadline, "the kinds are not served"
            time.sleep(0.2)
        else:
            break


@contextmanager
def loosely_defined(plane: ControlPlane, kinds: Iterable[tuple[str, str, str]]) -> Iterator[None]:
    """Kinds of others that take anything, each by its API's group and version, its name and its plural."""
    paths = []
    for api, kind, plural in kinds:
        group, _, version = api.partition("/")
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        content = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{plural}.{group}",
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                "versions": [
                    {
                        "name": version,
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": schema},
                        "subresources": {"status": {}},
                    }
                ],
            },
        }
        path = f"{DEFINITIONS}/{plural}.{group}"
        plane.request("PATCH", f"{path}?fieldManager=test&force=true", content, kind="apply-patch+yaml")
        paths.append((path, f"/apis/{api}/{plural}"))
    for _, served in paths:
        await_served(plane, served)
    try:
        yield
    finally:
        for path, _ in paths:
            plane.request("DELETE", path)
