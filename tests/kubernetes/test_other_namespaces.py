"""Pods that somebody with a namespace of his own, and none of his victim's, writes to be taken for his victim's."""

import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.names import ENGINE, INDEX
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.operator import Operator
from fairlead.specs.formats.reading import parse
from fairlead.specs.serving import Serving
from fairlead.state.snapshot import Phase
from tests.kubernetes.operating import comes_to, gang, live_pods, operating
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

Object = dict[str, Any]


class Mallory:
    """A user with the role edit of Kubernetes in his namespace, and no other right."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.place = f"/api/v1/namespaces/{namespace}/pods"

    def forge(self, pod: Object, *, is_owned: bool, **annotations: str) -> str:
        """Create a pod with the name and labels of somebody's.

        Args:
            is_owned: It has the owner too, so that the garbage collector removes it; else the label of an engine.
        """
        about = {each: pod["metadata"][each] for each in ("name", "labels", "ownerReferences")}
        if not is_owned:
            del about["ownerReferences"]
            about["labels"] = {**about["labels"], ENGINE: "jobset"}
        about["annotations"] = annotations
        container = {"name": "ranks", "image": "i"}
        self.plane.request("POST", self.place, {"metadata": about, "spec": {"containers": [container]}}, user="nobody")
        return f"{self.namespace}/{about['name']}"

    def phase(self, key: str) -> str:
        return str(self.plane.request("GET", f"{self.place}/{key.partition('/')[2]}", user="nobody")["status"]["phase"])


@pytest.fixture
def mallory(plane: ControlPlane, namespace: str) -> Iterator[Mallory]:
    own = f"{namespace}-evil"
    applied(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": own}})
    applied(plane, {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "edit", "namespace": own},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}],
    })  # fmt: skip
    yield Mallory(plane, own)
    plane.request("DELETE", f"/api/v1/namespaces/{own}")


def pod_of(plane: ControlPlane, namespace: str, name: str) -> Object:
    found: Object = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
    return found


def saw(operator: Operator, key: str, phase: str) -> bool:
    """Whether the operator has the pod as it is, and has made a pass since."""
    pod = operator.view.pods.get(key)
    return pod is not None and pod.phase == phase


def passes(operator: Operator, number: int = 3) -> None:
    """Wait for further passes."""
    for _ in range(number):
        since = operator._counts["passes"]
        operator.view.wake()
        until(lambda since=since: operator._counts["passes"] > since)  # type: ignore[misc]  # bound


@pytest.mark.slow
def test_a_pod_in_another_namespace_neither_ends_a_run_nor_is_listed_for_an_endpoint(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, mallory: Mallory
) -> None:
    (spec,) = parse(
        f"kind: Serving\nname: web\nteam: {namespace}\nrun: serve\nimage: python:3.12\nreplicas: 1\n"
        "resources: {cpu: 100m, memory: 64Mi}"
    )
    assert isinstance(spec, Serving)
    cluster.submit(gang(namespace))
    cluster.submit(spec)
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/serve-web"

    def addresses() -> list[str]:
        if not plane.exists(slices):
            return []
        return [each["addresses"][0] for each in plane.request("GET", slices).get("endpoints") or ()]

    with operating(access, namespace) as operator:
        run = comes_to(cluster, "train", Phase.RUNNING)
        until(lambda: len(addresses()) == 1, addresses)
        before, live = addresses(), live_pods(cluster, namespace)
        with pytest.raises(urllib.error.HTTPError):
            plane.request("GET", f"/api/v1/namespaces/{namespace}/pods", user="nobody")
        for index in range(2):
            victim = pod_of(plane, namespace, f"train-0-{index}")
            ended = mallory.forge(victim, is_owned=False, **{"fake/run": "0.1s"})
            until(lambda key=ended: saw(operator, key, "Succeeded"))  # type: ignore[misc]  # bound
        about = {**victim["metadata"], "name": "train-0-2", "labels": {**victim["metadata"]["labels"], INDEX: "2"}}
        owned = mallory.forge({"metadata": about}, is_owned=True)
        until(lambda: operator.view.pods.get(owned) is not None or operator.view.pods.was_deleted(owned))
        listed = mallory.forge(pod_of(plane, namespace, "web-r1-1-0-0"), is_owned=False)
        until(lambda: saw(operator, listed, "Running"), lambda: operator.view.pods.get(listed))
        passes(operator)
        now = comes_to(cluster, "train", Phase.RUNNING)
        assert (now.uid, now.status.attempt) == (run.uid, 0)
        assert live_pods(cluster, namespace) == live
        assert addresses() == before
        assert mallory.phase(listed) == "Running", "the operator leaves what is not its own alone"
        events = f"/api/v1/namespaces/{mallory.namespace}/events"
        forged = {"train-0-0", "train-0-1", "train-0-2", "web-r1-1-0-0"}

        def reported() -> set[str]:
            told = plane.request("GET", events)["items"]
            return {each["involvedObject"]["name"] for each in told if each["reason"] == "NotOfItsOwner"}

        until(lambda: reported() == forged, reported)
        operator.view.pods.drop(ended, 10**9)
        passes(operator)
        assert comes_to(cluster, "train", Phase.RUNNING).status.attempt == 0
