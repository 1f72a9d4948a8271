"""`fairlead clusters` and `fairlead doctor` against a real control plane, through the command line."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cluster.kubernetes.api.config import ClusterAccess, load_access
from fairlead.cluster.kubernetes.manifests.roles import render_operator_bindings, render_roles
from tests.kubernetes.operating import operating
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.ports import free_port
from tests.waiting import until

HOME = "fairlead-system"


@pytest.fixture(scope="module")
def access(plane: ControlPlane) -> Iterator[ClusterAccess]:
    """The plane with two GPU nodes, the roles, and the operator's namespace; without its Deployment."""
    add_nodes(plane, 2, prefix="seen", gpus=4, model="NVIDIA-L4")
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": HOME}})
    for each in (*render_roles(), *render_operator_bindings(HOME)):
        applied(plane, each)
    until(lambda: all(is_ready(plane.request("GET", f"/api/v1/nodes/seen-{index}")) for index in range(2)))
    yield load_access((plane.kubeconfig(),))
    plane.request("DELETE", f"/api/v1/namespaces/{HOME}")
    for index in range(2):
        plane.request("DELETE", f"/api/v1/nodes/seen-{index}")


@pytest.fixture
def kubeconfig(plane: ControlPlane, access: ClusterAccess, namespace: str, tmp_path: Path) -> Path:
    """Contexts: here, in the test's namespace, which is current; nobody; and gone, where nothing listens."""
    config = yaml.safe_load(plane.kubeconfig(namespace=namespace).read_text())
    config["users"].append({"name": "nobody", "user": {"token": "nobody"}})
    config["clusters"].append({"name": "gone", "cluster": {"server": f"https://127.0.0.1:{free_port()}"}})
    config["contexts"] = [
        {"name": "here", "context": {"cluster": "test", "user": "admin", "namespace": namespace}},
        {"name": "nobody", "context": {"cluster": "test", "user": "nobody", "namespace": namespace}},
        {"name": "gone", "context": {"cluster": "gone", "user": "nobody"}},
    ]
    config["current-context"] = "here"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def fairlead(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "fairlead.cli.main", *arguments]
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "FAIRLEAD_HOME": str(kubeconfig.parent / "home")}
    ended = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert "internal error" not in ended.stderr
    return ended


def listed(kubeconfig: Path, *arguments: str) -> dict[str, Any]:
    ended = fairlead(kubeconfig, "clusters", "--json", *arguments)
    assert ended.returncode == 0, ended.stderr
    return {each["name"]: each for each in json.loads(ended.stdout)}


def findings(kubeconfig: Path, context: str, code: int) -> dict[str, Any]:
    ended = fairlead(kubeconfig, "doctor", "--context", context, "--json")
    found = {each["what"]: each for each in json.loads(ended.stdout)}
    assert ended.returncode == code, found
    return found


@contextmanager
def nodes(plane: ControlPlane, prefix: str, **labels: str) -> Iterator[None]:
    (name,) = add_nodes(plane, 1, prefix=prefix, gpus=0, labels=labels)
    try:
        yield
    finally:
        plane.request("DELETE", f"/api/v1/nodes/{name}")


def test_every_context_is_listed_with_what_is_there_or_why_it_is_not_reached(
    plane: ControlPlane, access: ClusterAccess, kubeconfig: Path
) -> None:
    found = listed(kubeconfig)
    assert list(found) == ["local", "here", "nobody", "gone"]
    assert [name for name, each in found.items() if each["is_default"]] == ["local"]
    here = found["here"]
    assert here["version"] == f"v{plane.version}"
    assert here["is_current"]
    assert here["gpus"]["NVIDIA-L4"] == 8
    assert here["num_ready"] >= 2
    assert here["operator"]["leader"] is None
    assert found["nobody"]["reachable"]
    assert found["nobody"]["num_nodes"] is None  # may not be counted
    assert not found["gone"]["reachable"]
    assert "does not answer" in found["gone"]["why"]


@pytest.mark.slow
def test_the_chosen_context_is_marked_and_an_operator_elsewhere_is_seen_to_lead(
    access: ClusterAccess, kubeconfig: Path
) -> None:
    with operating(access, HOME) as operator:
        until(lambda: operator.election.is_leader)
        found = listed(kubeconfig, "--context", "nobody")
        assert [name for name, each in found.items() if each["is_default"]] == ["nobody"]
        # Who may read nothing else still sees that somebody leads.
        for context in ("here", "nobody"):
            assert found[context]["operator"]["leader"]["name"] == operator.election.identity
        rows = fairlead(kubeconfig, "clusters", "--cluster", "kubernetes").stdout.splitlines()
        assert rows[0].split() == ["NAME", "VERSION", "NODES", "GPUS", "OPERATOR", "WHERE"]
        (chosen,) = (row for row in rows if row.startswith("*"))
        assert chosen.split()[1] == "here"
        assert "elsewhere, leading" in chosen


def test_a_cluster_in_which_all_is_well_but_nobody_leads(access: ClusterAccess, kubeconfig: Path) -> None:
    found = findings(kubeconfig, "here", 1)
    assert {what for what, each in found.items() if not each["ok"]} == {"operator"}
    assert found["operator"]["remedy"].startswith("fairlead install --image-to REGISTRY/NAME --context here")
    assert "as admin" in found["reachable"]["says"]
    assert "every command" in found["rights"]["says"]
    assert "4 x NVIDIA-L4 as nvidia.com/gpu on seen-0, seen-1" in found["GPUs"]["says"]
    assert found["metrics"]["remedy"].startswith("kubectl apply")
    with operating(access, HOME) as operator:
        until(lambda: operator.election.is_leader)
        assert "runs outside of the cluster" in findings(kubeconfig, "here", 0)["operator"]["says"]


