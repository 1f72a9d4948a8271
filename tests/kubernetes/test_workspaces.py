"""Workspaces in pods: a pod like that of any run, with a claim that outlives it, which nobody else can reach."""

import io
import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.client.user_client import UserClient
from fairlead.cluster.kubernetes.client.workspaces import PodServer, write_ssh_config
from fairlead.cluster.kubernetes.manifests import workspaces
from fairlead.cluster.kubernetes.manifests.pods import PodSettings, render_pod
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.cluster.local.workspaces import WorkspaceAddress
from fairlead.errors import Conflict
from fairlead.specs.formats.reading import parse
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.workspace import Ide, Workspace, WorkspaceHome
from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import Grant, Intent, Phase, Workload, is_leaf
from tests.builders import status
from tests.kubernetes.operating import live_pods, operating
from tests.waiting import until

GIB = 1024**3
SETTINGS = PodSettings(runtime="fairlead-runtime-0")
FAKES = overlay({"metadata": {"annotations": {"fake/start": "0.1s", "fake/on-term": "ends"}}})


def a_workspace(namespace: str = "default", **changes: Any) -> Workspace:
    """A workspace as an admission leaves it."""
    resources = Resources(cpu_milli=100, memory_bytes=GIB // 8)
    spec = Workspace(name="dev", team=namespace, image="jupyter", resources=resources, kubernetes=FAKES)
    return replace(spec, **changes)


def rendered(spec: Workspace, settings: PodSettings = SETTINGS) -> dict[str, Any]:
    run = Workload(uid="u-1", spec=spec, intent=Intent.RUN, status=status(Phase.STARTING), version=1, created_at=0.0)
    member = CreatePod(attempt=0, index=0, node="n1", grant=Grant(cpu_milli=100, memory_bytes=GIB // 8))
    spec_of_pod: dict[str, Any] = render_pod(run, member, settings)["spec"]
    return spec_of_pod


def settings_in(pod: dict[str, Any]) -> dict[str, Any]:
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    read: dict[str, Any] = json.loads(json.loads(env["FAIRLEAD_INSTRUCTIONS"])["env"]["FAIRLEAD_WORKSPACE"])
    return read


def test_its_server_listens_on_the_loopback_of_its_pod_which_has_no_port() -> None:
    pod = rendered(a_workspace())
    assert settings_in(pod)["host"] == "127.0.0.1"
    assert "ports" not in pod["containers"][0]
    assert "workspace.json" in pod["containers"][0]["startupProbe"]["exec"]["command"][-1]


def test_its_home_is_a_claim_of_its_name_and_its_process_is_beside_the_runtime() -> None:
    pod = rendered(a_workspace())
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["fairlead-home"]["persistentVolumeClaim"] == {"claimName": "fairlead-home-dev"}
    maps = [source["configMap"]["name"] for source in volumes["fairlead-runtime"]["projected"]["sources"]]
    assert maps == ["fairlead-runtime-0", workspaces.bundle_name()]
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert (env["HOME"], env["FAIRLEAD_COMMAND"]) == ("/fairlead/home", "python3 /fairlead/runtime/workspace.pyz")
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert mounts["fairlead-home"] == settings_in(pod)["home"] == settings_in(pod)["root"] == "/fairlead/home"


def test_files_that_went_along_are_opened_in_its_home_and_a_directory_of_the_image_where_it_is() -> None:
    code = replace(SETTINGS, workdir=("fairlead-workdir-0123456789abcdef-0",))
    assert settings_in(rendered(a_workspace(workdir="."), code))["root"] == "/fairlead/home/code-0123456789ab"
    stored = replace(SETTINGS, archive="s3://bucket/workdirs/0123456789abcdef.tar.gz")
    assert settings_in(rendered(a_workspace(workdir="."), stored))["root"] == "/fairlead/home/code-0123456789ab"
    assert settings_in(rendered(a_workspace(workdir="/app")))["root"] is None


def test_use_of_gpus_is_measured_in_the_pod_of_a_workspace_that_has_some() -> None:
    assert not settings_in(rendered(a_workspace()))["watches_gpus"]
    gpus = Resources(cpu_milli=100, memory_bytes=GIB, gpu=GpuRequest(milli=1000))
    assert settings_in(rendered(a_workspace(resources=gpus)))["watches_gpus"]


def test_its_claim_has_no_owner_and_the_size_and_class_that_are_asked_for() -> None:
    plain = workspaces.render_claim(a_workspace())
    assert plain["spec"] == {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": str(10 * GIB)}},
    }  # fmt: skip
    assert "ownerReferences" not in plain["metadata"]
    large = workspaces.render_claim(a_workspace(home=WorkspaceHome(size_bytes=GIB, storage_class="fast")))
    assert (large["spec"]["resources"]["requests"]["storage"], large["spec"]["storageClassName"]) == (str(GIB), "fast")


def test_a_pod_tells_the_address_and_the_keys_of_its_server_to_the_command_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "workspace.pyz"
    archive.write_bytes(workspaces.bundle())
    monkeypatch.setattr(sys, "argv", [str(archive), "address", str(tmp_path)])

    def told() -> tuple[object, str]:
        output = io.StringIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", output)
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(archive), run_name="__main__")
        return ended.value.code, output.getvalue()

    assert told() == (75, "")
    record = {"ide": "ssh", "url": "ssh://work@127.0.0.1:29500", "ssh_config": "x", "user": "work"}
    (tmp_path / "workspace.json").write_text(json.dumps(record))
    (tmp_path / "user_key").write_text("SECRET\n")
    (tmp_path / "host_key.pub").write_text("ssh-ed25519 AAAA\n")
    code, text = told()
    assert (code, json.loads(text)["user_key"], json.loads(text)["host_key.pub"]) == (
        0,
        "SECRET\n",
        "ssh-ed25519 AAAA\n",
    )


def test_what_a_pod_tells_is_no_further_option_of_ssh(tmp_path: Path) -> None:
    address = WorkspaceAddress(url="ssh://x", ssh_config="x")
    server = PodServer(address=address, user="me\n  ProxyCommand evil", keys=("KEY", "ssh-ed25519 A\n@evil B"))
    config = write_ssh_config(tmp_path / "c.team.dev", server, ("fairlead", "ssh", "--stdio", "a b"))
    lines = config.read_text().splitlines()
    assert [line for line in lines if "ProxyCommand" in line] == ["  ProxyCommand env fairlead ssh --stdio 'a b'"] or (
        "KUBECONFIG=" in config.read_text()
    )
    assert "evil" not in config.read_text() + (tmp_path / "c.team.dev" / "known_hosts").read_text()
    assert (tmp_path / "c.team.dev" / "user_key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("keys", "refusal"),
    [
        ("ide: jupyter", "`environment: {packages: [...]}`, with which jupyterlab goes along, or an `image`"),
        ("ide: ssh", "an `image` with openssh-server, Python and a user of the number 1000"),
        ("image: jupyter\nhome: ~/work", "on Kubernetes the home is a claim; leave it out, or give `size` and `class`"),
    ],
)
def test_what_cannot_work_in_a_pod_is_refused_with_what_would(keys: str, refusal: str) -> None:
    from fairlead.cluster.preflight import pod_server_problem

    (spec,) = parse(f"kind: Workspace\nname: dev\n{keys}\n", source="dev.yaml", default_name="dev")
    assert isinstance(spec, Workspace)
    problem = pod_server_problem(spec)
    assert problem is not None
    assert refusal in problem
    assert pod_server_problem(a_workspace(ide=Ide.SSH, image="mine")) is None


def claims(cluster: WorkloadApi, namespace: str) -> dict[str, str]:
    """The names and uids of the claims of a namespace that are not being deleted."""
    items = cluster.client.items(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims")
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in items}


def comes_to(cluster: WorkloadApi, namespace: str, phase: Phase) -> Workload:
    """The workspace, once it is in a phase."""

    def workspace() -> Workload | None:
        current = cluster.read("Workspace", namespace, "dev")
        run = None if current is None else current[1].workload
        return run if run is not None and is_leaf(run) and run.status.phase is phase else None

    def told() -> object:
        current = cluster.read("Workspace", namespace, "dev")
        pods = cluster.client.items(f"/api/v1/namespaces/{namespace}/pods")
        return None if current is None else current[1].state.status, [pod.get("status") for pod in pods]

    reached: Workload = until(workspace, told)
    return reached


@pytest.mark.kubernetes
@pytest.mark.slow
def test_its_home_outlives_a_suspension_and_even_its_deletion(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    volume = {
        "metadata": {"name": f"{namespace}-home"},
        "spec": {
            "hostPath": {"path": "/nowhere"}, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "storageClassName": namespace,
        },
    }  # fmt: skip
    cluster.client.create("/api/v1/persistentvolumes", volume)
    spec = a_workspace(namespace, home=WorkspaceHome(size_bytes=GIB, storage_class=namespace))
    cluster.submit(spec)
    with operating(access, namespace):
        run = comes_to(cluster, namespace, Phase.RUNNING)
        home = claims(cluster, namespace)
        assert list(home) == ["fairlead-home-dev"]
        assert live_pods(cluster, namespace) == ["dev-0-0"]
        cluster.set_intent(run.uid, Intent.SUSPEND)
        comes_to(cluster, namespace, Phase.SUSPENDED)
        until(lambda: live_pods(cluster, namespace) == [])
        cluster.set_intent(run.uid, Intent.RUN)
        comes_to(cluster, namespace, Phase.RUNNING)
        cluster.set_intent(run.uid, Intent.DELETE)
        until(lambda: cluster.read("Workspace", namespace, "dev") is None)
        assert claims(cluster, namespace) == home
        cluster.submit(spec)
        comes_to(cluster, namespace, Phase.RUNNING)
        assert claims(cluster, namespace) == home


def test_karmada_which_gives_trainings_away_is_given_no_workspace() -> None:
    client = UserClient(cast(Any, None), namespace="default")
    client._karmada = True
    with pytest.raises(Conflict, match="Karmada gives Trainings to its clusters, and a Workspace is not one"):
        client.launch(a_workspace())
