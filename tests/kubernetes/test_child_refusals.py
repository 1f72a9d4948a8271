"""A child or a status that the API server refuses holds up its own workload, and nobody else."""

import threading
from itertools import count
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.operator import write_pool
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster, RefusedWrite
from fairlead.cluster.kubernetes.operator.events.event_recorder import api_refusal_of, refusal_of
from fairlead.cluster.kubernetes.workloads.run_record import read_workload
from fairlead.cluster.preflight import NO_POPULATION
from fairlead.errors import ClusterError
from fairlead.policy.kinds.parents import submit
from fairlead.state.plan import Change, CreatePod, Plan
from fairlead.state.snapshot import Grant, Phase
from tests.builders import status
from tests.kubernetes.builders import a_training
from tests.waiting import until

MOMENT = "2026-01-01T00:00:00Z"
COUNT = "count/trainings.fairlead.dev"
QUOTA = f"exceeded quota: runs, requested: {COUNT}=1, used: {COUNT}=5, limited: {COUNT}=5"


def an_object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {
        "name": name, "namespace": "research", "uid": f"uid-of-{name}", "resourceVersion": "7", "generation": 1,
        "creationTimestamp": MOMENT, "finalizers": ["fairlead.dev/run"],
    }  # fmt: skip
    return {"apiVersion": "fairlead.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


SWEEP = an_object("Sweep", "rates", {"parameters": {"lr": "0.1 | 0.2"}, "trial": {"run": "train"}})
RUN = an_object("Training", "other", {"run": "train"})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> KubernetesCluster:
    """One whose API server takes any status, but no new object."""
    client = Client(ClusterAccess(context="none", server="http://127.0.0.1:9", credentials=Anonymous()))
    view = Informers(client)
    view.parents["Sweep"].put(SWEEP)
    view.trainings.put(RUN)

    def written(path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        known = RUN if "trainings" in path else SWEEP
        return {**known, "metadata": {**known["metadata"], "resourceVersion": "8"}, "status": body["status"]}

    monkeypatch.setattr(client, "apply", written)
    monkeypatch.setattr(client, "get", lambda _: SWEEP)
    return KubernetesCluster(client, view=view)


def changes(cluster: KubernetesCluster) -> Plan:
    """The first trial of the sweep, and a status of the other run."""
    (sweep,), (other,) = cluster.snapshot().parents, cluster.snapshot().workloads
    order = submit(sweep, "0", a_training(team="research"))
    return Plan(
        changes=(
            Change(workload_uid=sweep.uid, version=sweep.version, submit=(order,)),
            Change(workload_uid=other.uid, version=other.version, status=status(Phase.PENDING)),
        )
    )


def test_a_child_that_is_refused_holds_up_its_parent_alone_and_is_told_once(
    cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> dict[str, Any]:
        raise ApiError("POST trainings", 403, "Forbidden", QUOTA)

    monkeypatch.setattr(cluster.client, "create", refused)
    assert cluster.apply(changes(cluster)) == (False, True)
    ((parent, what, said),) = cluster.take_refusals()
    assert parent.name == "rates"
    assert "has 5 objects of this kind, finished ones included, and may have 5" in said
    told = api_refusal_of(parent, what, said, 1.0)
    assert (told.reason, told.is_warning, told.regarding["kind"]) == ("ChildRefused", True, "Sweep")
    assert cluster.apply(changes(cluster))[0] is False
    assert cluster.take_refusals() == []


def test_an_api_server_that_does_not_answer_is_no_refusal(
    cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(*_: object) -> dict[str, Any]:
        raise ClusterError("There is no answer.")

    monkeypatch.setattr(cluster.client, "create", unanswered)
    with pytest.raises(ClusterError, match="no answer"):
        cluster.apply(changes(cluster))
    assert cluster.take_refusals() == []


def test_a_status_that_is_refused_holds_up_its_own_workload_alone_and_is_told_once(
    cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = cluster.client.apply

    def refused(path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if "sweeps" in path:
            raise ApiError("PATCH sweeps/status", 422, "Invalid", 'admission webhook "policy" denied the request')
        return known(path, body)

    monkeypatch.setattr(cluster.client, "apply", refused)
    (sweep,), (other,) = cluster.snapshot().parents, cluster.snapshot().workloads
    running = status(Phase.RUNNING)
    plan = Plan(
        changes=(
            Change(workload_uid=sweep.uid, version=sweep.version, status=running),
            Change(workload_uid=other.uid, version=other.version, status=running),
        )
    )
    assert cluster.apply(plan) == (False, True)
    ((found, what, said),) = cluster.take_refusals()
    assert (found.name, what) == ("rates", RefusedWrite.STATUS)
    assert "denied the request" in said
    assert cluster.apply(plan)[0] is False
    assert cluster.take_refusals() == []


def test_an_account_that_may_write_nothing_ends_the_pass(
    cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> dict[str, Any]:
        raise ApiError("PATCH sweeps/status", 401, "Unauthorized", "who are you?")

    monkeypatch.setattr(cluster.client, "apply", unknown)
    (sweep,) = cluster.snapshot().parents
    change = Change(workload_uid=sweep.uid, version=sweep.version, status=status(Phase.RUNNING))
    with pytest.raises(ApiError, match="who are you"):
        cluster.apply(Plan(changes=(change,)))


@pytest.mark.parametrize("status_code", [500, 503, 409, 504])
def test_a_status_that_cannot_be_written_defers_its_own_workload_and_is_told_when_that_lasts(
    cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch, status_code: int
) -> None:
    known, sent = cluster.client.apply, list[str]()
    numbers = count()

    def refused(path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        sent.append(path)
        if "sweeps" in path:
            said = f"failed calling webhook: dial tcp 10.0.0.1:{next(numbers)}: connection refused"
            raise ApiError("PATCH sweeps/status", status_code, "InternalError", said)
        return known(path, body)

    monkeypatch.setattr(cluster.client, "apply", refused)
    monkeypatch.setattr(cluster.client, "get", refused_read if status_code == 409 else lambda _: SWEEP)
    (sweep,), (other,) = cluster.snapshot().parents, cluster.snapshot().workloads
    changed = tuple(
        Change(workload_uid=each.uid, version=each.version, status=status(Phase.RUNNING)) for each in (sweep, other)
    )
    assert cluster.apply(Plan(changes=changed)) == (False, True)
    assert cluster.snapshot().deferred == {sweep.uid}
    assert cluster.refused == {sweep.uid}
    # Nothing is sent again before its time.
    num_sent = len(sent)
    assert cluster.apply(Plan(changes=changed[:1])) == (False,)
    assert len(sent) == num_sent
    for _ in range(3):
        until(lambda: not cluster.snapshot().deferred)
        assert cluster.apply(Plan(changes=changed[:1])) == (False,)
    ((found, what, said),) = cluster.take_refusals()
    assert (found.name, what) == ("rates", RefusedWrite.STATUS)
    assert "dial tcp" in said


def refused_read(_: str) -> dict[str, Any]:
    raise ApiError("GET sweeps", 500, "InternalError", "dial tcp")


def test_what_a_write_without_an_answer_starts_is_counted_as_held(
    cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    known = cluster.client.apply

    def slow(path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if "sweeps" in path:
            assert answered.wait(60)
        return known(path, body)

    monkeypatch.setattr(cluster.client, "apply", slow)
    monkeypatch.setattr(write_pool, "SLOW_S", 0.1)
    (sweep,), (other,) = cluster.snapshot().parents, cluster.snapshot().workloads
    grant = Grant(cpu_milli=500, memory_bytes=1)
    order = CreatePod(attempt=0, index=0, node="node-a", grant=grant)
    held = Change(workload_uid=sweep.uid, version=sweep.version, status=status(Phase.RUNNING), create=(order,))
    change = Change(workload_uid=other.uid, version=other.version, status=status(Phase.RUNNING))
    try:
        assert cluster.apply(Plan(changes=(held, change))) == (False, True)
        seen = cluster.snapshot()
        assert seen.deferred == {sweep.uid}
        assert [(pod.workload_uid, pod.node, pod.grant) for pod in seen.pods] == [("", "node-a", grant)]
    finally:
        answered.set()
    until(lambda: not cluster.snapshot().deferred)
    assert cluster.snapshot().pods == ()


def test_a_pipeline_with_a_dataset_as_input_is_refused_with_what_to_write() -> None:
    steps = {"fit": {"run": "true", "inputs": ["raw.csv", "imagenet@2026-11"]}}
    record = read_workload(an_object("Pipeline", "copies", {"steps": steps}))
    assert record.workload is None
    assert record.problem.startswith('steps.fit.inputs: "imagenet@2026-11" is the name of a Dataset, which the driver')
    assert "`fairlead data versions imagenet` shows" in record.problem
    steps["fit"]["inputs"] = ["raw.csv", "s3://bucket/raw@2.csv", "imagenet"]
    assert "inputs" not in read_workload(an_object("Pipeline", "copies", {"steps": steps})).problem


@pytest.mark.parametrize("kind", ["Sweep", "Pipeline"])
def test_a_population_that_an_older_definition_let_in_is_refused_as_a_whole(kind: str) -> None:
    sweep = {
        "parameters": {"lr": "0.1..1.0"}, "objective": {"metric": "loss"}, "trials": 8, "parallel": 4,
        "prune": {"rule": "pbt", "after": 5},
        "trial": {"run": "train", "checkpoint": {"to": "s3://b/c", "every": "5 steps"}},
    }  # fmt: skip
    spec = sweep if kind == "Sweep" else {"steps": {"tune": {"sweep": sweep}}}
    found = read_workload(an_object(kind, "copies", spec))
    assert found.workload is None  # so that nothing is ever submitted for it
    assert NO_POPULATION in found.problem
    told = refusal_of(found, 1.0)
    assert (told.reason, told.note) == ("InvalidSpec", found.problem)
