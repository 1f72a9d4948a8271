"""`fairlead install` and `uninstall` on a real API server that has never heard of Fairlead."""

import json
import os
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.errors import Unavailable
from tests.kubernetes.testcluster.fakes import add_nodes

pytestmark = pytest.mark.kubernetes

Command = Callable[..., subprocess.CompletedProcess[str]]
# What a cluster at rest makes and takes away by itself.
OF_THE_CLUSTER = ("events", "leases/kube-system", "leases/kube-node-lease", "endpointslices", "endpoints")


@pytest.fixture(scope="module")
def fresh() -> Iterator[ControlPlane]:
    """A control plane without our kinds; each test takes away what it installs."""
    plane = ControlPlane(users={"nobody": ["people"], "half": ["people"]})
    try:
        plane.start()
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        add_nodes(plane, 2, gpus=0)
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def fairlead(fresh: ControlPlane, tmp_path: Path) -> Iterator[Command]:
    """One command as a user of that cluster; Fairlead is gone after the test."""

    def command(*arguments: str, user: str = "admin") -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "fairlead.cli.main", *arguments]
        environ = {**os.environ, "KUBECONFIG": str(fresh.kubeconfig(user))}
        ended = subprocess.run(
            argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert "our mistake" not in ended.stderr
        return ended

    yield command
    ended = command("uninstall", "--yes", "--with-runs")
    assert ended.returncode == 0, ended.stderr


def everything(plane: ControlPlane) -> set[str]:
    """Every object of the cluster, whatever its kind."""
    groups = [f"/apis/{group['preferredVersion']['groupVersion']}" for group in plane.request("GET", "/apis")["groups"]]
    found = set()
    for root in ("/api/v1", *groups):
        for resource in plane.request("GET", root)["resources"]:
            if "list" not in resource["verbs"] or "/" in resource["name"]:
                continue
            for item in _listed(plane, f"{root}/{resource['name']}"):
                metadata = item["metadata"]
                name = f"{resource['name']}/{metadata.get('namespace', '')}/{metadata['name']}"
                if not any(name.startswith(each) for each in OF_THE_CLUSTER):
                    found.add(name)
    return found


def _listed(plane: ControlPlane, path: str) -> list[Any]:
    """The objects of a list; a kind that comes or goes is refused for a moment."""
    for _ in range(100):
        try:
            return list(plane.request("GET", path)["items"])
        except urllib.error.HTTPError as error:
            if error.code == 404:  # discovery lags behind a kind that is gone
                return []
            if error.code != 429:
                raise
            time.sleep(0.2)
    raise AssertionError(f"{path} is not served")


def outcomes(ended: subprocess.CompletedProcess[str]) -> list[str]:
    assert ended.returncode == 0, ended.stderr
    return [each["outcome"] for each in json.loads(ended.stdout)]


def submit(plane: ControlPlane, name: str, **metadata: Any) -> None:
    body = {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "Training",
        "metadata": {"name": name, **metadata},
        "spec": {"run": "work"},
    }
    plane.request("POST", "/apis/fairlead.dev/v1alpha1/namespaces/default/trainings", body)


def test_nothing_is_left_of_an_installation_that_was_taken_away(fresh: ControlPlane, fairlead: Command) -> None:
    before = everything(fresh)
    installed = fairlead("install", "--wait", "--image", "fairlead:test")
    assert installed.returncode == 0, installed.stderr
    assert "The operator is ready." in installed.stderr
    there = everything(fresh) - before
    assert "deployments/fairlead-system/fairlead-operator" in there
    assert "customresourcedefinitions//trainings.fairlead.dev" in there
    assert sum(name.startswith("pods/fairlead-system/") for name in there) == 2
    gone = fairlead("uninstall", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert "Nothing of Fairlead is left" in gone.stderr
    assert everything(fresh) == before
    assert "There is no Fairlead" in fairlead("uninstall", "--yes").stderr


def test_a_second_installation_changes_nothing_and_says_so(fresh: ControlPlane, fairlead: Command) -> None:
    first = outcomes(fairlead("install", "--json"))
    assert set(first) == {"created"}
    versions = _versions(fresh)
    again = fairlead("install", "--json")
    assert set(outcomes(again)) == {"unchanged"}
    assert "nothing was changed" in again.stderr
    assert _versions(fresh) == versions


def test_an_installation_is_renewed_in_place(fresh: ControlPlane, fairlead: Command) -> None:
    outcomes(fairlead("install", "--json", "--image", "fairlead:1"))
    fresh.request(
        "PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlead-user", {"rules": []}, kind="merge-patch+json"
    )
    asked = fairlead("install", "--dry-run", "--image", "fairlead:2")
    assert "0 objects would be created and 2 changed" in asked.stderr
    renewed = fairlead("install", "--image", "fairlead:2")
    changed = [line.split()[1] for line in renewed.stdout.splitlines() if line.startswith("changed")]
    assert changed == [
        "clusterroles.rbac.authorization.k8s.io/fairlead-user",
        "deployments.apps/fairlead-operator",
    ]
    deployment = fresh.request("GET", "/apis/apps/v1/namespaces/fairlead-system/deployments/fairlead-operator")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "fairlead:2"


def test_a_dry_run_changes_nothing(fresh: ControlPlane, fairlead: Command) -> None:
    before = everything(fresh)
    assert set(outcomes(fairlead("install", "--dry-run", "--json"))) == {"created"}
    assert everything(fresh) == before


def test_who_lacks_rights_is_told_which_before_anything_changes(fresh: ControlPlane, fairlead: Command) -> None:
    before = everything(fresh)
    refused = fairlead("install", user="nobody")
    assert refused.returncode == 7
    assert "nobody lacks the rights to install Fairlead" in refused.stderr
    assert "get, create, patch customresourcedefinitions.apiextensions.k8s.io" in refused.stderr
    assert everything(fresh) == before


def test_nobody_gives_rights_that_they_do_not_have(fresh: ControlPlane, fairlead: Command) -> None:
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "create", "patch", "delete", "list"]}]
    rules[0]["resources"] = [
        "namespaces", "customresourcedefinitions", "serviceaccounts", "clusterroles", "clusterrolebindings", "roles",
        "rolebindings", "networkpolicies", "poddisruptionbudgets", "deployments",
    ]  # fmt: skip
    api = "rbac.authorization.k8s.io"
    role = {"metadata": {"name": "half"}, "rules": rules}
    binding = {
        "metadata": {"name": "half"},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "half"},
        "subjects": [{"kind": "User", "name": "half", "apiGroup": api}],
    }
    fresh.request("POST", f"/apis/{api}/v1/clusterroles", role)
    fresh.request("POST", f"/apis/{api}/v1/clusterrolebindings", binding)
    before = everything(fresh)
    refused = fairlead("install", user="half")
    assert refused.returncode == 7
    assert "may not give the rights of fairlead-viewer" in refused.stderr
    assert "not currently held" in refused.stderr
    assert everything(fresh) == before


