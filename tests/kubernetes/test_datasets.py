"""Datasets of namespaces at a real API server: members see their own and what is shared with their team, no others."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.roles import render_binding
from fairlead.cluster.kubernetes.manifests.shared_datasets import MOST_OF_TEAM, read_shared, render_shared
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.operator.teams.dataset_publisher import DatasetPublisher
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.dataset import Dataset
from fairlead.specs.keys import API_VERSION
from tests.kubernetes.operating import operating
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until


def test_one_team_cannot_push_the_shared_datasets_of_another_out() -> None:
    many = [Dataset(name=f"d{number}", origin="s3://a/b", team="loud") for number in range(700)]
    own = Dataset(name="quiet", origin="s3://a/c", team="quiet")
    read = list(read_shared(render_shared("vision", [*many, own])))
    assert len(read) == MOST_OF_TEAM + 1
    assert own in read


def test_what_somebody_else_wrote_into_the_configmap_is_passed_over() -> None:
    content = render_shared("vision", [Dataset(name="a", origin="s3://a/b", team="b")])
    content["data"] |= {"x": "{", "y": '{"kind": "Pod"}', "z": "[" * 100_000}
    assert [dataset.name for dataset in read_shared(content)] == ["a"]


@pytest.fixture
def elsewhere(plane: ControlPlane, namespace: str) -> Iterator[str]:
    """A namespace of another team."""
    name = f"{namespace}-other"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    plane.await_namespace(name)
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.mark.slow
@pytest.mark.kubernetes
def test_members_read_their_own_datasets_and_those_that_are_shared_with_their_team(
    access: ClusterAccess, plane: ControlPlane, namespace: str, elsewhere: str, tmp_path: Path
) -> None:
    (tmp_path / "desk").mkdir()
    desk = a_desk(plane, namespace, tmp_path / "desk")
    applied(plane, render_binding(namespace, "user", [
        {"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}
    ]))  # fmt: skip
    kubeconfig = str(plane.kubeconfig("nobody", namespace=namespace))
    user: Desk = replace(desk, in_process=True, environ={**desk.environ, "KUBECONFIG": kubeconfig})
    (user.directory / "own.yaml").write_text("kind: Dataset\nname: own\nfrom: http://127.0.0.1:9/a.tar\n")
    assert "Applied Dataset own" in user("apply", "own.yaml").err
    (user.directory / "own.yaml").write_text("kind: Dataset\nname: own\nfrom: http://127.0.0.1:9/b.tar\n")
    assert "Changed Dataset own" in user("apply", "own.yaml").err
    for name, share in (("open", (namespace,)), ("closed", ())):
        dataset = Dataset(name=name, origin=f"http://127.0.0.1:9/{name}.tar", team=elsewhere, share=share)
        plane.request("POST", objects_path("Dataset", elsewhere), write_object(dataset))

    def listed() -> list[tuple[str, str]]:
        rows: list[dict[str, Any]] = json.loads(user("data", "ls", "--json").out)
        return [(row["name"], row["from"]) for row in rows]

    assert listed() == [("own", "http://127.0.0.1:9/b.tar")]
    client = Client(access)
    publisher = DatasetPublisher(client, Isolation(), may_act=lambda: True, every_s=60.0)
    publisher.publish(frozenset({namespace, elsewhere}))
    assert listed() == [("own", "http://127.0.0.1:9/b.tar"), ("open", "http://127.0.0.1:9/open.tar")]
    (user.directory / "train.yaml").write_text(
        "run: python train.py\nimage: python:3.12\nresources: {cpu: 1}\ndata: {train: open}\n"
    )
    planned = user("plan", "train.yaml").out
    assert "from: http://127.0.0.1:9/open.tar" in planned
    assert "dataset: open" in planned
    (user.directory / "warm.yaml").write_text("kind: Dataset\nname: warm\nfrom: s3://a/b\npreload: true\n")
    assert "nothing keeps data on the nodes of a cluster" in user("apply", "warm.yaml", code=6).err
    plane.request("DELETE", f"{objects_path('Dataset', elsewhere)}/open")
    publisher.publish(frozenset({namespace, elsewhere}))
    assert listed() == [("own", "http://127.0.0.1:9/b.tar")]
    assert user("data", "rm", "own").code == 0
    client.close()


@pytest.mark.slow
@pytest.mark.kubernetes
def test_a_name_in_an_object_that_nobody_submitted_is_refused_with_what_to_write(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str
) -> None:
    trial = {"run": "python train.py", "image": "python:3.12", "data": {"train": {"from": "imagenet@2026-11"}}}
    kinds = {
        "Training": trial,
        "Sweep": {"parameters": {"lr": "0.1 | 0.2"}, "trial": trial},
        "Pipeline": {"steps": {"fit": {"training": trial}, "tell": {"run": "python tell.py", "needs": ["fit"]}}},
        "Serving": {**trial, "run": "python serve.py", "replicas": 1},
    }
    metadata = {"name": "named", "namespace": namespace}
    for kind, spec in kinds.items():
        applied(plane, {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})
    by_url = {**trial, "data": {"train": {"from": "http://127.0.0.1:9/a.tar"}}}
    other = {"apiVersion": API_VERSION, "kind": "Training", "metadata": {**metadata, "name": "by-url"}, "spec": by_url}
    applied(plane, other)

    def status(kind: str, name: str = "named") -> dict[str, Any]:
        seen: dict[str, Any] = plane.request("GET", objects_path(kind, namespace, name)).get("status", {})
        return seen

    with operating(access, namespace):
        until(lambda: all("phase" in status(kind) for kind in kinds) and "phase" in status("Training", "by-url"))
    for kind in kinds:
        seen = status(kind)
        assert (seen["phase"], seen["reason"]) == ("Failed", "InvalidSpec"), kind
        why = 'data.train.from: "imagenet@2026-11" is the name of a Dataset, which `fairlead run` and'
        assert seen["message"].startswith(why), kind
        assert "`fairlead data versions imagenet` shows" in seen["message"]
    assert status("Training", "by-url")["phase"] != "Failed"
    pods = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    assert [pod["metadata"]["name"] for pod in pods if "named" in pod["metadata"]["name"]] == []
    names = [run["metadata"]["name"] for run in plane.request("GET", objects_path("Training", namespace))["items"]]
    assert sorted(names) == ["by-url", "named"]
