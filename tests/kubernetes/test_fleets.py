"""A fleet over two real control planes: nodes are rented, one cluster is cut off, all that can die is killed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.placeholders import render_priority_class
from fairlead.control.fleets.controller import LABEL
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import teach_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes
from tests.processes import Child
from tests.waiting import until

CUT_OFF_S = float(os.environ.get("FAIRLEAD_CUT_OFF_S", "10"))
"""Seconds for which a cluster is out of reach; minutes are as good as seconds to the controller, and take minutes."""
pytestmark = [pytest.mark.kubernetes, pytest.mark.long, pytest.mark.timeout(600 + CUT_OFF_S)]

COMMAND = (sys.executable, "-m", "fairlead.cli.main")
NUM_RUNS = 5
PODS = "/api/v1/namespaces/default/pods"
# Of three processes that start and a dozen requests between each two of their rounds, beside a whole suite.
PATIENCE_S = 180.0
FLEET = """
kind: Fleet
name: research
clusters:
  home: {context: home}
  cloud: {context: cloud, gpu_price: 2.50, max_gpus: 24}
wait: 5s
"""
RUN = """
name: train-NUMBER
run: train
image: python:3.12
resources: {gpu: 8, cpu: 1, memory: 1Gi}
expected_duration: 20s
kubernetes: {metadata: {annotations: {fake/start: 0.5s, fake/on-term: ends}}}
"""


@pytest.fixture(scope="module")
def planes(request: pytest.FixtureRequest) -> Iterator[dict[str, ControlPlane]]:
    with ExitStack() as stack:
        made = {name: stack.enter_context(started(ControlPlane, request)) for name in ("home", "cloud")}
        for name, plane in made.items():
            teach_kinds(plane)
            applied(plane, render_priority_class())
            add_nodes(plane, 1 if name == "home" else 3, prefix=name, gpus=8)
            plane.await_namespace("default")
        yield made


class World:
    """The processes of a fleet: an operator in each cluster, and the controller."""

    def __init__(self, planes: dict[str, ControlPlane], directory: Path) -> None:
        self.planes = planes
        self._directory = directory
        config = directory / "kubeconfig"
        config.write_text(yaml.safe_dump(_merged(planes)))
        variables = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
        self.environ = {**variables, "KUBECONFIG": str(config), "FAIRLEAD_HOME": str(directory / "state")}
        self._log = (directory / "log").open("ab")
        self._running: dict[str, Child[bytes]] = {}
        self.called: set[tuple[str, str]] = set()

    def start(self, what: str) -> None:
        """Start the controller, or the operator of a cluster."""
        if what == "controller":
            argv, environ = ["fleet", "run", "fleet.yaml"], self.environ
        else:
            argv = ["operator", "--namespace", "default", "--listen", "127.0.0.1:0"]
            environ = {**self.environ, "KUBECONFIG": str(self.planes[what].kubeconfig())}
        self._running[what] = Child(
            [*COMMAND, *argv], cwd=self._directory, env=environ, stdout=self._log, stderr=self._log,
            limit_s=600.0 + CUT_OFF_S,
        )  # fmt: skip

    def kill(self, *what: str) -> None:
        """Kill processes with SIGKILL."""
        for each in what or tuple(self._running):
            process = self._running.pop(each)
            process.kill()
            process.wait(timeout=30)

    def __call__(self, *arguments: str) -> str:
        ended = subprocess.run(
            [*COMMAND, "fleet", *arguments],
            cwd=self._directory, env=self.environ, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def runs(self) -> list[dict[str, Any]]:
        """The runs as `fleet status` has them; no run may be alive twice meanwhile."""
        for name, plane in self.planes.items():
            self._look(name, plane)
        found: list[dict[str, Any]] = json.loads(self("status", "research", "--json"))["runs"]
        return found

    def release(self) -> None:
        """Let every program end that runs now, of which each would run for ever."""
        ends = {"metadata": {"annotations": {"fake/run": "1s"}}}
        for plane in self.planes.values():
            for pod in plane.request("GET", PODS)["items"]:
                if "fake/run" not in pod["metadata"]["annotations"]:
                    plane.request("PATCH", f"{PODS}/{pod['metadata']['name']}", ends, kind="merge-patch+json")

    def _look(self, name: str, plane: ControlPlane) -> None:
        try:
            there = plane.request("GET", objects_path("Training", "default"))["items"]
        except OSError:  # it is cut off just now
            return
        self.called |= {(each["metadata"]["labels"][LABEL], name) for each in there if _has_run(each)}

    def all_ended(self) -> bool:
        """Let those that run end, and return whether all are over."""
        self.release()
        return all(run["stage"] == "Ended" for run in self.runs())

    def told(self) -> str:
        """Tell what happened to each run, and what the processes said last."""
        lines = (self._directory / "log").read_text(errors="replace").splitlines()
        over = [
            f"{what} ended with {code}" for what, each in self._running.items() if (code := each.poll()) is not None
        ]
        return "\n".join((self("events", "research"), *lines[-60:], json.dumps(self.runs(), indent=1), *over))

    def close(self) -> None:
        self.kill()
        self._log.close()


@pytest.fixture
def world(planes: dict[str, ControlPlane], tmp_path: Path) -> Iterator[World]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "train").write_text("#!/bin/sh\n")
    for number in range(NUM_RUNS):
        (tmp_path / f"{number}.yaml").write_text(RUN.replace("NUMBER", str(number)))
    world = World(planes, tmp_path)
    yield world
    world.close()


def test_nothing_is_lost_or_run_twice_while_a_cluster_is_cut_off_and_all_else_is_killed(world: World) -> None:
    for what in ("home", "cloud", "controller"):
        world.start(what)
    until(lambda: Path(world.environ["FAIRLEAD_HOME"], "fleets/research/fleet.json").exists(), "a controller")
    world("submit", "research", *(f"{number}.yaml" for number in range(NUM_RUNS)))
    until(lambda: _running_in(world) == {"home", "cloud"}, lambda: world.told(), timeout_s=PATIENCE_S)
    world.planes["cloud"].kill("apiserver")
    world.kill()
    for what in ("home", "controller"):
        world.start(what)
    until(lambda: "cloud" in _out_of_reach(world), lambda: world.told(), timeout_s=PATIENCE_S)
    kept = {run["name"] for run in world.runs() if run["cluster"] == "cloud" and run["stage"] != "Ended"}
    assert kept
    cut_off_until = time.monotonic() + CUT_OFF_S
    while time.monotonic() < cut_off_until:
        held = {run["name"]: run for run in world.runs()}
        assert all(held[name]["cluster"] == "cloud" for name in kept)
        time.sleep(1.0)
    world.planes["cloud"].restart("apiserver")
    world.start("cloud")
    until(lambda: not _out_of_reach(world), lambda: world.told(), timeout_s=PATIENCE_S)
    until(lambda: world.all_ended(), lambda: world.told(), timeout_s=2 * PATIENCE_S)
    runs = world.runs()
    assert {run["phase"] for run in runs} == {"Succeeded"}, runs
    assert {run["cluster"] for run in runs} == {"home", "cloud"}
    uids = [uid for uid, _ in world.called]
    assert sorted(uids) == sorted(run["uid"] for run in runs), "a run ran in two clusters"
    rent = {run["name"]: run["rent"] for run in runs}
    assert all((rent[run["name"]] > 0) == (run["cluster"] == "cloud") for run in runs)
    for plane in world.planes.values():
        for each in plane.request("GET", objects_path("Training", "default"))["items"]:
            assert each["status"].get("attempt", 0) == 0, "a gang was started twice"


def _running_in(world: World) -> set[str]:
    return {run["cluster"] for run in world.runs() if run["phase"] == "Running"}


def _out_of_reach(world: World) -> set[str]:
    clusters = json.loads(world("status", "research", "--json"))["clusters"]
    return {name for name, there in clusters.items() if not there["answers"]}


def _has_run(training: dict[str, Any]) -> bool:
    return (training.get("status") or {}).get("phase") in ("Starting", "Running", "Succeeded")


def _merged(planes: dict[str, ControlPlane]) -> dict[str, Any]:
    """One kubeconfig with a context for each control plane."""
    whole: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "contexts": [], "clusters": [], "users": []}
    for name, plane in planes.items():
        own = yaml.safe_load(plane.kubeconfig().read_text())
        whole["clusters"].append({"name": name, "cluster": own["clusters"][0]["cluster"]})
        whole["users"].append({"name": name, "user": own["users"][0]["user"]})
        whole["contexts"].append({"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}})
    return {**whole, "current-context": "home"}
