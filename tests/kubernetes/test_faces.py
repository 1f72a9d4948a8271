"""The command line on a real control plane whose nodes are played by kwok, with a real operator process beside it."""

import io
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cli import main
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.kinds import objects_path, workload_kinds
from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.roles import OPERATOR, render_binding, render_operator_bindings, render_roles
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import teach_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.processes import Child
from tests.waiting import IN_CI, until

pytestmark = pytest.mark.kubernetes

COMMAND = (sys.executable, "-m", "fairlead.cli.main")
PATIENCE_S = 180.0  # a busy machine takes its time over a process


@dataclass(frozen=True, kw_only=True)
class Answer:
    code: int
    out: str
    err: str


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A user with a kubeconfig, in a directory of their own, whose commands are processes or run in this one."""

    directory: Path
    environ: dict[str, str]
    namespace: str
    operator_config: Path
    in_process: bool = False

    def __call__(self, *arguments: str, code: int | None = 0, timeout_s: float = PATIENCE_S) -> Answer:
        ended = self._called(arguments) if self.in_process else self._started(arguments, timeout_s)
        assert "Traceback" not in ended.err
        assert "internal error" not in ended.err, ended.err
        assert code in (None, ended.code), ended
        return ended

    def _started(self, arguments: Sequence[str], timeout_s: float) -> Answer:
        ended = subprocess.run(
            [*COMMAND, *arguments], cwd=self.directory, env=self.environ, capture_output=True, text=True,
            timeout=IN_CI * timeout_s, check=False,
        )  # fmt: skip
        return Answer(code=ended.returncode, out=ended.stdout, err=ended.stderr)

    def _called(self, arguments: Sequence[str]) -> Answer:
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(streams[0]), redirect_stderr(streams[1]):
            patch.chdir(self.directory)
            for name in os.environ.keys() - self.environ.keys():
                patch.delenv(name)
            for name, value in self.environ.items():
                patch.setenv(name, value)
            code = main.call(list(arguments))
        out, err = (stream.buffer.getvalue().decode() for stream in streams)
        return Answer(code=code, out=out, err=err)

    def write(self, name: str, *, file: str = "train.yaml", workdir: str | None = None, **more: Any) -> str:
        """A spec of a run whose pods behave as ``fake`` says."""
        fakes = {f"fake/{key}": value for key, value in more.pop("fake", {}).items()}
        content = {"name": name, "image": "python:3.12-slim", "run": "python train.py", **more}
        content["resources"] = {"cpu": 1, "memory": "64Mi", **more.get("resources", {})}
        if workdir is not None:
            content["workdir"] = workdir
        if fakes:
            content["kubernetes"] = {"metadata": {"annotations": fakes}}
        (self.directory / file).write_text(yaml.safe_dump(content))
        return file


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane of its own, for here people are told what is free on all its nodes."""
    with started(lambda: ControlPlane(users={"nobody": ["people"]}), request) as plane:
        teach_kinds(plane)
        yield plane


@pytest.fixture
def namespace(plane: ControlPlane) -> str:
    """A namespace of the test's own."""
    name = f"t-{secrets.token_hex(3)}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    plane.await_namespace(name)
    return name


@pytest.fixture(scope="module")
def prepared(plane: ControlPlane) -> ControlPlane:
    for content in render_roles():
        applied(plane, content)
    add_nodes(plane, 2, prefix="faces", gpus=2, cpu="8")
    until(lambda: all(is_ready(node) for node in plane.request("GET", "/api/v1/nodes")["items"]))
    return plane


@pytest.fixture
def desk(prepared: ControlPlane, namespace: str, tmp_path: Path) -> Desk:
    (tmp_path / "desk").mkdir()
    return replace(a_desk(prepared, namespace, tmp_path / "desk"), in_process=True)


def a_desk(plane: ControlPlane, namespace: str, directory: Path) -> Desk:
    """A desk in a namespace; an operator for it has the rights that an installed one has and no others."""
    for binding in render_operator_bindings(namespace):
        applied(plane, binding)  # the cluster's one moves to the operator of this test
    kubeconfig = plane.kubeconfig(namespace=namespace)
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"]["as"] = f"system:serviceaccount:{namespace}:{OPERATOR}"
    operator_config = directory.parent / "operator.yaml"
    operator_config.write_text(yaml.safe_dump(config))
    variables = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
    home = str(directory.parent / "home")
    environ = {**variables, "KUBECONFIG": str(kubeconfig), "FAIRLEAD_HOME": home, "FAIRLEAD_CLUSTER": "kubernetes"}
    return Desk(directory=directory, environ=environ, namespace=namespace, operator_config=operator_config)


