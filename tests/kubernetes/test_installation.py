"""`fairlead install` and `uninstall` on a real API server that has never heard of Fairlead."""

import io
import json
import os
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import main
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Limits
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.manifests.endpoints import render_backends, render_endpoint
from fairlead.specs.serving import Serving
from fairlead.state.snapshot import Intent, Workload
from tests.builders import status
from tests.cli.conftest import Answer
from tests.docs.examples import ROOT, examples_of
from tests.kubernetes.clusters import started
from tests.kubernetes.testcluster import binaries
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes
from tests.processes import Child
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

PAGE = ROOT / "docs" / "clusters.md"

Command = Callable[..., Answer]
ROOT_CA = "kube-root-ca.crt"  # which the controller manager puts into every namespace when it comes to it
# What a cluster at rest makes and takes away by itself.
OF_THE_CLUSTER = ("events", "leases/kube-system", "leases/kube-node-lease", "endpointslices", "endpoints")


@pytest.fixture(scope="module")
def fresh(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane without our kinds; each test takes away what it installs."""
    with started(lambda: ControlPlane(users={"nobody": ["people"], "half": ["people"]}), request) as plane:
        add_nodes(plane, 2, gpus=0)
        until(lambda: _has_accounts(plane), "the default service account of each namespace")
        yield plane


def _has_accounts(plane: ControlPlane) -> bool:
    """Look whether the controller manager has given each namespace its account, which every later listing has."""
    namespaces, accounts = (
        plane.request("GET", f"/api/v1/{each}")["items"] for each in ("namespaces", "serviceaccounts")
    )
    given = {item["metadata"]["namespace"] for item in accounts if item["metadata"]["name"] == "default"}
    return {item["metadata"]["name"] for item in namespaces} <= given


@pytest.fixture
def fairlead(fresh: ControlPlane) -> Iterator[Command]:
    """One command as a user of that cluster; Fairlead is gone after the test."""
    with commands(fresh) as command:
        yield command


@contextmanager
def commands(plane: ControlPlane) -> Iterator[Command]:
    """Commands in this process, and Fairlead is gone afterwards."""

    def command(*arguments: str, user: str = "admin") -> Answer:
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(streams[0]), redirect_stderr(streams[1]):
            patch.setenv("KUBECONFIG", str(plane.kubeconfig(user)))
            code = main.call(list(arguments))
        out, err = (stream.buffer.getvalue().decode() for stream in streams)
        return Answer(code=code, out=out, err=err)

    yield command
    ended = command("uninstall", "--yes", "--with-runs")
    assert ended.code == 0, ended.err


def everything(plane: ControlPlane) -> set[str]:
    """Every object of the cluster, whatever its kind."""
    client = Client(load_access((plane.kubeconfig(),)), Limits(per_second=10_000, burst=10_000))
    groups = [f"/apis/{group['preferredVersion']['groupVersion']}" for group in client.get("/apis")["groups"]]
    found = set()
    for root in ("/api/v1", *groups):
        for resource in _if_there(lambda root=root: client.get(root)["resources"]):  # type: ignore[misc]  # bound
            if "list" not in resource["verbs"] or "/" in resource["name"]:
                continue
            path = f"{root}/{resource['name']}"
            for item in _if_there(lambda path=path: list(client.items(path))):  # type: ignore[misc]  # bound
                metadata = item["metadata"]
                name = f"{resource['name']}/{metadata.get('namespace', '')}/{metadata['name']}"
                if metadata["name"] != ROOT_CA and not any(name.startswith(each) for each in OF_THE_CLUSTER):
                    found.add(name)
    client.close()
    return found


def _if_there(read: Callable[[], list[Any]]) -> list[Any]:
    """What is listed; discovery lags behind a kind that is gone."""
    try:
        return read()
    except ApiError as error:
        if error.status != 404:
            raise
        return []


def outcomes(ended: Answer) -> list[str]:
    assert ended.code == 0, ended.err
    return [each["outcome"] for each in json.loads(ended.out)]


def submit(plane: ControlPlane, name: str, **metadata: Any) -> None:
    body = {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "Training",
        "metadata": {"name": name, **metadata},
        "spec": {"run": "work"},
    }
    plane.request("POST", "/apis/fairlead.dev/v1alpha1/namespaces/default/trainings", body)


@pytest.mark.slow
def test_nothing_is_left_of_an_installation_that_was_taken_away(fresh: ControlPlane, fairlead: Command) -> None:
    before = everything(fresh)
    installed = fairlead("install", "--wait", "--image", "fairlead:test", "--page", "--gateways", "2")
    assert installed.code == 0, installed.err
    assert "The operator is ready." in installed.err
    there = everything(fresh) - before
    assert "deployments/fairlead-system/fairlead-operator" in there
    assert "customresourcedefinitions//trainings.fairlead.dev" in there
    assert "services/fairlead-system/fairlead-page" in there
    assert "deployments/fairlead-gateway/fairlead-gateway" in there
    until(lambda: sum(name.startswith("pods/fairlead-system/") for name in everything(fresh)) == 4)
    gone = fairlead("uninstall", "--yes")
    assert gone.code == 0, gone.err
    assert "Nothing of Fairlead is left" in gone.err
    assert everything(fresh) == before
    assert "There is no Fairlead" in fairlead("uninstall", "--yes").err


@pytest.mark.slow
def test_an_operator_that_does_not_get_ready_is_told_with_the_reason(fresh: ControlPlane, fairlead: Command) -> None:
    nodes = [each["metadata"]["name"] for each in fresh.request("GET", "/api/v1/nodes")["items"]]
    _cordon(fresh, nodes, True)
    try:
        waited = fairlead("install", "--wait", "--timeout", "3", "--image", "fairlead:test")
    finally:
        _cordon(fresh, nodes, False)
    assert waited.code == 7
    assert "The operator is not ready after 3 s: fairlead-operator-" in waited.err
    assert "has no node: 0/2 nodes are available: 2 node(s) were unschedulable" in waited.err
    assert "The operator is ready." in fairlead("install", "--wait", "--replicas", "1").err


@pytest.mark.slow
def test_an_operator_without_an_image_is_refused_and_an_installed_one_keeps_its_own(
    fresh: ControlPlane, fairlead: Command
) -> None:
    before = everything(fresh)
    refused = fairlead("install")
    assert refused.code == 6
    assert "is on no public registry. Give --image-to REGISTRY/NAME" in refused.err
    assert everything(fresh) == before
    assert fairlead("install", "--image", "fairlead:test").code == 0
    assert fairlead("install", "--replicas", "1").code == 0
    place = "/apis/apps/v1/namespaces/fairlead-system/deployments/fairlead-operator"
    (container,) = fresh.request("GET", place)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "fairlead:test"


@pytest.mark.slow
def test_a_dry_run_changes_nothing(fresh: ControlPlane, fairlead: Command) -> None:
    before = everything(fresh)
    assert set(outcomes(fairlead("install", "--dry-run", "--json"))) == {"created"}
    assert everything(fresh) == before


def test_who_lacks_rights_is_told_which_before_anything_changes(fresh: ControlPlane, fairlead: Command) -> None:
    before = everything(fresh)
    refused = fairlead("install", user="nobody")
    assert refused.code == 7
    assert "nobody lacks the rights to install Fairlead" in refused.err
    assert "get, create, patch customresourcedefinitions.apiextensions.k8s.io" in refused.err
    refused = fairlead("uninstall", "--yes", user="nobody")
    assert refused.code == 7
    assert "nobody lacks the rights to uninstall Fairlead" in refused.err
    assert everything(fresh) == before


def test_nobody_gives_rights_that_they_do_not_have(fresh: ControlPlane, fairlead: Command) -> None:
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "create", "patch", "delete", "list"]}]
    rules[0]["resources"] = [
        "namespaces", "customresourcedefinitions", "serviceaccounts", "clusterroles", "clusterrolebindings", "roles",
        "rolebindings", "networkpolicies", "poddisruptionbudgets", "deployments", "priorityclasses",
        "validatingadmissionpolicies", "validatingadmissionpolicybindings",
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
    assert refused.code == 7
    assert "may not give the rights of fairlead-viewer" in refused.err
    assert "not currently held" in refused.err
    assert everything(fresh) == before


@pytest.mark.slow
def test_a_namespace_that_was_there_is_neither_changed_nor_deleted(fresh: ControlPlane, fairlead: Command) -> None:
    space = fresh.request("POST", "/api/v1/namespaces", {"metadata": {"name": "tools"}})
    installed = fairlead("install", "--namespace", "tools", "--replicas", "0")
    assert "left as it is  namespaces/tools" in installed.out
    told = fairlead("doctor", "--cluster", "kubernetes").out
    assert "in tools with 0 replicas, and none runs elsewhere: runs wait" in told
    assert (
        "-> fairlead operator --context test, or fairlead install --image-to REGISTRY/NAME --replicas 2 --context test"
        in told
    )
    elsewhere = fairlead("install", "--image", "fairlead:test")
    assert elsewhere.code == 6
    assert "is installed in namespace tools" in elsewhere.err
    gone = fairlead("uninstall", "--yes")
    assert "left as it is  namespaces/tools  (it existed before Fairlead)" in gone.out
    now = fresh.request("GET", "/api/v1/namespaces/tools")
    assert now["metadata"]["uid"] == space["metadata"]["uid"]
    assert now["metadata"]["labels"] == space["metadata"]["labels"]
    assert not [name for name in everything(fresh) if "fairlead" in name]


@pytest.mark.slow
def test_runs_and_their_kind_stay_until_they_are_wanted_away(fresh: ControlPlane, fairlead: Command) -> None:
    before = everything(fresh)
    fairlead("install", "--replicas", "0")
    # As of a run that an operator had seen, and that nobody ends any more.
    submit(fresh, "kept", finalizers=["fairlead.dev/run"])
    # As the address of an endpoint whose kind is gone before the cluster has collected it.
    endpoint = Workload(
        uid="e", spec=Serving(name="web", run="serve"), intent=Intent.RUN, status=status(), version=1, created_at=0.0
    )
    left = [
        ("/api/v1", render_endpoint(endpoint)),
        ("/apis/discovery.k8s.io/v1", render_backends(endpoint, {}, "IPv4")),
    ]
    for group, content in left:
        del content["metadata"]["ownerReferences"]
        fresh.request("POST", f"{group}/namespaces/default/{content['kind'].lower()}s", content)
    stays = fairlead("uninstall", "--yes")
    assert stays.code == 0
    assert (
        "customresourcedefinitions.apiextensions.k8s.io/trainings.fairlead.dev  (1 object of it would be" in stays.out
    )
    assert (
        "Left without an operator: 1 run; pods keep running. `fairlead uninstall --with-runs --context test`"
        in stays.err
    )
    assert fresh.exists("/apis/fairlead.dev/v1alpha1/namespaces/default/trainings/kept")
    assert not fresh.exists("/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlead-operator")
    gone = fairlead("uninstall", "--yes", "--with-runs")
    assert "deleted        trainings.fairlead.dev/kept in default" in gone.out
    assert everything(fresh) == before
    assert not fresh.exists("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/serve-web")


@pytest.mark.slow
def test_runs_that_an_operator_looks_after_end_before_it_is_taken_away(
    fresh: ControlPlane, fairlead: Command, tmp_path: Path
) -> None:
    before = everything(fresh)
    fairlead("install", "--replicas", "0")
    environ = {**os.environ, "KUBECONFIG": str(fresh.kubeconfig())}
    argv = [sys.executable, "-m", "fairlead.cli.main", "operator", "--listen", "127.0.0.1:0"]
    with Child(argv, env=environ, stderr=subprocess.DEVNULL) as operator:
        try:
            submit(fresh, "busy")
            path = "/api/v1/namespaces/default/pods/busy-0-0"
            until(lambda: fresh.exists(path) and fresh.request("GET", path)["status"]["phase"] == "Running")
            gone = fairlead("uninstall", "--yes", "--with-runs")
        finally:
            operator.terminate()
    assert gone.code == 0, gone.err
    assert "deleted        trainings.fairlead.dev/busy in default" in gone.out
    assert "runs outside of this cluster; stop it there" in gone.err
    until(lambda: everything(fresh) == before)


@pytest.mark.slow
def test_the_commands_of_the_guide_do_what_it_says(fresh: ControlPlane, fairlead: Command, tmp_path: Path) -> None:
    blocks = [example.body for example in examples_of(PAGE) if example.kind == "bash" and "exec" not in example.body]
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(fresh.kubeconfig()),
        "FAIRLEAD_HOME": str(tmp_path / "home"),
    }
    script = "set -e -o pipefail\n" + "\n".join(blocks)
    ended = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    for sentence in ("would be created", "objects created", "nothing was changed", "Nothing of Fairlead is left"):
        assert sentence in ended.stderr, sentence
    assert "something would get in the way" in ended.stdout
    assert "!!  operator" in ended.stdout


@pytest.fixture(scope="class")
def installed(fresh: ControlPlane) -> Iterator[tuple[Command, Answer]]:
    """Commands after an installation without an operator that runs, and what that said."""
    with commands(fresh) as command:
        yield command, command("install", "--json", "--replicas", "0", "--image", "fairlead:1")


class TestAnInstallation:
    """Look at one installation, in this order: each takes its time to make and to take away."""

    @pytest.mark.slow
    def test_a_second_one_changes_nothing_and_says_so(
        self, fresh: ControlPlane, installed: tuple[Command, Answer]
    ) -> None:
        fairlead, first = installed
        assert set(outcomes(first)) == {"created"}
        versions = _versions(fresh)
        again = fairlead("install", "--json", "--replicas", "0", "--image", "fairlead:1")
        assert set(outcomes(again)) == {"unchanged"}
        assert "nothing was changed" in again.err
        assert _versions(fresh) == versions

    def test_it_asks_before_it_removes_anything(self, fresh: ControlPlane, installed: tuple[Command, Answer]) -> None:
        fairlead, _ = installed
        refused = fairlead("uninstall")
        assert refused.code == 2
        assert "give --yes" in refused.err
        assert fresh.exists("/api/v1/namespaces/fairlead-system")

    @pytest.mark.slow
    def test_it_is_renewed_in_place(self, fresh: ControlPlane, installed: tuple[Command, Answer]) -> None:
        fairlead, _ = installed
        role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlead-user"
        fresh.request("PATCH", role, {"rules": []}, kind="merge-patch+json")
        second = ("install", "--replicas", "0", "--image", "fairlead:2")
        asked = fairlead(*second, "--dry-run")
        assert "0 objects would be created and 2 changed" in asked.err
        renewed = fairlead(*second)
        changed = [line.split()[1] for line in renewed.out.splitlines() if line.startswith("changed")]
        assert changed == [
            "clusterroles.rbac.authorization.k8s.io/fairlead-user",
            "deployments.apps/fairlead-operator",
        ]
        deployment = fresh.request("GET", "/apis/apps/v1/namespaces/fairlead-system/deployments/fairlead-operator")
        assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "fairlead:2"


@pytest.mark.long
def test_the_oldest_api_server_gets_the_rules_that_it_takes(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "fairlead.cli.main", "install", "--replicas", "0"]
    with started(lambda: ControlPlane(version=binaries.OLDEST), request) as plane:
        environ = {**os.environ, "KUBECONFIG": str(plane.kubeconfig())}
        for outcome in ("created", "unchanged"):
            ended = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=False)
            assert ended.returncode == 0, ended.stderr
            rows = [line for line in ended.stdout.splitlines() if "trainings.fairlead.dev" in line]
            assert [row.split()[0] for row in rows] == [outcome]
            assert "without the rules above the cost limit of this API server" in rows[0]


def _cordon(plane: ControlPlane, nodes: list[str], is_cordoned: bool) -> None:
    for node in nodes:
        body = {"spec": {"unschedulable": is_cordoned or None}}
        plane.request("PATCH", f"/api/v1/nodes/{node}", body, kind="merge-patch+json")


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
