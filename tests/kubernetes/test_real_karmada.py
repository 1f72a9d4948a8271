"""Runs that a real Karmada gives to one of two real clusters, each with an operator; its own control plane has none."""

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

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.placeholders import render_priority_class
from fairlead.cluster.kubernetes.manifests.roles import render_operator_bindings, render_roles
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.errors import Conflict
from fairlead.policy.kinds.retention import managed_elsewhere
from fairlead.state.snapshot import Intent, Phase
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import GPUS, operating, teach_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster import karmada
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.waiting import until

CUT_OFF_S = 10.0
"""Seconds for which a member stays out of reach once Karmada has noticed, which here moves runs after one second."""
pytestmark = [pytest.mark.kubernetes, pytest.mark.rare, pytest.mark.timeout(900)]

NAMESPACE = "default"
TRAININGS = objects_path("Training", NAMESPACE)
PATIENCE_S = 120.0
RUN = """
name: NAME
run: python train.py
image: python:3.12
workdir: .
nodes: NODES
resources: {gpu: 8, cpu: 1, memory: 1Gi}
kubernetes: {metadata: {annotations: {fake/start: 0.5s, fake/on-term: ends}}}
"""
SWEEP = """
kind: Sweep
name: sweep
parameters: {rate: log 1e-3..1e0}
objective: {metric: loss, goal: minimize}
trials: 2
trial: {run: python train.py, image: python:3.12}
"""


