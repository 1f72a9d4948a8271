"""Spans of runs on Kubernetes: the leading operator sends them, and a change of leader loses and doubles none."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.informers.informers import trainings_path
from fairlead.cluster.kubernetes.operator.pods.image_pulls import duration_s, pull_in
from fairlead.cluster.kubernetes.workloads.run_record import (
    MOST_EVENTS,
    KeptEvent,
    RunRecord,
    known_events,
    read_training,
)
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.operator import Operator
from fairlead.control.span_receiver import SpanReceiver, receiver_of
from fairlead.state.attempts import ImagePull
from fairlead.state.reasons import JUST_SUBMITTED
from fairlead.state.snapshot import Intent, Phase
from tests.kubernetes.operating import comes_to, gang, operating
from tests.otlp import Receiver, receiving, spans_in
from tests.waiting import until

PULLED = 'Successfully pulled image "{image}" in {took} ({took} including waiting). Image size: 1234 bytes.'
QUICK_LEASE = {"lease_s": 2.0, "deadline_s": 1.2, "beat_s": 0.3}


def sending_to(receiver: Receiver) -> SpanReceiver:
    found = receiver_of({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert found is not None
    return found


def event(message: str, at: str = "2026-01-01T00:00:10Z", reason: str = "Pulled") -> dict[str, Any]:
    return {"reason": reason, "message": message, "firstTimestamp": at, "eventTime": None}


def test_a_pull_is_read_from_what_kubelet_says() -> None:
    told = [
        event("Pulling image", reason="Pulling"),
        event(PULLED.format(image="set-up", took="500ms")),
        event(PULLED.format(image="torch:2", took="1m2.5s"), at="2026-01-01T00:02:00Z"),
        event('Container image "torch:2" already present on machine and can be accessed by the pod'),
    ]
    until_ = datetime(2026, 1, 1, 0, 2, tzinfo=UTC).timestamp()
    first = datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC).timestamp()
    assert pull_in(told, "a") == ImagePull(since=first - 0.5, until=until_, image="torch:2", node="a", size_bytes=1234)
    assert pull_in(told[-1:], "a") is None
    assert pull_in([event('Successfully pulled image "x" in soon (later including waiting)')], "a") is None


@pytest.mark.parametrize("took", ["9" * 400 + "h", "9" * 20 + "s", "9" * 5000 + "s"])
def test_a_pull_that_began_before_all_time_is_none(took: str) -> None:
    assert pull_in([event(PULLED.format(image="x", took=took))], "a") is None


def test_a_size_that_no_image_has_is_not_read() -> None:
    pull = pull_in([event(PULLED.format(image="x", took="1s").replace("1234", "9" * 5000))], "a")
    assert pull is not None
    assert pull.size_bytes is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1h0m1s", 3601.0), ("1.5s", 1.5), ("250.5ms", 0.2505), ("3µs", 3e-6), ("5", None), ("", None)],
)
def test_a_duration_is_as_go_prints_it(text: str, seconds: float | None) -> None:
    assert duration_s(text) == (None if seconds is None else pytest.approx(seconds))


def state_of(cluster: WorkloadApi, namespace: str, name: str = "train") -> RunRecord:
    return read_training(cluster.client.get(trainings_path(namespace, name))).state


def is_marked(cluster: WorkloadApi, namespace: str) -> bool:
    state = state_of(cluster, namespace)
    return state.traced is not None and state.traced == state.status.finished_at


def ends(cluster: WorkloadApi, namespace: str, pod: str, first_step_at: float) -> None:
    """Let a fake pod end, with a report of its ranks."""
    progress = {"step": 1, "first_step_at": first_step_at, "updated_at": first_step_at}
    message = json.dumps({"form": 1, "ranks": [[0, 0, None, first_step_at + 1.0, 0]], "progress": progress})
    annotations = {"fake/message": message, "fake/run": "0s"}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    cluster.client.merge(path, {"metadata": {"annotations": annotations}})


def test_the_operator_sends_the_spans_of_a_run(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    cluster.submit(gang(namespace, nodes=1, gpus=0))
    with receiving() as receiver, operating(access, namespace, spans=sending_to(receiver)):
        comes_to(cluster, "train", Phase.RUNNING)
        first_step_at = time.time() + 1.0
        ends(cluster, namespace, "train-0-0", first_step_at)
        until(lambda: receiver.bodies, "spans")
        until(lambda: is_marked(cluster, namespace), "a mark")
    (body,) = receiver.bodies
    spans = {each["name"]: each for each in spans_in(body)}
    assert list(spans) == ["run train", "queued", "starting", "first step", "running"]
    assert spans["first step"]["endTimeUnixNano"] == str(round(first_step_at * 1e9))
    assert spans["queued"]["endTimeUnixNano"] == spans["starting"]["startTimeUnixNano"]
    assert all(each["status"]["code"] == 1 for each in spans.values())


@pytest.mark.long
def test_a_run_that_is_resumed_is_sent_again_with_all_of_its_life(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    run = cluster.submit(gang(namespace, nodes=1, gpus=0, run="0s"))
    cluster.set_intent(run.uid, Intent.STOP)
    with receiving() as receiver, operating(access, namespace, spans=sending_to(receiver)):
        until(lambda: is_marked(cluster, namespace), "a mark")
        cluster.set_intent(run.uid, Intent.RUN)
        comes_to(cluster, "train", Phase.SUCCEEDED)
        until(lambda: len(receiver.bodies) == 2, "spans of all of it")
        until(lambda: is_marked(cluster, namespace), "another mark")
    before, after = (spans_in(each) for each in receiver.bodies)
    assert [each["name"] for each in before] == ["run train", "queued"]
    assert [each["name"] for each in after] == ["run train", "queued", "queued", "starting", "running"]
    assert [each["spanId"] for each in before] == [each["spanId"] for each in after[:2]]


def test_older_events_that_are_forgotten_begin_no_wait(cluster: WorkloadApi, namespace: str) -> None:
    cluster.submit(gang(namespace))
    found = read_training(cluster.client.get(trainings_path(namespace, "train")))
    assert [each.type for each in known_events(found)] == ["Submitted"]
    kept = tuple(KeptEvent(id=n, at=float(n), type="Running", reason=JUST_SUBMITTED) for n in range(MOST_EVENTS))
    full = replace(found, state=replace(found.state, events=kept))
    assert [each.type for each in known_events(full)] == ["Running"] * MOST_EVENTS


@pytest.mark.long
def test_a_change_of_leader_neither_loses_nor_doubles_a_span(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    """An answer is lost, its operator ends, and the next one sends the same spans; what is marked is sent no more."""
    cluster.submit(gang(namespace, start="3s"))
    with receiving(num_refused=1) as receiver:
        settings: dict[str, Any] = {**QUICK_LEASE, "spans": sending_to(receiver)}
        with operating(access, namespace, **settings) as first:
            comes_to(cluster, "train", Phase.STARTING)
            for index in range(2):
                say_pulled(first, namespace, f"train-0-{index}")
            comes_to(cluster, "train", Phase.RUNNING)
            until(lambda: state_of(cluster, namespace).gang.pull is not None, "a pull")  # type: ignore[union-attr]
        with operating(access, namespace, **settings) as second:
            until(lambda: second.election.is_leader)
            cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/train-0-1")
            comes_to(cluster, "train", Phase.RUNNING, attempt=1)
            for index in range(2):
                ends(cluster, namespace, f"train-1-{index}", time.time() + 1.0)
            until(lambda: receiver.refused, "a first request")
            assert not receiver.bodies
        with operating(access, namespace, **settings):
            until(lambda: receiver.bodies, "spans of the first run")
            until(lambda: is_marked(cluster, namespace), "a mark")
        with operating(access, namespace, **settings):
            cluster.submit(gang(namespace, "other", nodes=1, run="0s"))
            until(lambda: len(receiver.bodies) > 1, "spans of the other run")
    assert receiver.refused == receiver.bodies[:1]
    told = [spans_in(each) for each in receiver.bodies]
    assert [spans[0]["name"] for spans in told] == ["run train", "run other"]
    names = [each["name"] for each in told[0]]
    assert names == [
        "run train", "queued", "queued", "starting", "pulling", "running", "starting", "first step", "running"
    ]  # fmt: skip
    ids = [each["spanId"] for spans in told for each in spans]
    assert len(set(ids)) == len(ids)


def say_pulled(operator: Operator, namespace: str, pod: str) -> None:
    """Have kubelet say of a pod that it pulled its image."""
    client = operator.cluster.client
    uid = until(lambda: [each.uid for each in operator.view.pods.all() if each.key == f"{namespace}/{pod}"], pod)[0]
    client.create(
        f"/api/v1/namespaces/{namespace}/events",
        {
            "metadata": {"name": f"{pod}.pulled"},
            "involvedObject": {"kind": "Pod", "namespace": namespace, "name": pod, "uid": uid},
            "reason": "Pulled",
            "type": "Normal",
            "message": PULLED.format(image="torch:2", took="1.5s"),
            "source": {"component": "kubelet"},
            "firstTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
    )