@contextmanager
def operating(desk: Desk) -> "Iterator[subprocess.Popen[bytes]]":
    """An operator for the desk's namespace, as a process of its own."""
    arguments = ["operator", "--namespace", desk.namespace, "--only", desk.namespace, "--listen", "127.0.0.1:0"]
    with (desk.directory.parent / "operator.log").open("wb") as log:
        environ = {**desk.environ, "KUBECONFIG": str(desk.operator_config)}
        process = subprocess.Popen([*COMMAND, *arguments], cwd="/", env=environ, stderr=log, stdout=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=60)


@pytest.fixture
def operator(desk: Desk) -> Iterator[None]:
    with operating(desk):
        yield
        left = [run["name"] for run in runs(desk)]
        if left:
            desk("delete", "--yes", *left)


def runs(desk: Desk) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(desk("status", "--all", "--json").out)
    return found


def phases(desk: Desk) -> dict[str, str]:
    """The phase of each run in the namespace, read in this process: a command takes one of its own."""
    client = Client(load_access((Path(desk.environ["KUBECONFIG"]),)))
    try:
        found = [run for kind in workload_kinds() for run in client.items(objects_path(kind, desk.namespace))]
    finally:
        client.close()
    return {run["metadata"]["name"]: (run.get("status") or {}).get("phase", "Pending") for run in found}


def objects(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines()]


@pytest.mark.slow
def test_a_run_is_followed_to_its_end(desk: Desk, operator: None) -> None:
    desk = replace(desk, in_process=False)
    ended = desk("run", desk.write("train", nodes=2, fake={"run": "1s"}))
    assert f"Submitted train in the namespace {desk.namespace} of test." in ended.err
    assert "* Running: 2 ranks in 2 pods on 1 node started" in ended.err
    assert "train is Succeeded" in ended.err
    told = objects(desk("attach", "train", "--json").out)
    assert [each["event"] for each in told if each["type"] == "event"] == [
        "Submitted",
        "Starting",
        "Running",
        "Succeeded",
    ]
    again = desk("run", "train.yaml", "--detach")
    assert f"Submitted train-2 in the namespace {desk.namespace} of test (another run is named train)." in again.err


def test_a_failed_run_has_the_exit_code_of_one(desk: Desk, operator: None) -> None:
    file = desk.write("bad", fake={"run": "300ms", "exit-code": "3"}, retry=0)
    ended = desk("run", file, code=1)
    assert "bad is Failed" in ended.err
    assert "Next: `fairlead logs bad`" in ended.err
    assert "exit code 3" in ended.err


@pytest.mark.slow
def test_several_runs_are_followed_side_by_side(desk: Desk, operator: None) -> None:
    files = [desk.write(name, file=f"{name}.yaml", fake={"run": "1s"}) for name in ("left", "right")]
    ended = desk("run", *files)
    for name in ("left", "right"):
        assert f"{name} is Succeeded" in ended.err


def test_ctrl_c_detaches_and_the_run_goes_on(desk: Desk, operator: None) -> None:
    desk.write("long")
    with Child(
        [*COMMAND, "run", "train.yaml"], cwd=desk.directory, env=desk.environ,
        stderr=subprocess.PIPE, text=True,
    ) as follower:  # fmt: skip
        until(lambda: "Running" in phases(desk).values())
        follower.send_signal(signal.SIGINT)
        assert follower.wait(20) == 130
        assert follower.stderr is not None
        assert "Detached; long continues." in follower.stderr.read()
    assert json.loads(desk("status", "long", "--json").out)["phase"] == "Running"
    shown = desk("status", f"{desk.namespace}/long", "--context", "test", "-n", "default").out
    assert f"`fairlead stop {desk.namespace}/long --context=test --namespace=default`" in shown


def test_what_waits_says_why_and_what_would_unblock_it(desk: Desk, operator: None) -> None:
    desk("run", "-d", desk.write("first", nodes=2, resources={"gpu": 2}))
    until(lambda: "Running" in phases(desk).values())
    planned = desk("plan", desk.write("second", nodes=2, resources={"gpu": 1}))
    assert "it would wait" in planned.out
    assert "0 of 2 GPUs" in planned.out
    desk("run", "-d", "train.yaml")
    until(lambda: "0 of 2 GPUs" in desk("status", "second").out)
    told = json.loads(desk("status", "second", "--json").out)
    assert told["phase"] == "Pending"
    assert "first" in told["reason"]["message"] + str(told["reason"]["remedy"])


