"""Pods that were placed and of which nothing is heard."""

import math
from typing import Any

import pytest

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.programs import SimulatedProgram
from fairlead.control.loop import run_pass
from fairlead.policy.decide import decide
from fairlead.policy.kinds.slow_starts import LIMIT_S, TOLD_AFTER_S
from fairlead.policy.next_decision import next_decision_at
from fairlead.specs.engines import Engine
from fairlead.specs.training import Retry, Training
from fairlead.state.plan import Change
from fairlead.state.reasons import Code
from fairlead.state.snapshot import (
    Grant,
    Intent,
    Phase,
    Pod,
    PodPhase,
    Silence,
    Snapshot,
    Status,
    Workload,
)
from tests.builders import node, status, training

NOW = 2_000_000_000.0
WHAT = "its kubelet says nothing of it"


def look(
    *silences: Silence | None,
    since: float = NOW - LIMIT_S,
    **changes: Any,
) -> tuple[Change, ...]:
    """What is decided of a gang that was placed on a, b, ... and of whose pods nothing is heard."""
    run = Workload(
        uid="u", spec=training("train", nodes=len(silences)), intent=Intent.RUN, version=7, created_at=since,
        status=status(Phase.STARTING, since=since, started_at=since, **changes),
    )  # fmt: skip
    pods = tuple(
        Pod(
            uid=f"u-0-{index}", workload_uid="u", attempt=0, index=index, node="abc"[index], grant=Grant(cpu_milli=1),
            phase=PodPhase.STARTING if silence else PodPhase.RUNNING, created_at=since, silence=silence,
            started_at=None if silence else since,
        )
        for index, silence in enumerate(silences)
    )  # fmt: skip
    return decide(Snapshot(nodes=(node("a"), node("b"), node("c")), workloads=(run,), pods=pods), NOW).changes


def becomes(*silences: Silence | None, **changes: Any) -> Status:
    (change,) = look(*silences, **changes)
    assert change.status is not None
    return change.status


def silence(seconds: float, until: float | None = None) -> Silence:
    return Silence(since=NOW - seconds, until=until, what=WHAT)


def test_a_pod_of_which_nothing_is_heard_is_told_of_after_a_minute() -> None:
    assert look(None, silence(TOLD_AFTER_S - 1)) == ()
    told = becomes(None, silence(TOLD_AFTER_S))
    assert (told.phase, told.reason.code) == (Phase.STARTING, Code.START_DELAYED)
    assert told.reason.message == (
        f"pod 1 of 2 has not started for 1m: {WHAT}; after 10m its gang restarts, elsewhere if there is room"
    )


def test_a_gang_with_a_pod_that_does_not_start_within_the_limit_is_started_anew_for_the_fault_of_the_node() -> None:
    (change,) = look(None, silence(LIMIT_S))
    after = change.status
    assert after is not None
    assert (after.phase, after.reason.code, after.attempt) == (Phase.RESTARTING, Code.START_TIMED_OUT, 1)
    assert after.reason.message == f"pod 1 of 2 did not start on b within 10m: {WHAT}; it restarts at once"
    assert (after.failures.disruptions, after.failures.program, after.failures.avoided_nodes) == (1, 0, ("b",))
    assert [each.pod_uid for each in change.terminate] == ["u-0-0", "u-0-1"]


def test_a_silence_that_is_only_known_up_to_earlier_does_not_count_as_longer() -> None:
    assert look(silence(LIMIT_S, until=NOW - LIMIT_S + TOLD_AFTER_S - 1)) == ()
    assert becomes(silence(2 * LIMIT_S, until=NOW - LIMIT_S)).phase is Phase.RESTARTING


def test_a_second_start_in_vain_waits_as_long_as_it_may() -> None:
    after = becomes(silence(LIMIT_S), avoids=("z",), disruptions=1)
    assert after.failures.retry_at == NOW + Retry().max_backoff_s
    assert after.failures.avoided_nodes == ("a", "z")


def test_a_gang_that_an_engine_starts_is_left_to_it() -> None:
    spec = training("train", engine=Engine.KUEUE, queue="q")
    run = Workload(
        uid="u", spec=spec, intent=Intent.RUN, version=7, created_at=NOW,
        status=status(Phase.STARTING, since=NOW - LIMIT_S, started_at=NOW - LIMIT_S),
    )  # fmt: skip
    pod = Pod(
        uid="u-0-0", workload_uid="u", attempt=0, index=0, node="a", grant=Grant(cpu_milli=1),
        phase=PodPhase.CREATED, created_at=NOW - LIMIT_S, silence=silence(LIMIT_S),
    )  # fmt: skip
    assert decide(Snapshot(nodes=(node("a"),), workloads=(run,), pods=(pod,)), NOW).changes == ()


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_it_starts_elsewhere_where_there_is_room_and_forgets_that_once_it_runs(num_nodes: int) -> None:
    """On one node it is tried there again."""

    def behaviour(spec: Training, attempt: int) -> SimulatedProgram:
        return SimulatedProgram(duration_s=50.0, start_s=math.inf if attempt == 0 else 1.0)

    cluster = SimulatedCluster(tuple(node(name) for name in "abc"[:num_nodes]), behaviour)
    uid = cluster.submit(training("train")).uid
    begun, told = cluster.clock.now(), []
    for _ in range(100):
        while run_pass(cluster, cluster.clock.now()):
            pass
        (run,) = cluster.workloads()
        told.append(run.status.reason.code)
        if run.status.phase.is_final:
            break
        now = cluster.clock.now()
        cluster.go_on(min(next_decision_at(cluster.snapshot(), now), cluster.next_at))
    assert run.status.phase is Phase.SUCCEEDED
    assert cluster.clock.now() == begun + LIMIT_S + 51.0
    assert Code.START_DELAYED in told
    assert run.status.failures.avoided_nodes == ()
    placed = [each.reason.message for each in cluster.events(uid) if each.reason.code is Code.PLACED]
    assert len(placed) == 2
    assert (placed[0] != placed[1]) is (num_nodes > 1)


def test_a_run_that_is_starting_is_looked_at_when_its_silence_may_be_too_long() -> None:
    since = NOW - 3.0
    run = Workload(
        uid="u",
        spec=training(),
        intent=Intent.RUN,
        version=1,
        created_at=NOW,
        status=status(Phase.STARTING, since=since),
    )
    seen = Snapshot(nodes=(), workloads=(run,), pods=())
    assert next_decision_at(seen, NOW) == since + TOLD_AFTER_S
    assert next_decision_at(seen, NOW + TOLD_AFTER_S) == since + LIMIT_S
    assert next_decision_at(seen, NOW + LIMIT_S) == math.inf
