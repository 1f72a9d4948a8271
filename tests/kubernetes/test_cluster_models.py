"""Versions of models on a cluster: an API server asked with the rights of a team's user, and an object store."""

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.client.model_records import add_version, promote_version, remove_version, versions_of
from fairlead.cluster.kubernetes.manifests.roles import render_binding, render_roles
from fairlead.control.cluster_models import FOLDER, fetched
from fairlead.errors import Conflict
from fairlead.runtime.checkpoint.manifest import MANIFEST, FileFacts, Manifest
from fairlead.runtime.checkpoint.store import step_name
from fairlead.state.models import ModelContent, ModelVersion
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Answer, Desk, a_desk
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.s3 import S3

BUCKET = "s3://models"


@dataclass(frozen=True, kw_only=True)
class Team:
    """Somebody with the role of a team's users, at a desk, and the store of the team."""

    plane: ControlPlane
    desk: Desk
    client: Client
    s3: S3

    @property
    def namespace(self) -> str:
        return self.desk.namespace

    def __call__(self, *arguments: str, code: int | None = 0) -> Answer:
        return self.desk(*arguments, code=code)

    def read(self, plural: str, name: str) -> dict[str, Any]:
        path = f"/apis/fairlead.dev/v1alpha1/namespaces/{self.namespace}/{plural}/{name}"
        found: dict[str, Any] = self.plane.request("GET", path)
        return found

    def run(self, name: str, to: str | None = f"{BUCKET}/runs", **more: Any) -> Path:
        """Submit a run; where its checkpoints are in the store."""
        spec = {"name": name, "image": "python:3.12-slim", "run": "python train.py", "resources": {"cpu": 1}, **more}
        if to is not None:
            spec["checkpoint"] = {"to": to, **spec.get("checkpoint", {})}
        (self.desk.directory / f"{name}.yaml").write_text(yaml.safe_dump(spec))
        self("run", "-d", f"{name}.yaml")
        uid = self.read("trainings", name)["metadata"]["uid"]
        return self.s3.directory / "models" / "runs" / f"{name}-{uid}"

    def save(self, place: Path, step: int, weights: str) -> None:
        """Write a checkpoint as a run does; the store's objects are files of the server."""
        data = weights.encode()
        facts = FileFacts(size=len(data), sha256=hashlib.sha256(data).hexdigest())
        files = {"weights.txt": facts, "more/state": facts}
        manifest = Manifest(step=step, world_size=1, run="r", attempt=0, created_at=0.0, files=files)
        for name in files:
            path = place / step_name(step) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (place / step_name(step) / MANIFEST).write_bytes(manifest.to_json())

    def kept(self) -> dict[str, str]:
        """The weights of all versions, by the place of each below the store's root."""
        root = self.s3.directory / "models" / "runs" / FOLDER
        return {str(path.relative_to(root).parent): path.read_text() for path in sorted(root.rglob("weights.txt"))}


@pytest.fixture
def team(plane: ControlPlane, namespace: str, tmp_path: Path, s3: S3) -> Iterator[Team]:
    for role in render_roles():
        applied(plane, role)
    people = [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}]
    applied(plane, render_binding(namespace, "user", people))
    (tmp_path / "desk").mkdir()
    kubeconfig = plane.kubeconfig("nobody", namespace=namespace)
    desk = a_desk(plane, namespace, tmp_path / "desk")
    desk = replace(desk, in_process=True, environ={**desk.environ, **s3.environ, "KUBECONFIG": str(kubeconfig)})
    client = Client(load_access((kubeconfig,)))
    yield Team(plane=plane, desk=desk, client=client, s3=s3)
    client.close()


def a_version(**changes: Any) -> ModelVersion:
    given = {
        "name": "churn",
        "digest": "a",
        "content": ModelContent.CHECKPOINT,
        "size_bytes": 1,
        "place": f"{BUCKET}/a",
    }
    return ModelVersion(**{"version": 0, "created_at": 1.0, **given, **changes})


def test_a_version_of_a_runs_checkpoint_is_kept_promoted_and_used_by_runs_and_endpoints(team: Team) -> None:
    place = team.run("fast")
    team.save(place, 10, "first")
    assert "No model has a version yet" in team("model", "list").err
    pushed = team("model", "push", "churn", "fast", "--metric", "loss=0.5", "--objective", "loss")
    assert pushed.out == "churn@1\n"
    again = team("model", "push", "churn", "fast", "--metric", "loss=0.5")
    assert (again.out, "It was there already" in again.err) == ("churn@1\n", True)

    # What the run does to its own checkpoints does not reach the version.
    team.save(place, 20, "second")
    (place / step_name(10) / "weights.txt").write_text("gone")
    assert team("model", "push", "churn", "fast", "--metric", "loss=0.1", "--objective", "loss").out == "churn@2\n"
    assert team("model", "push", "churn", "run://fast@20", "--metric", "auc=0.9").out == "churn@2\n"
    team.save(place, 30, "third")
    assert team("model", "push", "churn", "fast", "--metric", "loss=0.2").out == "churn@3\n"
    assert sorted(team.kept().values()) == ["first", "second", "third"]

    assert team("model", "promote", "churn@best", "--to", "production").out == "churn@2 is production\n"
    listed = json.loads(team("model", "list", "churn", "--json").out)["models"]
    assert [(each["version"], each["stage"], each["best"]) for each in listed] == [
        (1, None, False), (2, "production", True), (3, None, False),
    ]  # fmt: skip
    assert (listed[1]["lineage"]["run"], listed[1]["lineage"]["step"]) == ("fast", 20)
    assert listed[1]["metrics"] == {"auc": 0.9, "loss": 0.1}
    assert "fast at step 20" in team("model", "list").out
    moved = team("model", "promote", "churn@1", "--to", "production")
    assert "churn@2 was before" in moved.err
    (first,) = (each["place"] for each in listed if each["version"] == 1)
    with fetched(a_version(place=first)) as directory:
        assert (directory / "weights.txt").read_text() == "first"

    team.run("tuned", checkpoint={"from": "churn@production"})
    assert team.read("trainings", "tuned")["spec"]["checkpoint"]["from"] == first
    endpoint = {
        "kind": "Serving", "name": "door", "image": "python:3.12-slim", "run": "serve",
        "model": "churn@production", "resources": {"cpu": 1},
    }  # fmt: skip
    (team.desk.directory / "door.yaml").write_text(yaml.safe_dump(endpoint))
    team("run", "-d", "door.yaml")
    assert team.read("servings", "door")["spec"]["model"] == f"{first}/{step_name(10)}"

    assert "churn@1 is production" in team("model", "delete", "churn@1", code=6).err
    assert "Its content stays at s3://models/runs" in team("model", "delete", "churn@3").err
    assert team("model", "push", "churn", "churn@2").out == "churn@4\n"