def test_operators_that_lead_beside_each_other_are_named(
    plane: ControlPlane, access: ClusterAccess, kubeconfig: Path, namespace: str
) -> None:
    renewed = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    other = {
        "metadata": {"name": "fairlead-operator"},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 600, "renewTime": renewed},
    }
    plane.request("POST", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", other)
    with operating(access, HOME) as operator:
        until(lambda: operator.election.is_leader)
        assert "leaders" not in findings(kubeconfig, "here", 0), "tenants may write Leases in their namespaces"
        space = f"/api/v1/namespaces/{namespace}"
        labelled = {"metadata": {"labels": {"fairlead.dev/operator": "enabled"}}}
        plane.request("PATCH", space, labelled, kind="merge-patch+json")
        found = findings(kubeconfig, "here", 1)["leaders"]
        assert operator.election.identity in found["says"]
        assert f"another in {namespace}" in found["says"]
        assert "take turns" in found["remedy"]
        assert "leaders" not in findings(kubeconfig, "nobody", 1)
        events = f"/api/v1/namespaces/{HOME}/events"

        def notes() -> list[str]:
            return [
                each["message"] for each in plane.request("GET", events)["items"] if each["reason"] == "OtherLeader"
            ]

        until(lambda: any(f"another in namespace {namespace}" in note for note in notes()))


def test_kinds_of_another_version_are_told_with_what_renews_them(
    plane: ControlPlane, access: ClusterAccess, kubeconfig: Path
) -> None:
    assert "as version" in findings(kubeconfig, "here", 1)["kinds"]["says"]
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pools.fairlead.dev"
    before = plane.request("GET", path)["spec"]["versions"]
    older = json.loads(json.dumps(before))
    older[0]["schema"]["openAPIV3Schema"]["description"] = "As it was."
    try:
        plane.request("PATCH", path, {"spec": {"versions": older}}, kind="merge-patch+json")
        kinds = findings(kubeconfig, "here", 1)["kinds"]
        assert "pools.fairlead.dev" in kinds["says"]
        assert "trainings" not in kinds["says"]
        assert kinds["remedy"] == "fairlead install --image-to REGISTRY/NAME --context here"
    finally:
        plane.request("PATCH", path, {"spec": {"versions": before}}, kind="merge-patch+json")


def test_who_lacks_rights_is_told_for_each_command_and_what_gives_them(
    access: ClusterAccess, kubeconfig: Path, namespace: str
) -> None:
    found = findings(kubeconfig, "nobody", 1)
    rights = found["rights"]
    assert "not logs: may not get pods/log in namespace" in rights["says"]
    assert "not delete: may not delete trainings.fairlead.dev" in rights["says"]
    assert rights["remedy"] == (
        f"kubectl -n {namespace} create rolebinding fairlead-user-nobody --clusterrole=fairlead-user --user=nobody"
    )
    assert found["GPUs"]["says"] == "not known: you may not list nodes"
    assert found["kinds"]["ok"]  # served, whoever asks


def test_a_cluster_that_does_not_answer_is_told_and_nothing_else(access: ClusterAccess, kubeconfig: Path) -> None:
    found = findings(kubeconfig, "gone", 1)
    assert list(found) == ["reachable"]
    assert "does not answer" in found["reachable"]["says"]


def test_engines_autoscalers_and_silent_gpus_are_found(
    plane: ControlPlane, access: ClusterAccess, kubeconfig: Path, namespace: str
) -> None:
    kinds = [("kueue.x-k8s.io", "Workload"), ("ray.io", "RayJob"), ("karpenter.sh", "NodePool")]
    for group, kind in kinds:
        applied(plane, definition(group, kind))
    images = {
        "kueue": "registry.k8s.io/kueue/kueue:v0.15.2",
        "autoscaler": "registry.k8s.io/autoscaling/cluster-autoscaler:v1.36.0",
        "plugin": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0",
    }
    for name, image in images.items():
        applied(plane, deployment(namespace, name, image))
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    storage = {"metadata": {"name": f"disks-{namespace}", "annotations": default}, "provisioner": "example.com/disks"}
    plane.request("POST", "/apis/storage.k8s.io/v1/storageclasses", storage)
    try:
        with nodes(plane, "mute", **{"nvidia.com/gpu.present": "true"}):
            found = findings(kubeconfig, "here", 1)
        assert "Kueue v0.15.2" in found["engines"]["says"]
        assert "KubeRay (its kinds are installed, but no controller was found)" in found["engines"]["says"]
        assert "Karpenter" in found["autoscaler"]["says"]
        assert "Cluster Autoscaler v1.36.0" in found["autoscaler"]["says"]
        assert f"disks-{namespace} (default)" in found["storage"]["says"]
        assert not found["device plugin"]["ok"]
        assert "mute-0 has GPUs by label and advertise none: plugin v0.17.0" in found["device plugin"]["says"]
    finally:
        plane.request("DELETE", f"/apis/storage.k8s.io/v1/storageclasses/disks-{namespace}")
        for group, kind in kinds:
            name = f"{kind.lower()}s.{group}"
            plane.request("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")


def definition(group: str, kind: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.lower()}s.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


def deployment(namespace: str, name: str, image: str) -> dict[str, Any]:
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod},
    }
