"""One real control plane for all tests of a session; each test has its own namespace."""

import os
import secrets
from collections.abc import Iterator

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess, load_access
from fairlead.cluster.kubernetes.manifests.placeholders import render_priority_class
from fairlead.cluster.kubernetes.manifests.roles import (
    ENGINE_RULES,
    LEADER_RULES,
    NODE_PARTITIONER_RULES,
    OPERATOR,
    OPERATOR_RULES,
    TEAM_RULES,
    render_operator_bindings,
    render_roles,
)
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.state.snapshot import Intent
from tests.kubernetes.audit import RESTRICTED, requests, rights
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import GPUS, OPERATED, operating, teach_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import POD_GROUPS, ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.waiting import until


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for the control plane is a Kubernetes test."""
    for item in items:
        if {"control_plane", "namespace", "plane"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kubernetes)


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane without nodes; tests add fake ones of their own.

    FAIRLEAD_TEST_POD_GROUPS=1 has all of them run on one with PodGroups.
    """
    flags = POD_GROUPS if os.environ.get("FAIRLEAD_TEST_POD_GROUPS") else None
    with started(lambda: ControlPlane(users={"nobody": ["people"]}, audit=True, flags=flags), request) as plane:
        yield plane


@pytest.fixture(scope="session")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with our kinds in it."""
    teach_kinds(control_plane)
    return control_plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own, deleted after it."""
    name = f"t-{os.getpid()}-{secrets.token_hex(3)}"
    control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    control_plane.await_namespace(name)
    yield name
    control_plane.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def access(plane: ControlPlane) -> Iterator[ClusterAccess]:
    """An administrator's, to the control plane with two nodes of eight GPUs and all that an installation brings."""
    for content in (render_priority_class(), *render_roles()):
        applied(plane, content)
    add_nodes(plane, 2, prefix="a-gpu", gpus=GPUS)
    until(lambda: all(is_ready(node) for node in plane.request("GET", "/api/v1/nodes")["items"]))
    access = load_access((plane.kubeconfig(),))
    yield access
    places = [place for server, place in OPERATED if server == access.server]
    asked = {each.right for each in requests(plane.audit_log, *(f"{place}:{OPERATOR}" for place in places))}
    granted = rights([*OPERATOR_RULES, *LEADER_RULES, *TEAM_RULES, *ENGINE_RULES, *NODE_PARTITIONER_RULES])
    assert bool(asked) == bool(places)
    assert asked <= granted, "an operator asked for what its roles do not grant"


@pytest.fixture
def cluster(access: ClusterAccess, plane: ControlPlane, namespace: str) -> Iterator[WorkloadApi]:
    """What a user has: no watches. What the test leaves behind is deleted."""
    for binding in render_operator_bindings(namespace):
        applied(plane, binding)  # the cluster's one moves to the operator of this test
    restricted = {"metadata": {"labels": RESTRICTED}}
    plane.request("PATCH", f"/api/v1/namespaces/{namespace}", restricted, kind="merge-patch+json")
    cluster = WorkloadApi(Client(access), namespace=namespace)
    yield cluster
    left = cluster.workloads()
    if left:
        with operating(access, namespace):
            for run in left:
                cluster.set_intent(run.uid, Intent.DELETE)
            until(lambda: not cluster.workloads())
