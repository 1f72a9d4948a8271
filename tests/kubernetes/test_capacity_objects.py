"""Objects by which an autoscaler is asked for nodes without a pod, and what its conditions say."""

from typing import Any

import pytest

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.manifests.capacity_objects import (
    buffer_name,
    render_capacity_buffer,
    render_pod_template,
    render_provisioning_request,
    request_name,
)
from fairlead.cluster.kubernetes.manifests.placeholders import render_placeholder
from fairlead.cluster.kubernetes.names import INDEX, MANAGED_BY, MANAGER, ROOM_FOR, is_object_name
from fairlead.cluster.kubernetes.operator.placeholders.capacity_objects import (
    CapacityObject,
    CapacityObjects,
    Condition,
)
from fairlead.cluster.kubernetes.operator.placeholders.placeholder_controller import read_request
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.state.capacity_requests import CapacityRequest
from tests.kubernetes.builders import GIB, SETTINGS, UID, a_training, a_workload


def a_template() -> tuple[dict[str, Any], dict[str, Any]]:
    """A placeholder, and the PodTemplate of its like."""
    resources = Resources(cpu_milli=4000, memory_bytes=16 * GIB, gpu=GpuRequest(milli=8000))
    run = a_workload(a_training(nodes=4, resources=resources))
    pod = render_placeholder(run, 0, SETTINGS, device=DeviceResource(name="nvidia.com/gpu", count=8))
    return pod, render_pod_template(pod, request_name(run))


def test_a_template_has_the_shape_of_a_member_and_belongs_to_its_run() -> None:
    pod, template = a_template()
    assert template["template"]["spec"] == pod["spec"]
    metadata = template["metadata"]
    assert metadata["ownerReferences"] == pod["metadata"]["ownerReferences"]
    wanted = {name: value for name, value in pod["metadata"]["labels"].items() if name != INDEX}
    assert metadata["labels"] == wanted
    assert wanted[MANAGED_BY] == MANAGER
    assert wanted[ROOM_FOR] == UID
    assert INDEX not in template["template"]["metadata"]["labels"]


def test_a_request_is_for_the_whole_gang_or_nothing() -> None:
    _, template = a_template()
    request = render_provisioning_request(template, 4, 600.0)
    assert request["apiVersion"] == "autoscaling.x-k8s.io/v1"
    assert request["spec"]["provisioningClassName"].startswith("best-effort-atomic-scale-up.")
    assert request["spec"]["podSets"] == [{"count": 4, "podTemplateRef": {"name": template["metadata"]["name"]}}]
    assert request["spec"]["parameters"] == {"ValidUntilSeconds": "600"}


def test_a_buffer_keeps_a_number_of_nodes_and_its_name_fits_whatever_the_pools() -> None:
    _, template = a_template()
    assert render_capacity_buffer(template, 3)["spec"]["replicas"] == 3
    for pool in ("a100", "a" * 63, "a.b-" * 15 + "c"):
        assert is_object_name(buffer_name(pool))
        assert len(buffer_name(pool)) <= 63


def told(**conditions: tuple[bool, str]) -> CapacityRequest:
    read = {name: Condition(is_true=is_true, message=says, since=5.0) for name, (is_true, says) in conditions.items()}
    return read_request("u", CapacityObject(
        namespace="n", name="r", uid="1", created_at=1.0, is_leaving=False, conditions=read
    ))  # fmt: skip


def test_what_the_autoscaler_says_of_a_request_is_read_from_its_conditions() -> None:
    assert told() == CapacityRequest(workload_uid="u")
    assert told(Accepted=(True, "accepted")) == CapacityRequest(workload_uid="u")
    assert told(Accepted=(True, ""), Provisioned=(False, "no capacity yet")).obstacle == "no capacity yet"
    assert told(Provisioned=(True, "there")) == CapacityRequest(workload_uid="u", bound_at=5.0)
    assert (
        told(Provisioned=(True, "there"), BookingExpired=(True, "held for 10 minutes")).obstacle
        == "held for 10 minutes"
    )
    assert told(Failed=(True, "does not fit any node group")).obstacle == "does not fit any node group"
    assert told(Provisioned=(True, "there"), CapacityRevoked=(False, "")).bound_at == 5.0


def test_an_object_that_cannot_be_read_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write such objects in one namespace may give them any status."""
    client = Client(ClusterAccess(context="none", server="http://127.0.0.1:9", credentials=Anonymous()))
    isolation = Isolation()

    def an_object(name: str, conditions: Any) -> dict[str, Any]:
        about = {"name": name, "namespace": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
        return {"metadata": {**about, "labels": {ROOM_FOR: name}}, "status": {"conditions": conditions}}

    hostile: list[Any] = [5, [{}], [{"type": "Failed", "lastTransitionTime": "soon"}], [[]], "x"]
    objects = [an_object(f"bad-{number}", each) for number, each in enumerate(hostile)]
    monkeypatch.setattr(client, "items", lambda *_: [*objects, an_object("good", [])])
    found = CapacityObjects(
        client, "provisioningrequests", "v1", ROOM_FOR, wake=lambda: None, may_act=lambda: True,
        is_ours=lambda *_: True, isolation=isolation,
    )  # fmt: skip
    found._list()
    assert set(found.known) == {"good"}
    assert len(isolation.failing) == len(hostile)
