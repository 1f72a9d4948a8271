"""Jobs that MultiKueue brings from another cluster: their pods get what they need, and a forged Job harms nobody."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.engines.kueue import ORIGIN
from fairlead.cluster.kubernetes.engines.pod_template import QUEUE_NAME
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.operator.engines.dispatched_runs import DispatchedRuns
from fairlead.specs.engines import Engine
from tests.kubernetes.turns import a_turn

JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-of-job", "controller": True}
LABELS = {ORIGIN: "manager", names.RUN: "train", QUEUE_NAME: "team-a"}


class Server:
    """An API server with one pod of one Job, that keeps what it is sent."""

    def __init__(self, labels: dict[str, str], completions: object) -> None:
        self.job = {
            "metadata": {"name": "train", "uid": JOB["uid"], "labels": labels},
            "spec": {"completions": completions},
        }
        self.written: list[str] = []

    def get(self, path: str) -> dict[str, Any]:
        if path.endswith("/pods/train-0"):
            return {"metadata": {"ownerReferences": [JOB]}, "spec": {"volumes": []}}
        if path.endswith("/jobs/train"):
            return self.job
        raise ApiError(path, 404, "NotFound", "it does not exist")

    def create(self, path: str, content: dict[str, Any]) -> None:
        self.written.append(content["kind"])

    def apply(self, path: str, content: dict[str, Any], **_: Any) -> None:
        self.written.append(content["kind"])


def written(labels: dict[str, str], completions: object = 2) -> list[str]:
    """Kinds of the objects that are written for a running pod of the Job, in two passes."""
    server = Server(labels, completions)
    pod = SimpleNamespace(
        key="team-a/train-0", engine=Engine.KUEUE, attempt=0, index=0, is_over=False, told_at=None, address="10.0.0.1"
    )
    key = ("Training", "team-a", "train")
    view = SimpleNamespace(
        marks=lambda: SimpleNamespace(take=lambda: ({"uid-of-run"}, set())),
        isolation=SimpleNamespace(of=lambda _: nullcontext()),
        find_any=lambda _: None,
        guests_of=lambda _: {key: [pod]},
    )
    agent = SimpleNamespace(submit=lambda _key, _what, job: job())
    dispatched = DispatchedRuns(cast(Client, server), cast(Informers, view), may_act=lambda: True)
    for _ in range(2):
        dispatched.act(a_turn(agent))
    return server.written


def test_the_pods_of_a_job_of_another_cluster_get_runtime_key_and_names_once() -> None:
    assert sorted(written(LABELS)) == ["ConfigMap", "EndpointSlice", "NetworkPolicy", "Secret", "Service"]


@pytest.mark.parametrize("missing", LABELS)
def test_a_job_without_the_labels_of_a_dispatched_run_gets_nothing(missing: str) -> None:
    assert written({name: value for name, value in LABELS.items() if name != missing}) == []


@pytest.mark.parametrize(
    ("labels", "completions"),
    [({names.RUN: "../x"}, 2), ({names.RUN: "a" * 63}, 2), ({QUEUE_NAME: "A_b"}, 2), ({}, 10**9), ({}, -1)],
    ids=["a path for a name", "a long name", "no name of a queue", "too many pods", "fewer pods than one"],
)
def test_a_job_that_no_run_could_have_gets_nothing_and_is_named_once(
    labels: dict[str, str], completions: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert written({**LABELS, **labels}, completions) == []
    assert sum("is not of a run" in record.getMessage() for record in caplog.records) == 1
