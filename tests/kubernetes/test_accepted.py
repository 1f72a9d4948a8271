"""A real API server takes everything that we render: pods where "restricted" is enforced, teams and the install."""

from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.applying import place_of
from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install
from fairlead.cluster.kubernetes.manifests.network_policies import render_run_policy
from fairlead.cluster.kubernetes.manifests.pods import render_pod
from fairlead.cluster.kubernetes.manifests.runtime_bundle import render_bundle
from fairlead.cluster.kubernetes.manifests.services import render_service, render_slice
from fairlead.cluster.kubernetes.manifests.teams import TeamSettings, render_team
from fairlead.specs.team import Quota, Team
from tests.kubernetes.builders import SETTINGS, a_creation, a_training, a_workload
from tests.kubernetes.test_pods import CASES
from tests.kubernetes.testcluster.control_plane import ControlPlane


def applied(plane: ControlPlane, content: dict[str, Any], *, dry: bool = False) -> dict[str, Any]:
    """The object after server-side apply, where unknown fields are mistakes."""
    query = "fieldManager=test&force=true&fieldValidation=Strict" + ("&dryRun=All" if dry else "")
    answer: dict[str, Any] = plane.request(
        "PATCH", f"{place_of(content).path}?{query}", content, kind="apply-patch+yaml"
    )
    return answer


@pytest.fixture
def team(control_plane: ControlPlane, namespace: str) -> str:
    """A namespace that is a team's, with all that belongs to it."""
    for each in render_team(Team(name=namespace, quota=Quota(cpu_milli=10**6, gpu_milli=64_000)), TeamSettings()):
        applied(control_plane, each)
    return namespace


@pytest.mark.parametrize("case", ["plain", "gang_of_gpus_on_spot", "share_of_a_gpu"])
def test_pods_are_accepted_where_restricted_is_enforced(control_plane: ControlPlane, team: str, case: str) -> None:
    spec, creation, settings, device = CASES[case]
    workload = a_workload(a_training(**{**spec, "team": team}))
    pod = render_pod(workload, a_creation(**creation), settings, device=device)
    names = render_slice(workload, 0, {pod["metadata"]["name"]: "10.0.0.1"})
    for each in (render_service(workload), names, render_run_policy(workload), render_bundle(team), pod):
        applied(control_plane, each, dry=True)


def test_a_second_apply_of_the_same_objects_changes_nothing(control_plane: ControlPlane, team: str) -> None:
    workload = a_workload(a_training(team=team))
    for each in (render_service(workload), render_run_policy(workload), render_bundle(team)):
        each["metadata"].pop("ownerReferences", None)  # the owner is made up, and what has none is collected
        before = applied(control_plane, each)
        assert applied(control_plane, each)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_a_second_apply_of_a_pod_is_no_change_of_what_it_is_to_be(control_plane: ControlPlane, team: str) -> None:
    pod = render_pod(a_workload(a_training(team=team)), a_creation(), SETTINGS)
    del pod["metadata"]["ownerReferences"]
    before = applied(control_plane, pod)
    assert applied(control_plane, pod)["spec"] == before["spec"]


@pytest.mark.slow
def test_the_install_is_accepted_whole_and_applies_again(control_plane: ControlPlane, namespace: str) -> None:
    objects = render_install(InstallSettings(image="fairlead:test", namespace=namespace))
    for each in objects:
        applied(control_plane, each)
    for each in objects:
        applied(control_plane, each)