def test_plan_shows_the_node_and_nothing_is_changed(desk: Desk, operator: None) -> None:
    planned = desk("plan", desk.write("alone", nodes=2))
    assert "2 pods with 2 ranks placed on faces-" in planned.out
    assert runs(desk) == []
    desk("run", "-d", "train.yaml")
    assert "with the same spec)" in desk("plan", "train.yaml").out
    desk.write("alone", nodes=1)
    assert "nodes: 2 -> 1)" in desk("plan", "train.yaml").out


@pytest.mark.slow
def test_stop_suspend_resume_and_delete_do_what_they_say(desk: Desk, operator: None) -> None:
    desk = replace(desk, in_process=False)
    desk("run", "-d", desk.write("train"))
    until(lambda: "Running" in phases(desk).values())
    assert "train is Suspended: " in desk("suspend", "train").err
    assert json.loads(desk("resume", "train", "--json").out)[0]["intent"] == "run"
    until(lambda: "Running" in phases(desk).values())
    assert "train is Stopped" in desk("stop", "train").err
    assert json.loads(desk("status", "train", "--json").out)["phase"] == "Stopped"
    assert "train is deleted." in desk("delete", "--yes", "train").err
    missing = desk("status", "train", "--context", "test", code=5).err
    assert "There is no run named 'train'" in missing
    assert "`fairlead status --all --context=test` lists all" in missing


def test_events_are_told_as_they_come(desk: Desk, operator: None) -> None:
    desk("run", "-d", desk.write("train", fake={"run": "2s"}))
    told = objects(desk("events", "-f", "--json", "train").out)
    assert [each["event"] for each in told] == ["Submitted", "Starting", "Running", "Succeeded"]
    assert [row.split()[3] for row in desk("events").out.splitlines()[1:]] == [each["event"] for each in told]


@pytest.mark.slow
def test_without_an_operator_everything_that_reads_works_and_says_so(desk: Desk) -> None:
    ended = desk("run", "-d", desk.write("train"))
    assert "No operator" in ended.err
    assert (
        "`fairlead operator --context test` runs one from here, "
        "`fairlead install --image-to REGISTRY/NAME --context test` puts it" in ended.err
    )
    for command in (("status",), ("status", "train"), ("events", "train"), ("logs", "train"), ("plan", "train.yaml")):
        said = desk(*command)
        assert len([line for line in said.err.splitlines() if "No operator" in line]) == 1, command
    with operating(desk):
        until(lambda: "No operator" not in desk("status").err)
        desk("delete", "--yes", "train")
    assert "No operator runs on this cluster: the last one has stopped." in desk("status").err


@pytest.mark.slow
def test_a_directory_goes_along_is_shared_and_goes_with_its_last_run(desk: Desk, plane: ControlPlane) -> None:
    (desk.directory / "code").mkdir()
    (desk.directory / "code" / "train.py").write_text("print(1)\n")
    (desk.directory / "code" / ".gitignore").write_text("data\n")
    (desk.directory / "code" / "data").write_text("not to be taken")
    said = desk("run", "-d", desk.write("one", workdir="code"))
    assert "Taking along 2 files" in said.err
    assert "2 files" in desk("plan", desk.write("two", workdir="code")).out
    desk("run", "-d", "train.yaml")
    assert "with the same spec)" in desk("plan", "train.yaml").out
    (desk.directory / "code" / "train.py").write_text("print(2)\n")
    assert "the files of `workdir`" in desk("plan", "train.yaml").out
    path = f"/api/v1/namespaces/{desk.namespace}/configmaps"

    def parts() -> list[dict[str, Any]]:
        query = "?labelSelector=fairlead.dev/content%3Dworkdir"
        found: list[dict[str, Any]] = plane.request("GET", path + query)["items"]
        return found

    assert [sorted(owner["name"] for owner in part["metadata"]["ownerReferences"]) for part in parts()] == [
        ["one", "two"]
    ]
    with operating(desk):
        pods = f"/api/v1/namespaces/{desk.namespace}/pods"
        until(lambda: len(plane.request("GET", pods)["items"]) == 2)
        for pod in plane.request("GET", pods)["items"]:
            volume = next(each for each in pod["spec"]["volumes"] if each["name"] == "fairlead-workdir")
            assert [s["configMap"]["name"] for s in volume["projected"]["sources"]] == [parts()[0]["metadata"]["name"]]
        desk("delete", "--yes", "one")
        assert len(parts()) == 1
        desk("delete", "--yes", "two")
        until(lambda: parts() == [])


