"""When the names of a gang's pods are written, and how many at once."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.objects import PodObject, ResourceAmounts
from fairlead.cluster.kubernetes.operator.pods.pod_dns import Addressing
from fairlead.cluster.kubernetes.workloads.run_record import Gang, RunRecord, TrainingObject, WorkloadObject
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase, Status
from tests.kubernetes.builders import UID, a_training, a_workload

NUM_PODS = 2500
STARTED_AT = 1000.0


class Slices:
    """Takes what is applied, at once or not at all."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.jobs: list[str] = []
        self.is_away = False

    def apply(self, path: str, content: dict[str, Any]) -> None:
        self.sizes[path.rpartition("/")[2]] = len(content["endpoints"])

    def submit(self, _run: str, name: str, job: Callable[[], None]) -> None:
        self.jobs.append(name)
        if not self.is_away:
            job()


@pytest.fixture
def slices() -> Slices:
    return Slices()


@pytest.fixture
def addressing(slices: Slices) -> Addressing:
    return Addressing(slices, slices.submit)  # type: ignore[arg-type]


def a_gang(phase: Phase = Phase.STARTING) -> TrainingObject:
    status = Status(phase=phase, reason=Reason(code=Code.PLACED, message="placed"), since=STARTED_AT)
    nodes = ("node-a",) * NUM_PODS
    gang = Gang(attempt=0, at=STARTED_AT, cpu_milli=1, memory_bytes=1, gpu_milli=0, nodes=nodes, gpus=("",) * NUM_PODS)
    workload = a_workload(a_training(nodes=NUM_PODS), status=status)
    return WorkloadObject(
        key="research/train-llama", version=1, uid=UID, namespace="research", name="train-llama", generation=1,
        finalizers=(), is_leaving=False, wish="", workdir="", created_at=0.0,
        state=RunRecord(status=status, gang=gang), workload=workload,
    )  # fmt: skip


def pods(*indexes: int, attempt: int = 0) -> dict[str, PodObject]:
    """All of the gang's, of which these have an address."""
    one = PodObject(
        key="",
        version=1,
        uid="u",
        phase="Pending",
        node="node-a",
        requests=ResourceAmounts(),
        created_at=0.0,
        run_uid=UID,
    )
    names = {index: f"research/train-llama-{attempt}-{index}" for index in range(NUM_PODS)}
    return {
        name: replace(one, key=name, index=index, attempt=attempt, address="10.0.0.1" if index in indexes else "")
        for index, name in names.items()
    }


def test_names_are_written_together_but_the_first_at_once(addressing: Addressing, slices: Slices) -> None:
    found = a_gang()
    assert addressing.look(found, pods(), STARTED_AT)
    assert not addressing.look(found, pods(1, 2), STARTED_AT + 0.1)
    assert len(slices.jobs) == 1
    assert not addressing.look(found, pods(1, 2, 3), STARTED_AT + 0.2)
    assert len(slices.jobs) == 1
    assert not addressing.look(found, pods(0, 1, 2, 3), STARTED_AT + 0.3)
    assert len(slices.jobs) == 2
    assert not addressing.look(found, pods(0, 1, 2, 3, 4), STARTED_AT + 0.4)
    assert not addressing.look(found, pods(0, 1, 2, 3, 4), STARTED_AT + 6.0)
    assert len(slices.jobs) == 3


def test_a_whole_gang_is_written_without_waiting_and_in_slices_that_the_api_server_takes(
    addressing: Addressing, slices: Slices
) -> None:
    found, everyone = a_gang(), pods(*range(NUM_PODS))
    assert not addressing.look(found, pods(0), STARTED_AT)
    assert not addressing.look(found, everyone, STARTED_AT + 0.1)
    assert addressing.look(found, everyone, STARTED_AT + 0.2)
    assert sorted(slices.sizes.values()) == [500, 1000, 1000]


def test_what_was_not_written_is_given_out_again(addressing: Addressing, slices: Slices) -> None:
    found, everyone = a_gang(), pods(*range(NUM_PODS))
    slices.is_away = True
    assert not addressing.look(found, everyone, STARTED_AT)
    slices.is_away = False
    assert not addressing.look(found, everyone, STARTED_AT + 0.5)
    assert addressing.look(found, everyone, STARTED_AT + 0.6)


def test_whoever_takes_over_writes_the_names_of_a_gang_that_may_not_have_met(
    addressing: Addressing, slices: Slices
) -> None:
    found, everyone = a_gang(Phase.RUNNING), pods(*range(NUM_PODS))
    assert addressing.look(found, everyone, STARTED_AT + 3600.0)
    assert slices.jobs == []
    assert not addressing.look(found, everyone, STARTED_AT + 5.0)
    assert len(slices.jobs) == 3
