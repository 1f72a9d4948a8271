"""Specs that were written to do harm: what they say in any field reaches no shell, no other namespace and no host.

Every field of a whole spec takes every hostile text in turn. What both judges take is really created, with all that is
made of it; what they refuse, they refuse together.
"""

import copy
import json
import urllib.error
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests.network_policies import render_run_policy
from fairlead.cluster.kubernetes.manifests.pods import render_pod
from fairlead.cluster.kubernetes.manifests.services import render_service, render_slice
from fairlead.cluster.kubernetes.manifests.teams import TeamSettings, render_team
from fairlead.cluster.kubernetes.workloads.run_record import read_training
from fairlead.specs.team import Team
from fairlead.state.snapshot import Workload
from tests.kubernetes.builders import SETTINGS, a_creation
from tests.kubernetes.judges import our_verdict, server_verdict
from tests.kubernetes.objects import RIGHT, Object, places, whole
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_pods import meets_restricted
from tests.kubernetes.testcluster.control_plane import ControlPlane

NUM_OF_EACH = 150  # taken, and refused, when every text is tried
LISTS = (
    "/api/v1/pods", "/api/v1/services", "/api/v1/configmaps", "/api/v1/secrets", "/api/v1/serviceaccounts",
    "/apis/networking.k8s.io/v1/networkpolicies", "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "/apis/fairlead.dev/v1alpha1/trainings",
)  # fmt: skip
OVERLAYS: dict[str, Object] = {
    "another namespace": {"metadata": {"namespace": "kube-system"}},
    "another name": {"metadata": {"name": "kube-apiserver"}},
    "an owner": {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/stay"]}},
    "our labels": {"metadata": {"labels": {"fairlead.dev/run-uid": "another"}}},
    "the host's network": {"spec": {"hostNetwork": True}},
    "the host's processes": {"spec": {"hostPID": True}},
    "the host's files": {"spec": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}},
    "another node": {"spec": {"nodeName": "control-plane"}},
    "the host's devices": {"spec": {"containers": [{"name": "ranks", "securityContext": {"privileged": True}}]}},
    "root": {"spec": {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}}},
    "another command": {"spec": {"containers": [{"name": "ranks", "command": ["sh", "-c", "reboot"]}]}},
}


def a_pod_s_worth() -> Object:
    """A spec with every field, whose pod an API server takes."""
    return copy.deepcopy(RIGHT["Training"])


def hostile(canary: Path) -> tuple[str, ...]:
    """Texts; a file named `canary` would be there if a shell saw one of the first."""
    return (
        f"$(touch {canary})", f"`touch {canary}`", f"x; touch {canary} #", f"' || touch {canary} || '",
        f'"; touch {canary}; "', f"x\ntouch {canary}", "../../../../etc/shadow", "/etc/kubernetes/pki", "kube-system",
        "../kube-system", "x\n---\nkind: ClusterRoleBinding", "$(FAIRLEAD_COMMAND)", "-rf", "{{ .Release.Name }}",
    )  # fmt: skip


def variants(canary: Path) -> Iterator[tuple[str, Object]]:
    """Whole specs with one hostile text each, and where it is."""
    for number in range(len(list(places(a_pod_s_worth())))):
        for text in hostile(canary):
            spec = a_pod_s_worth()
            holder, key = list(places(spec))[number]
            of_overlay = any(holder is inner for inner in _holders(spec["kubernetes"]))
            if isinstance(holder[key], (str, int, float)):
                holder[key] = text
            elif isinstance(holder, dict):
                holder[text] = holder.pop(key)
            yield "overlay" if of_overlay else str(key), spec


@pytest.fixture
def team(plane: ControlPlane, namespace: str) -> str:
    """A team's namespace, with everything that holds it in bounds."""
    for each in render_team(Team(name=namespace), TeamSettings()):
        applied(plane, each)
    return namespace


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_what_a_spec_says_in_any_field_stays_what_it_is(
    plane: ControlPlane, team: str, tmp_path: Path, every: int
) -> None:
    canary = tmp_path / "canary"
    before, commands = elsewhere(plane, team), set()
    num_created = num_refused = 0
    for number, (where, spec) in enumerate(islice(variants(canary), 0, None, every)):
        content = whole("Training", spec, f"h{number}")
        content["metadata"]["namespace"] = team
        ours = our_verdict(content)
        if not ours.accepted:
            assert not server_verdict(plane.request, content).accepted, (where, spec)
            num_refused += 1
            continue
        run = created(plane, team, content)
        pod = render_pod(run, a_creation(), SETTINGS)
        commands.add(json.dumps([[each["command"], each.get("args")] for each in pod["spec"]["containers"]]))
        assert pod["metadata"]["namespace"] == team, where
        for path, each in (
            (f"/api/v1/namespaces/{team}/services", render_service(run)),
            (f"/apis/discovery.k8s.io/v1/namespaces/{team}/endpointslices", render_slice(run, 0, {"a": "10.0.0.1"})),
            (f"/apis/networking.k8s.io/v1/namespaces/{team}/networkpolicies", render_run_policy(run)),
        ):
            plane.request("POST", path, each)
        refusal = refusal_of(plane, team, pod)
        assert not refusal or where == "overlay", (where, refusal, spec)
        assert refusal[:3] in ("", "400", "403", "422"), (where, refusal, spec)
        assert refusal or meets_restricted(pod), (where, spec)
        num_created += 1
    assert len(commands) == 1, "a spec decides what Kubernetes runs"
    assert elsewhere(plane, team) <= before
    assert not canary.exists()
    assert min(num_created, num_refused) * every > NUM_OF_EACH


@pytest.mark.parametrize("wish", OVERLAYS)
def test_an_overlay_reaches_neither_a_host_nor_another_namespace(plane: ControlPlane, team: str, wish: str) -> None:
    content = whole("Training", {"run": "work", "kubernetes": OVERLAYS[wish]}, "overlaid")
    content["metadata"]["namespace"] = team
    if not our_verdict(content).accepted:
        assert not server_verdict(plane.request, content).accepted
        return
    run = created(plane, team, content)
    pod = render_pod(run, a_creation(), SETTINGS)
    assert (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (team, "overlaid-0-0")
    assert "violates PodSecurity" in refusal_of(plane, team, pod)


def created(plane: ControlPlane, namespace: str, content: Object) -> Workload:
    """The run of an object that the API server took."""
    stored = plane.request("POST", f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings", content)
    run = read_training(stored).workload
    assert run is not None
    return run


def refusal_of(plane: ControlPlane, namespace: str, pod: Object) -> str:
    """What the API server says against a pod; nothing when it takes it."""
    try:
        plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
    except urllib.error.HTTPError as error:
        return f"{error.code} {json.load(error)['message']}"
    return ""


def elsewhere(plane: ControlPlane, namespace: str) -> set[str]:
    """Everything of interest that is in no namespace or in another."""
    return {
        f"{path} {item['metadata'].get('namespace')}/{item['metadata']['name']}"
        for path in LISTS
        for item in plane.request("GET", path)["items"]
        if item["metadata"].get("namespace") != namespace
    }


def _holders(top: Any) -> Iterator[Any]:
    """A mapping and all mappings and lists in it."""
    yield top
    for holder, key in places(top):
        if isinstance(holder[key], (dict, list)):
            yield holder[key]
