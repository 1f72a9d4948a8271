"""A run with an engine is handed over whole, and neither placed, counted nor stopped by our queue."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.pass_cache import PassCache
from fairlead.specs.engines import Engine
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.team import Quota, Team
from fairlead.specs.training import Training
from fairlead.state.plan import Change
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Snapshot, Workload
from tests.builders import node, status, training

NOW = 2_000_000_000.0


def run(spec: Training, phase: Phase = Phase.PENDING, **changes: Any) -> Workload:
    told = status(phase, **changes)
    return Workload(uid=spec.name, spec=spec, intent=Intent.RUN, version=3, status=told, created_at=NOW)


def member(of: Workload, index: int, phase: PodPhase, **changes: Any) -> Pod:
    attempt = of.status.attempt
    base: dict[str, Any] = {"node": "", "grant": Grant(cpu_milli=1), "created_at": NOW}
    uid = f"{of.uid}-{attempt}-{index}"
    return Pod(uid=uid, workload_uid=of.uid, attempt=attempt, index=index, phase=phase, **{**base, **changes})


def decided(*runs: Workload, pods: tuple[Pod, ...] = (), **changes: Any) -> tuple[Change, ...]:
    """The changes, which are the same with what was kept of passes before."""
    snapshot = Snapshot(**{"nodes": (node(gpus=2),), "workloads": runs, "pods": pods, **changes})
    found = decide(snapshot, NOW).changes
    assert found == decide(snapshot, NOW, PassCache()).changes
    return found


GANG = training(engine=Engine.KUEUE, queue="a", nodes=2, resources=Resources(cpu_milli=500, memory_bytes=2**30))


def test_it_is_handed_over_whole_and_to_no_node() -> None:
    (change,) = decided(run(GANG), nodes=())
    assert change.status is not None
    assert (change.status.phase, change.status.reason.code) == (Phase.STARTING, Code.HANDED_OVER)
    assert change.status.reason.message == (
        "2 pods with 2 ranks handed to the engine kueue, queue a, which places them"
    )
    assert [(each.index, each.node, each.grant.cpu_milli) for each in change.create] == [(0, "", 500), (1, "", 500)]
    # It has not run yet, whatever time it waits there.
    assert change.status.started_at is None


def test_mpi_has_a_launcher_before_its_workers() -> None:
    (change,) = decided(run(training(engine=Engine.MPIJOB, nodes=2, image="mpi")))
    assert [each.index for each in change.create] == [0, 1, 2]


def test_it_is_not_handed_over_before_its_retry_nor_while_anything_of_it_lives() -> None:
    assert decided(run(GANG, Phase.RESTARTING, retry_at=NOW + 5, attempt=1)) == ()
    (change,) = decided(run(GANG, Phase.RESTARTING, retry_at=NOW - 5, attempt=1))
    assert [each.attempt for each in change.create] == [1, 1]
    waiting = run(GANG, Phase.RESTARTING, retry_at=NOW - 5, attempt=1)
    old = replace(member(waiting, 0, PodPhase.CREATED), attempt=0, terminating_since=NOW)
    assert all(not each.create for each in decided(waiting, pods=(old,)))


def test_why_it_waits_is_told_with_each_new_reason_and_one_event() -> None:
    starting = run(GANG, Phase.STARTING)
    pods = tuple(member(starting, index, PodPhase.CREATED, message="Kueue has no room") for index in range(2))
    (change,) = decided(starting, pods=pods)
    assert change.status is not None
    assert change.event is not None
    assert (change.status.reason.code, change.status.reason.message) == (Code.START_DELAYED, "Kueue has no room")
    told = replace(starting, status=change.status)
    assert decided(told, pods=pods) == ()
    (again,) = decided(told, pods=tuple(replace(pod, message="Kueue has 1 GPU of 2") for pod in pods))
    assert again.status is not None
    assert (again.status.reason.message, again.event) == ("Kueue has 1 GPU of 2", None)


def test_its_time_begins_when_its_ranks_do() -> None:
    starting = run(GANG, Phase.STARTING)
    pods = tuple(member(starting, index, PodPhase.RUNNING, node="node-0", started_at=NOW - 1) for index in range(2))
    (change,) = decided(starting, pods=pods)
    assert change.status is not None
    assert (change.status.phase, change.status.started_at) == (Phase.RUNNING, NOW)


def test_nothing_that_an_engine_placed_is_stopped_for_another_run() -> None:
    low = run(training("low", engine=Engine.JOBSET, resources=Resources(gpu=GpuRequest(milli=2000))), Phase.RUNNING)
    held = member(low, 0, PodPhase.RUNNING, node="node-0", started_at=NOW - 1)
    others = Pod(
        uid="others-node-0", workload_uid="", attempt=0, index=0, node="node-0", phase=PodPhase.RUNNING, created_at=0.0,
        grant=Grant(gpu_uuids=("node-0-gpu-0", "node-0-gpu-1"), gpu_milli=1000),
    )  # fmt: skip
    urgent = run(training("urgent", priority=9, resources=Resources(gpu=GpuRequest(milli=1000))))
    changes = decided(low, urgent, pods=(held, others))
    assert [change.workload_uid for change in changes] == ["urgent"]
    assert changes[0].status is not None
    assert changes[0].status.reason.code is Code.WAITING_FOR_RESOURCES


@pytest.mark.parametrize("engine", [None, Engine.JOBSET])
def test_a_teams_quota_counts_only_what_our_queue_placed(engine: Engine | None) -> None:
    team = Team(name="default", quota=Quota(gpu_milli=1000))
    one = Resources(gpu=GpuRequest(milli=1000))
    first = run(training("first", engine=engine, resources=one), Phase.RUNNING)
    grant = Grant(gpu_uuids=() if engine else ("node-0-gpu-0",), gpu_milli=0 if engine else 1000)
    held = member(first, 0, PodPhase.RUNNING, node="node-0", started_at=NOW - 1, grant=grant)
    changes = decided(first, run(training("second", resources=one)), pods=(held,), teams=(team,))
    (change,) = (each for each in changes if each.workload_uid == "second")
    assert change.status is not None
    assert change.status.phase is (Phase.PENDING if engine is None else Phase.STARTING)