class World:
    """Karmada's control plane, its members, and a user of the first."""

    def __init__(self, home: ControlPlane, members: dict[str, ControlPlane], directory: Path) -> None:
        self.home, self.members = home, members
        self._directory = directory
        variables = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
        self._environ = {**variables, "KUBECONFIG": str(home.kubeconfig())}

    def __call__(self, *arguments: str, problem: bool = False) -> str:
        """Return the output of a command, or its error where it was refused."""
        context = () if "--" in arguments else ("--context", "test")
        ended = subprocess.run(
            [sys.executable, "-m", "fairlead.cli.main", *arguments, *context],
            cwd=self._directory, env=self._environ, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert bool(ended.returncode) == problem, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def write(self, name: str, text: str) -> str:
        """Write a file for a command."""
        (self._directory / f"{name}.yaml").write_text(text)
        return f"{name}.yaml"

    def submit(self, name: str, *, nodes: int = 1) -> None:
        self("run", self.write(name, RUN.replace("NAME", name).replace("NODES", str(nodes))), "--detach")

    def cluster(self, member: str | None = None) -> WorkloadApi:
        """The runs of a member, or those of Karmada's control plane."""
        plane = self.home if member is None else self.members[member]
        return WorkloadApi(Client(load_access((plane.kubeconfig(),))), namespace=NAMESPACE)

    def comes_to(self, name: str, phase: Phase) -> str:
        """The reason, once Karmada's control plane shows the run in a phase."""
        cluster = self.cluster()

        def status() -> Any:
            return cluster.named(name, NAMESPACE).status

        until(lambda: status().phase is phase, lambda: (status(), self.told()), timeout_s=PATIENCE_S)
        message: str = status().reason.message
        return message

    def copies(self, name: str) -> set[str]:
        """The members that have a run."""
        return {member for member, plane in self.members.items() if plane.exists(f"{TRAININGS}/{name}")}

    def objects(self, member: str, plural: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.members[member].request("GET", f"/api/v1/namespaces/{NAMESPACE}/{plural}")[
            "items"
        ]
        return found

    def release(self, member: str) -> None:
        """Let every program end that runs now in a member."""
        ends = {"metadata": {"annotations": {"fake/run": "1s"}}}
        for pod in self.objects(member, "pods"):
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
            self.members[member].request("PATCH", path, ends, kind="merge-patch+json")

    def told(self) -> str:
        """Karmada's account of its bindings."""
        bindings = self.home.request("GET", f"/apis/work.karmada.io/v1alpha2/namespaces/{NAMESPACE}/resourcebindings")
        return json.dumps(
            [{"spec": each["spec"], "status": each.get("status")} for each in bindings["items"]], indent=1
        )


@pytest.fixture(scope="module")
def planes(request: pytest.FixtureRequest) -> Iterator[tuple[ControlPlane, dict[str, ControlPlane]]]:
    """Karmada with two members: one node of 8 GPUs in the first, two in the other."""
    with ExitStack() as stack:
        home, east, west = (stack.enter_context(started(ControlPlane, request)) for _ in range(3))
        members = {"east": east, "west": west}
        for name, plane in members.items():
            teach_kinds(plane)
            for content in (render_priority_class(), *render_roles(), *render_operator_bindings(NAMESPACE)):
                applied(plane, content)
            add_nodes(plane, 1 if name == "east" else 2, prefix=name, gpus=GPUS)
            until(lambda plane=plane: all(is_ready(node) for node in plane.request("GET", "/api/v1/nodes")["items"]))  # type: ignore[misc]
        stack.enter_context(karmada.karmada(home, members))
        yield home, members


@pytest.fixture
def world(planes: tuple[ControlPlane, dict[str, ControlPlane]], tmp_path: Path) -> Iterator[World]:
    home, members = planes
    (tmp_path / "train.py").write_text("print('trained')\n")
    world = World(home, members, tmp_path)
    world("install")
    east, west = (load_access((plane.kubeconfig(),)) for plane in members.values())
    with operating(east, NAMESPACE), operating(west, NAMESPACE):
        yield world
        for run in home.request("GET", TRAININGS)["items"]:
            world("delete", run["metadata"]["name"], "--yes")
        until(lambda: not any(world.objects(name, "pods") for name in members), timeout_s=PATIENCE_S)


def test_a_run_is_carried_out_by_the_member_with_room_and_its_user_stops_and_deletes_it_there(world: World) -> None:
    world.submit("train", nodes=2)
    assert world.comes_to("train", Phase.RUNNING) == "in cluster west: 16 ranks on 2 nodes started"
    told = world("status", "train")
    assert "in cluster west: 16 ranks on 2 nodes started" in told
    assert world.copies("train") == {"west"}
    assert [each["metadata"]["name"][:17] for each in world.objects("west", "configmaps")].count(
        "fairlead-workdir-"
    ) == 1
    # Karmada would make it again, so that it is not deleted there, neither by hand nor once it is old.
    copy = world.cluster("west").named("train", NAMESPACE)
    assert managed_elsewhere(copy)
    with pytest.raises(Conflict, match="Karmada, which would create it again"):
        world.cluster("west").set_intent(copy.uid, Intent.DELETE)
    world("stop", "train")
    assert world.comes_to("train", Phase.STOPPED).startswith("in cluster west: ")
    world("delete", "train", "--yes")
    until(lambda: not world.copies("train"), timeout_s=PATIENCE_S)
    world.submit("train")
    world.comes_to("train", Phase.RUNNING)
    assert len(world.copies("train")) == 1


def test_a_member_that_is_cut_off_keeps_its_run_which_runs_nowhere_else_and_ends_as_its_member_says(
    world: World,
) -> None:
    world.submit("train", nodes=2)
    world.comes_to("train", Phase.RUNNING)
    west = world.members["west"]
    pods = {each["metadata"]["uid"] for each in world.objects("west", "pods")}
    west.kill("apiserver")
    until(lambda: karmada.ready(world.home) == {"east"}, timeout_s=PATIENCE_S)
    cut_off_until = time.monotonic() + CUT_OFF_S
    while time.monotonic() < cut_off_until:
        assert not world.members["east"].exists(f"{TRAININGS}/train")
        time.sleep(0.5)
    west.restart("apiserver")
    until(lambda: karmada.ready(world.home) == {"east", "west"}, timeout_s=PATIENCE_S)
    assert {each["metadata"]["uid"] for each in world.objects("west", "pods")} == pods
    world.release("west")
    world.comes_to("train", Phase.SUCCEEDED)
    assert world.copies("train") == {"west"}
    assert world.cluster("west").named("train", NAMESPACE).status.attempt == 0


def test_nothing_of_an_operator_is_accepted_where_karmada_gives_its_runs_to_others(world: World) -> None:
    assert "is of the operator, and test is a control plane of Karmada" in world(
        "install", "--replicas", "1", problem=True
    )
    assert "would run them twice" in world("operator", problem=True)
    sweep = world.write("sweep", SWEEP)
    assert "Karmada gives Trainings to its clusters" in world("run", sweep, "--detach", problem=True)
    assert "No operator" not in world("status")
