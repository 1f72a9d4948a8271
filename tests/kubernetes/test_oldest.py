"""The contract on the oldest Kubernetes that we support; slow, since it takes a control plane of its own."""

import json
import urllib.error
from collections.abc import Iterator

import pytest

from fairlead.cluster.kubernetes.manifests.crds import definitions, with_fewer_rules
from fairlead.specs.keys import API_VERSION
from tests.kubernetes import test_cluster as newest
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.binaries import OLDEST
from tests.kubernetes.testcluster.control_plane import ControlPlane

MERGE = "merge-patch+json"
OBJECT = {"apiVersion": API_VERSION, "kind": "Training", "spec": {"run": "true"}}

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

prepared, harness = newest.prepared, newest.harness


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The oldest control plane with our kinds, of which it can bear fewer rules."""
    with started(lambda: ControlPlane(version=OLDEST), request) as plane:
        for each in definitions():
            applied(plane, with_fewer_rules(each))
        await_kinds(plane)
        yield plane


class TestOldestKubernetes(newest.TestKubernetesCluster):
    """Every promise of the port that the newest keeps."""


def test_an_edit_is_judged_by_the_phase_of_the_run(plane: ControlPlane) -> None:
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "edits"}})
    place = "/apis/fairlead.dev/v1alpha1/namespaces/edits/trainings"
    plane.request("POST", place, {**OBJECT, "metadata": {"name": "train"}})

    def edited(phase: str, nodes: int) -> str:
        """What the API server says of an edit in a phase; empty when it takes it."""
        plane.request("PATCH", f"{place}/train/status", {"status": {"phase": phase}}, kind=MERGE)
        try:
            plane.request("PATCH", f"{place}/train", {"spec": {"nodes": nodes}}, kind=MERGE)
        except urllib.error.HTTPError as error:
            return str(json.loads(error.read())["message"])
        return ""

    assert edited("Suspended", 2) == ""
    assert "it is Running with the spec that it was started with. Suspend it first" in edited("Running", 3)
    assert edited("Failed", 3) == ""
    assert "it has succeeded, so that its spec stays as it is" in edited("Succeeded", 4)
    assert plane.request("GET", f"{place}/train")["spec"]["nodes"] == 3