def test_a_namespace_that_was_there_is_neither_changed_nor_deleted(fresh: ControlPlane, fairlead: Command) -> None:
    space = fresh.request("POST", "/api/v1/namespaces", {"metadata": {"name": "tools"}})
    installed = fairlead("install", "--namespace", "tools", "--replicas", "0")
    assert "left as it is  namespaces/tools" in installed.stdout
    elsewhere = fairlead("install")
    assert elsewhere.returncode == 6
    assert "is installed in namespace tools" in elsewhere.stderr
    gone = fairlead("uninstall", "--yes")
    assert "left as it is  namespaces/tools  (it was there before Fairlead)" in gone.stdout
    now = fresh.request("GET", "/api/v1/namespaces/tools")
    assert now["metadata"]["uid"] == space["metadata"]["uid"]
    assert now["metadata"]["labels"] == space["metadata"]["labels"]
    assert not [name for name in everything(fresh) if "fairlead" in name]


def test_runs_and_their_kind_stay_until_they_are_wanted_away(fresh: ControlPlane, fairlead: Command) -> None:
    before = everything(fresh)
    fairlead("install", "--replicas", "0")
    # As of a run that an operator had seen, and that nobody ends any more.
    submit(fresh, "kept", finalizers=["fairlead.dev/run"])
    stays = fairlead("uninstall", "--yes")
    assert stays.returncode == 0
    assert "customresourcedefinitions.apiextensions.k8s.io/trainings.fairlead.dev  (1 of them" in stays.stdout
    assert "1 runs stay" in stays.stderr
    assert fresh.exists("/apis/fairlead.dev/v1alpha1/namespaces/default/trainings/kept")
    assert not fresh.exists("/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlead-operator")
    gone = fairlead("uninstall", "--yes", "--with-runs")
    assert "deleted        trainings.fairlead.dev/kept in default" in gone.stdout
    assert everything(fresh) == before


def test_it_asks_before_it_removes_anything(fresh: ControlPlane, fairlead: Command) -> None:
    fairlead("install", "--replicas", "0")
    refused = fairlead("uninstall")
    assert refused.returncode == 2
    assert "give --yes" in refused.stderr
    assert fresh.exists("/api/v1/namespaces/fairlead-system")


def _versions(plane: ControlPlane) -> list[str]:
    found = []
    for path in (
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainings.fairlead.dev",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlead-operator",
        "/api/v1/namespaces/fairlead-system",
        "/apis/networking.k8s.io/v1/namespaces/fairlead-system/networkpolicies/fairlead-operator",
    ):
        try:
            found.append(str(plane.request("GET", path)["metadata"]["resourceVersion"]))
        except urllib.error.HTTPError as error:
            raise AssertionError(path) from error
    return found
