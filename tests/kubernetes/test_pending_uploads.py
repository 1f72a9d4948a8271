"""Working directories of a `run` that was interrupted, on a real control plane whose garbage collector is at work.

Everything is asked for with the rights of the role that a team's users have.
"""

import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.client.pending_uploads import STALE_S, UPLOADS
from fairlead.cluster.kubernetes.client.user_client import UserClient
from fairlead.cluster.kubernetes.client.workdir_upload import send
from fairlead.cluster.kubernetes.manifests.roles import render_binding, render_roles
from fairlead.cluster.kubernetes.manifests.workdir import pack, part_names
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.training import Training
from fairlead.state.snapshot import Workload
from tests.kubernetes.operating import gang
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.kubernetes


class Interrupted(Exception):
    """What ends a `run` in the middle."""


class Person:
    """Somebody with the role of a team's users."""

    def __init__(self, plane: ControlPlane, namespace: str, directory: Path) -> None:
        people = [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}]
        applied(plane, render_binding(namespace, "user", people))
        self.plane, self.namespace, self.directory = plane, namespace, directory
        self.client = Client(load_access((plane.kubeconfig("nobody", namespace=namespace),)))

    def run(self, name: str, *, interrupted: str = "") -> tuple[str, ...]:
        """Send a directory with a run of this name; the names of its parts."""
        place = self.directory / name
        place.mkdir()
        (place / "train.py").write_text(f"print({name!r})")

        def submit(spec: Training, annotations: Mapping[str, str]) -> Workload:
            if interrupted == "before":
                raise Interrupted
            run = WorkloadApi(self.client, namespace=self.namespace).submit(spec, annotations)
            if interrupted == "after":
                raise Interrupted
            return run

        try:
            send(self.client, gang(self.namespace, name, gpus=0), place, submit)
        except Interrupted:
            assert interrupted
        archive = pack(place)
        assert archive is not None
        return part_names(archive.annotation)

    def an_hour_goes_by(self) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{UPLOADS}"
        noted = self.plane.request("GET", path)["data"]
        since = f"{time.time() - STALE_S - 1:.0f}"
        body = {"data": dict.fromkeys(noted, since)}
        self.plane.request("PATCH", path, body, kind="merge-patch+json")

    def noted(self) -> dict[str, str]:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{UPLOADS}"
        return dict(self.plane.request("GET", path).get("data") or {})

    def parts(self) -> dict[str, list[str]]:
        """The parts that are there, each with the names of its owners."""
        query = "labelSelector=fairlead.dev/content%3Dworkdir"
        found: dict[str, Any] = self.plane.request("GET", f"/api/v1/namespaces/{self.namespace}/configmaps?{query}")
        owners = {item["metadata"]["name"]: item["metadata"].get("ownerReferences", []) for item in found["items"]}
        return {name: [owner["name"] for owner in given] for name, given in owners.items()}


@pytest.fixture
def person(plane: ControlPlane, namespace: str, tmp_path: Path) -> Person:
    for content in render_roles():
        applied(plane, content)
    return Person(plane, namespace, tmp_path)


def test_what_an_interrupted_run_left_is_taken_away_by_one_an_hour_later(person: Person) -> None:
    (left,) = person.run("left", interrupted="before")
    (own,) = person.run("soon")
    assert person.parts() == {left: [], own: ["soon"]}
    assert [part_names(annotation) for annotation in person.noted()] == [(left,)]
    person.an_hour_goes_by()
    (later,) = person.run("later")
    until(lambda: person.parts() == {own: ["soon"], later: ["later"]}, person.parts)
    assert person.noted() == {}


def test_files_of_a_run_that_is_there_become_its_own(person: Person) -> None:
    (left,) = person.run("cut", interrupted="after")
    person.an_hour_goes_by()
    (later,) = person.run("later")
    assert person.parts() == {left: ["cut"], later: ["later"]}


def test_what_somebody_has_sent_again_meanwhile_stays(person: Person) -> None:
    (left,) = person.run("twice", interrupted="before")
    person.an_hour_goes_by()
    (person.directory / "twice").rename(person.directory / "first")
    assert person.run("twice") == (left,)
    time.sleep(3)  # the garbage collector takes away what has only owners that are gone, within moments
    assert person.parts() == {left: ["twice"]}


def test_what_went_along_and_its_commit_are_shown_with_a_users_rights(person: Person) -> None:
    place = person.directory / "looked-at"
    (place / "pkg").mkdir(parents=True)
    (place / "pkg" / "train.py").write_text("print(1)\n")
    git = ["git", "-C", str(place), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-qb", "trunk"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    (place / "pkg" / "train.py").write_text("print(2)\n")
    submit = WorkloadApi(person.client, namespace=person.namespace).submit
    run = send(person.client, gang(person.namespace, "looked-at", gpus=0), place, submit)
    desk = UserClient(person.client, namespace=person.namespace)
    code = desk.code(desk.find("looked-at").uid)
    assert code.files is not None
    assert [file.path for file in code.files] == ["pkg/train.py"]
    assert code.read("pkg/train.py") == b"print(2)\n"
    assert code.git is not None
    assert (code.git["branch"], code.git["dirty"]) == ("trunk", True)
    assert code.diff is not None
    assert "+print(2)" in code.diff
    # Of one that has no files of its own, that is what is said.
    bare = desk.submit(replace(gang(person.namespace, "bare", gpus=0), image="python:3.12"))
    assert desk.code(bare.uid).why == "no files went along with it: its image or its volumes have the program"
    assert run.uid == desk.find("looked-at").uid