def test_what_cannot_be_a_version_is_refused_with_what_can(team: Team) -> None:
    team.save(team.run("fast"), 10, "first")
    team.run("empty")
    team.run("nowhere", to=None)
    volume = {"name": "team", "persistentVolumeClaim": {"claimName": "team"}}
    mounts = {"name": "ranks", "volumeMounts": [{"name": "team", "mountPath": "/team"}]}
    team.run("mounted", to="/team/runs", kubernetes={"spec": {"volumes": [volume], "containers": [mounts]}})
    (team.desk.directory / "model.onnx").write_text("weights")

    def refused(*arguments: str) -> str:
        answer = team(*arguments, code=None)
        assert answer.code not in (0, None)
        return answer.err

    assert "The run empty has no complete checkpoint" in refused("model", "push", "churn", "empty")
    assert "has no `checkpoint.to`" in refused("model", "push", "churn", "nowhere")
    assert "on a volume that only pods reach" in refused("model", "push", "churn", "mounted")
    assert "Give a run of the cluster" in refused("model", "push", "churn", "./model.onnx")
    assert "fats" in refused("model", "push", "churn", "fats")
    assert "no complete checkpoint of step 11; it has: 10" in refused("model", "push", "churn", "run://fast@11")
    assert "--objective" not in team("model", "push", "churn", "fast").err
    assert "reported no accuracy" in refused("model", "push", "churn", "fast", "--objective", "accuracy")
    assert "Push one with --objective" in refused("model", "promote", "churn@best", "--to", "production")
    told = refused("run", "-d", "fast.yaml", "--name", "wrong", "--set", "checkpoint.from=churn@staging")
    assert "churn has no version at the stage 'staging'; it has: 1." in told
    told = refused("run", "-d", "fast.yaml", "--name", "wrong", "--set", "checkpoint.from=run://fast@10")
    assert "`fairlead model push fast run://fast@10` makes a version of it" in told


def test_a_copy_that_was_cut_short_is_made_again_and_a_damaged_checkpoint_is_none(team: Team) -> None:
    place = team.run("fast")
    team.save(place, 10, "first")
    team("model", "push", "churn", "fast")
    (kept,) = team.kept()
    copy = team.s3.directory / "models" / "runs" / FOLDER / kept
    (copy / MANIFEST).unlink()
    (copy / "weights.txt").write_text("half")
    assert team("model", "push", "other", "fast").out == "other@1\n"
    assert team.kept() == {kept: "first"}
    team.save(place, 20, "second")
    (place / step_name(20) / "more" / "state").write_text("cut")
    assert "is damaged" in team("model", "push", "churn", "fast", code=6).err
    (copy / "weights.txt").write_text("worst")
    with pytest.raises(Conflict, match="damaged"), fetched(a_version(place=f"{BUCKET}/runs/{FOLDER}/{kept[:64]}")):
        pass


def test_numbers_and_stages_are_given_once_whoever_else_is_at_it(team: Team) -> None:
    there = team.client, team.namespace
    made = list[tuple[ModelVersion, bool]]()

    def at_once(*calls: Any) -> None:
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def add(digest: str) -> None:
        made.append(add_version(*there, a_version(digest=digest)))

    at_once(*(lambda digest=digest: add(digest) for digest in "abcdea"))
    assert sorted(version.version for version, is_new in made if is_new) == [1, 2, 3, 4, 5]
    found = versions_of(*there, "churn")
    assert [each.version for each in found] == [1, 2, 3, 4, 5]
    at_once(*(lambda each=each: promote_version(*there, each, "production") for each in found))
    assert [each.stage for each in versions_of(*there)].count("production") == 1
    idle = next(each for each in versions_of(*there) if each.stage is None and each.version != 5)
    remove_version(*there, idle)
    remove_version(*there, idle)
    assert add_version(*there, replace(idle, stage=None))[0].version == 6


def test_the_registry_is_one_object_that_is_never_too_large_for_an_api_server(team: Team) -> None:
    there = team.client, team.namespace
    long = {"kind": "run", "command": "x" * 450_000}
    add_version(*there, a_version(lineage=long))
    with pytest.raises(Conflict, match="no room for more versions"):
        add_version(*there, a_version(digest="b", lineage=long))
    assert len(versions_of(*there)) == 1
