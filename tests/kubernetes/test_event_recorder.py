"""The story of a run as Events, which ``kubectl describe`` shows."""

import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.operator.events.event_recorder import (
    BURST,
    NOTE_MOST,
    EventRecorder,
    PendingEvent,
    render_event,
)
from fairlead.cluster.kubernetes.workloads.pod_reports import SeenEvent
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.operator import Operator
from fairlead.state.plan import Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase
from tests.kubernetes.operating import comes_to, gang, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until


def events(cluster: WorkloadApi, namespace: str) -> list[dict[str, Any]]:
    """Of our operator, oldest first."""
    found = cluster.client.items(f"/api/v1/namespaces/{namespace}/events")
    ours = [each for each in found if each["source"].get("component") == "fairlead-operator"]
    return sorted(ours, key=lambda each: str(each["metadata"]["name"]))


def test_describe_tells_the_story_of_a_run(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, plane: ControlPlane
) -> None:
    cluster.submit(gang(namespace))
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
        cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/train-0-1")
        comes_to(cluster, "train", Phase.RUNNING, attempt=1)
        # The second start is told in the same words as the first.
        story = [("Placed", 2), ("RanksStarted", 2), ("PodLost", 1)]
        until(lambda: [(each["reason"], each["count"]) for each in events(cluster, namespace)] == story)
    (lost,) = (each for each in events(cluster, namespace) if each["reason"] == "PodLost")
    assert lost["type"] == "Warning"
    assert "it was deleted, as by `kubectl delete pod`" in lost["message"]
    described = subprocess.run(
        [str(plane.kubectl), "--kubeconfig", str(plane.kubeconfig()), "-n", namespace, "describe", "training", "train"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.partition("Events:")[2]  # fmt: skip
    assert "it was deleted, as by `kubectl delete pod`" in described
    assert "fairlead-operator" in described


@pytest.mark.slow
def test_what_ranks_report_is_recorded_once_for_each_attempt_whichever_operator_hears_it(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    cluster.submit(gang(namespace))
    slow = SeenEvent(rank=0, place=0, at=2000.0, event=reported("CheckpointFailed", "no space left on device"))
    lost = SeenEvent(rank=1, place=0, at=2001.0, event=reported("RankLost", "rank 3 gone"))

    def told() -> list[str]:
        return [event.type for event in cluster.events() if event.reason.code is Code.REPORTED]

    with operating(access, namespace) as operator:
        run = comes_to(cluster, "train", Phase.RUNNING)
        operator.cluster.reports.note(run.uid, None, None, attempt=0, events=(slow,))
        operator.view.wake()
        until(lambda: told() == ["CheckpointFailed"])
        shown = ("Warning", "CheckpointFailed: no space left on device")
        until(lambda: shown in [(each["type"], each["message"]) for each in events(cluster, namespace)])
    with operating(access, namespace) as operator:
        operator.cluster.reports.note(run.uid, None, None, attempt=0, events=(slow, lost))
        operator.view.wake()
        until(lambda: told() == ["CheckpointFailed", "RankLost"])
        cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/train-0-1")
        comes_to(cluster, "train", Phase.RUNNING, attempt=1)
        # The clock of another node may be behind, and what is heard of an attempt before comes too late.
        early = SeenEvent(rank=0, place=0, at=1999.0, event=reported("RankReturned", "rank 3 back"))
        operator.cluster.reports.note(run.uid, None, None, attempt=0, events=(slow, lost))
        operator.cluster.reports.note(run.uid, None, None, attempt=1, events=(early,))
        operator.view.wake()
        until(lambda: told() == ["CheckpointFailed", "RankLost", "RankReturned"])


def reported(kind: str, message: str) -> Event:
    return Event(type=kind, reason=Reason(code=Code.REPORTED, message=message))


@pytest.mark.slow
def test_whoever_takes_over_tells_nothing_twice(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    cluster.submit(gang(namespace))
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
        until(lambda: len(events(cluster, namespace)) == 2)
    before = events(cluster, namespace)
    with operating(access, namespace) as second:
        until(lambda: second.election.is_leader)
        time.sleep(2.0)
    assert events(cluster, namespace) == before


@pytest.fixture
def operator(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> Iterator[Operator]:
    with operating(access, namespace) as operator:
        yield operator


def telling(namespace: str, number: int, note: str) -> PendingEvent:
    regarding = {"apiVersion": "v1", "kind": "ConfigMap", "name": "it", "namespace": namespace, "uid": namespace}
    return PendingEvent(regarding=regarding, name=f"it.{number:x}", reason="Noted", note=note, at=time.time())


def test_the_same_words_count_up_one_event(operator: Operator, cluster: WorkloadApi, namespace: str) -> None:
    teller = EventRecorder(operator.view)
    for number in range(3):
        teller.tell(operator.agent, telling(namespace, number, "again"), time.time())
        assert operator.agent.drain(20.0)
    teller.tell(operator.agent, telling(namespace, 3, "something else"), time.time())
    assert operator.agent.drain(20.0)
    assert [(each["message"], each["count"]) for each in events(cluster, namespace)] == [
        ("again", 3),
        ("something else", 1),
    ]


def test_an_object_with_too_much_to_say_is_cut_short(operator: Operator, cluster: WorkloadApi, namespace: str) -> None:
    teller, now = EventRecorder(operator.view), time.time()
    for number in range(2 * BURST):
        teller.tell(operator.agent, telling(namespace, number, f"note {number}"), now)
    assert operator.agent.drain(20.0)
    assert len(events(cluster, namespace)) == BURST


def test_a_long_note_is_cut_where_the_server_would_refuse_it() -> None:
    message = render_event(telling("a", 0, "\u00e4" * NOTE_MOST))["message"]
    assert len(message.encode()) <= NOTE_MOST
    assert message.endswith(" ...")