def test_the_python_api_reaches_a_cluster_too(desk: Desk, operator: None) -> None:
    program = (
        "import fairlead\n"
        "keys = {'name': 'api', 'image': 'python:3.12-slim', 'run': 'work'}\n"
        "fake = {'metadata': {'annotations': {'fake/run': '1s'}}}\n"
        f"there = {{'namespace': {desk.namespace!r}}}\n"
        "run = fairlead.Training(**keys, resources={'cpu': 1, 'memory': '64Mi'}, kubernetes=fake).run(**there)\n"
        "assert run.wait(60).phase == 'Succeeded', run.status\n"
        "assert fairlead.find('api', **there).uid == run.uid\n"
        "print([event.type for event in run.events()])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env=desk.environ, capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.stdout.strip() == "['Submitted', 'Starting', 'Running', 'Succeeded']", ended.stderr


def test_a_directory_that_is_too_large_is_refused_with_both_numbers_and_the_remedy(desk: Desk) -> None:
    (desk.directory / "train.bin").write_bytes(secrets.token_bytes(8 * 1024 * 1024))
    said = desk("run", "-d", desk.write("big", workdir="."), code=6).err
    assert " in 2 files, the largest train.bin with 8 MiB; " in said
    assert "at most 7.03 MiB when packed go through the API" in said
    assert "give `checkpoint.to`" in said
    assert "build it into the image" in said
    assert runs(desk) == []


def test_a_spec_that_was_applied_without_its_directory_says_so(desk: Desk, plane: ControlPlane) -> None:
    printed = desk("render", desk.write("applied", workdir="."))
    assert "no files go along with what is printed" in printed.err
    path = f"/apis/fairlead.dev/v1alpha1/namespaces/{desk.namespace}/trainings"
    content = yaml.safe_load(printed.out)
    content["metadata"].pop("namespace", None)
    plane.request("POST", path, content)
    assert "no files came with it" in desk("events", "applied").out
    plane.request("DELETE", f"{path}/applied")


def test_a_team_and_another_namespace_contradict_each_other(desk: Desk) -> None:
    said = desk("run", "-d", desk.write("train", team="vision"), "-n", desk.namespace, code=6)
    assert "`team` is 'vision'" in said.err
    assert "There is no namespace 'vision'" in desk("run", "-d", "train.yaml", code=7).err


def test_a_context_that_is_not_there_is_told_with_those_that_are(desk: Desk) -> None:
    assert "There is no context 'prod'" in desk("status", "--context", "prod", code=7).err


@pytest.mark.slow
def test_a_member_of_a_team_needs_no_right_beyond_the_role(desk: Desk, plane: ControlPlane) -> None:
    people = [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}]
    applied(plane, render_binding(desk.namespace, "user", people))
    kubeconfig = plane.kubeconfig("nobody", namespace=desk.namespace)
    user = replace(desk, environ={**desk.environ, "KUBECONFIG": str(kubeconfig)})
    (desk.directory / "train.py").write_text("print(1)\n")
    user("run", "-d", user.write("train", workdir=".", fake={"run": "2s"}))
    planned = user("plan", user.write("other"))
    assert "its start cannot be predicted" in planned.out
    with operating(desk):
        assert user("attach", "train").code == 0
        for command in (("status",), ("status", "train"), ("events",), ("logs", "train")):
            user(*command)
        user("delete", "--yes", "train")


@pytest.mark.long
def test_a_follower_outlives_an_outage_of_the_api_server_and_tells_of_it_once(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with started(ControlPlane, request) as plane:
        for each in definitions():
            applied(plane, each)
        for content in render_roles():
            applied(plane, content)
        add_nodes(plane, 1, gpus=0)
        until(lambda: all(is_ready(node) for node in plane.request("GET", "/api/v1/nodes")["items"]))
        (tmp_path / "desk").mkdir()
        desk = a_desk(plane, "default", tmp_path / "desk")
        with operating(desk):
            file = desk.write("train", fake={"run": "60s"})
            with Child(
                [*COMMAND, "run", file], cwd=desk.directory, env=desk.environ, stderr=subprocess.PIPE, text=True
            ) as follower:
                until(lambda: "Running" in phases(desk).values())
                plane.kill("apiserver")
                time.sleep(5)
                plane.restart("apiserver")
                assert follower.wait(180) == 0
                assert follower.stderr is not None
                told = follower.stderr.read()
        assert "train is Succeeded" in told
        assert 1 <= told.count("Runs continue, and are followed again") <= 2, told
