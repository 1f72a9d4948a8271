"""One real control plane for all tests of a session; each test has its own namespace."""

import os
import secrets
from collections.abc import Iterator

import pytest

from tests.kubernetes.operating import teach_kinds
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.errors import Unavailable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for the control plane is a Kubernetes test."""
    for item in items:
        if {"control_plane", "namespace", "plane"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kubernetes)


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane without nodes; tests add fake ones of their own."""
    plane = ControlPlane(users={"nobody": ["people"]})
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
