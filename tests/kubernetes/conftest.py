"""One real control plane for all tests of a session; each test has its own namespace."""

import os
import secrets
import time
import urllib.error
from collections.abc import Iterator

import pytest

from fairlead.cluster.kubernetes.definitions import definitions
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.errors import Unavailable

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVED_TIMEOUT_S = 30.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for the control plane is a Kubernetes test."""
    for item in items:
        if {"control_plane", "namespace", "plane"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kubernetes)


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane without nodes; tests add fake ones of their own."""
    plane = ControlPlane(users={"nobody": ["people"]}, audit=True)
    try:
        plane.start()
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        yield plane
    finally:
        plane.stop(keep_logs=request.session.testsfailed > 0)


@pytest.fixture(scope="session")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with our kinds in it."""
    query = "fieldManager=test&force=true&fieldValidation=Strict"
    for each in definitions():
        path = f"{DEFINITIONS}/{each['metadata']['name']}?{query}"
        control_plane.request("PATCH", path, each, kind="apply-patch+yaml")
    await_kinds(control_plane)
    return control_plane


def await_kinds(plane: ControlPlane) -> None:
    """Wait until the API server serves our kinds."""
    deadline = time.monotonic() + SERVED_TIMEOUT_S
    while True:
        try:
            for plural in ("trainings", "teams", "pools"):
                plane.request("GET", f"/apis/fairlead.dev/v1alpha1/{plural}")
        except urllib.error.HTTPError:
            assert time.monotonic() < deadline, "the kinds are not served"
            time.sleep(0.2)
        else:
            break


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own, deleted after it."""
    name = f"t-{os.getpid()}-{secrets.token_hex(3)}"
    control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    control_plane.await_namespace(name)
    yield name
    control_plane.request("DELETE", f"/api/v1/namespaces/{name}")
