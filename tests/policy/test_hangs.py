"""Who of a gang that hung keeps the others waiting, in words; and that nobody is blamed where it cannot be told."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.kinds.failures import hung
from fairlead.policy.kinds.hangs import explain
from fairlead.policy.kinds.training import STACKS_GRACE_S
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import (
    Grant,
    GroupProgress,
    Intent,
    Phase,
    Pod,
    PodPhase,
    RankExit,
    Snapshot,
    Whereabouts,
    Workload,
)
from tests.builders import changed, node, status, training

LOAD, STEP = "load_batch (train.py:42)", "train_step (train.py:60)"


def at(place: str | None, waits_in: str | None = None, step: int | None = None) -> Whereabouts:
    return Whereabouts(place=place, waits_in=waits_in, step=step)


def gang(*ranks: Whereabouts | None) -> list[RankExit]:
    return [RankExit(rank=rank, signal=9, at=1.0, hang=hang) for rank, hang in enumerate(ranks)]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([at(LOAD)], f"rank 0 hangs in {LOAD}"),
        ([at(STEP, "all_reduce"), at(LOAD)], f"rank 1 hangs in {LOAD}; rank 0 waits in all_reduce"),
        (
            [at(STEP, "all_reduce"), at(LOAD), at(STEP, "all_reduce")],
            f"rank 1 hangs in {LOAD}; the others wait in all_reduce",
        ),
        (
            [at(LOAD), at(STEP, "backward"), at(LOAD), at(STEP, "barrier")],
            f"ranks 0 and 2 hang in {LOAD}; the others wait in backward or barrier",
        ),
        ([at(STEP), at(LOAD), at(STEP)], f"rank 1 hangs in {LOAD}; the others are in {STEP}"),
        ([at(STEP), at(LOAD)], f"rank 0 is in {STEP}, rank 1 is in {LOAD}, and which of them hangs is not known"),
        ([at(STEP), at(STEP)], f"ranks 0 and 1 are in {STEP}, and which of them hangs is not known"),
        ([at(STEP, step=8), at(STEP, step=7)], f"rank 1 hangs in {STEP}; the others are a step or more ahead"),
        (
            [at(STEP, "all_reduce"), at(STEP, "all_reduce")],
            f"ranks 0 and 1 wait in all_reduce, called in {STEP}, and which of them is the cause is not known",
        ),
        (
            [at(STEP, "all_reduce", 8), at(STEP, "all_reduce", 8), at(STEP, "all_reduce", 7)],
            f"rank 2 is behind, after step 7, and waits in all_reduce, called in {STEP}; the others wait in all_reduce",
        ),
        (
            [at(STEP, "all_reduce"), at(LOAD, "broadcast"), at(STEP, "all_reduce")],
            f"rank 1 waits in broadcast, called in {LOAD} while the others wait in all_reduce: "
            "the ranks do not call the same",
        ),
        (
            [at(STEP, "all_reduce"), at(LOAD, "barrier")],
            f"rank 0 waits in all_reduce, called in {STEP}, rank 1 waits in barrier, called in {LOAD}: "
            "the ranks do not call the same",
        ),
        ([at(None), at(None)], "no rank gave its stack, so where it hangs is not known"),
        (
            [at(STEP, "all_reduce"), None, at(LOAD), at(STEP, "all_reduce")],
            f"rank 2 hangs in {LOAD}; the others wait in all_reduce; rank 1 gave no stack",
        ),
        ([at(LOAD), None], f"rank 0 is in {LOAD}; rank 1 gave no stack"),
        (
            [at(STEP, "all_reduce"), None, at(None)],
            f"rank 0 waits in all_reduce, called in {STEP}; 2 ranks gave no stack",
        ),
    ],
)
def test_who_hangs_is_said_as_far_as_it_can_be_told(ranks: list[Whereabouts | None], said: str) -> None:
    assert explain(gang(*ranks), len(ranks)) == said


def test_ranks_that_had_succeeded_are_not_blamed_for_giving_no_stack() -> None:
    exits = [RankExit(rank=0, exit_code=0, at=1.0), RankExit(rank=1, signal=9, at=1.0, hang=at("sleep at x.py:3"))]
    assert explain(exits, 2) == "rank 1 is in sleep at x.py:3; rank 0 had succeeded"
    assert explain(exits, 4) == "rank 1 is in sleep at x.py:3; rank 0 had succeeded; 2 ranks gave no stack"


WAITS = at(STEP, "all_reduce", 8)


def entered(*groups: GroupProgress) -> Whereabouts:
    return replace(WAITS, collectives=groups)


def group(name: str, number: int, operation: str | None = None) -> GroupProgress:
    return GroupProgress(group=name, entered=number, pending=None if operation is None else number, operation=operation)


REDUCES = group("default_pg", 118, "all_reduce of [4] Float")
NUMBER_118 = "collective 118 of default_pg"


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (
            [entered(REDUCES), entered(REDUCES), entered(group("default_pg", 117), group("tp", 3, "barrier"))],
            f"rank 2 has not entered {NUMBER_118}, all_reduce of [4] Float, in which ranks 0 and 1 wait: "
            f"rank 2 waits in all_reduce, called in {STEP}",
        ),
        (
            [entered(REDUCES), entered(group("default_pg", 118, "broadcast of [4] Float")), entered(REDUCES)],
            f"the ranks differ in {NUMBER_118}: ranks 0 and 2 call all_reduce of [4] Float, "
            "rank 1 calls broadcast of [4] Float",
        ),
        (
            [entered(REDUCES), entered(REDUCES)],
            f"all 2 ranks entered {NUMBER_118}, all_reduce of [4] Float, and it does not end: "
            "the network or a device is the likely cause",
        ),
        (
            [
                entered(group("even", 5, "all_reduce"), group("odd", 4)),
                entered(group("even", 4), group("odd", 5, "all_reduce")),
            ],
            "rank 1 has not entered collective 5 of even, all_reduce, in which rank 0 waits: "
            f"rank 1 waits in all_reduce, called in {STEP}; the ranks enter their groups in different orders",
        ),
        (
            [
                entered(group("a", 5, "all_reduce")),
                entered(group("a", 4), group("b", 2, "barrier")),
                entered(group("b", 1)),
            ],
            "rank 2 has not entered collective 2 of b, barrier, in which rank 1 waits: "
            f"rank 2 waits in all_reduce, called in {STEP}",
        ),
        (
            [entered(REDUCES), WAITS],
            f"ranks 0 and 1 wait in all_reduce, called in {STEP}, and which of them is the cause is not known",
        ),
        (
            [entered(REDUCES), replace(at(LOAD), collectives=(group("default_pg", 117),))],
            f"rank 1 hangs in {LOAD}; rank 0 waits in all_reduce",
        ),
    ],
)
def test_ranks_that_all_wait_are_told_apart_by_the_collectives_they_entered(
    ranks: list[Whereabouts], said: str
) -> None:
    assert explain(gang(*ranks), len(ranks)) == said


def test_nothing_is_said_where_nobody_looked() -> None:
    assert explain(gang(None, None), 2) is None
    assert explain([], 2) is None


def test_a_large_gang_names_a_few() -> None:
    ranks = [at(STEP, "all_reduce") if rank % 2 else at(f"work (train.py:{rank})") for rank in range(64)]
    said = explain(gang(*ranks), 64)
    assert said is not None
    assert said.startswith("rank 0 hangs in work (train.py:0), rank 2 hangs in")
    assert len(said) < 300


NOW = 2_000_000_000.0
STALLED = Reason(code=Code.STALLED, message="no progress for 1m")
SAID = f"rank 1 hangs in {LOAD}; rank 0 waits in all_reduce"


def torn_down(phase: Phase, *, attempt: int, **changes: Any) -> tuple[Workload, Pod]:
    """A run whose gang hung, and its one pod, which has ended."""
    spec = training("train", ranks_per_node=2, stall_timeout_s=60.0)
    state = changed(status(phase), attempt=attempt, reason=STALLED, last_failure=STALLED, **changes)
    run = Workload(uid="a", spec=spec, intent=Intent.RUN, version=3, status=state, created_at=NOW)
    pod = Pod(
        uid="a-0-0", workload_uid="a", attempt=0, index=0, node="node-0", grant=Grant(), phase=PodPhase.FAILED,
        created_at=NOW, started_at=NOW, terminating_since=NOW, exits=tuple(gang(at(STEP, "all_reduce"), at(LOAD))),
    )  # fmt: skip
    return run, pod


def test_a_run_that_starts_again_first_says_once_who_hung_and_where() -> None:
    run, pod = torn_down(Phase.RESTARTING, attempt=1)
    (change,) = decide(Snapshot(nodes=(node(),), workloads=(run,), pods=(pod,)), NOW).changes
    assert change.status is not None
    assert change.event is not None
    assert (change.event.type, change.event.reason.message) == ("Stalled", SAID)
    assert change.status.reason.message == f"{SAID}; no progress for 1m"
    assert change.status.failures.last == change.status.reason
    told = replace(run, status=change.status)
    (started,) = decide(Snapshot(nodes=(node(),), workloads=(told,), pods=(pod,)), NOW).changes
    assert started.create


def test_a_run_that_is_given_up_says_who_hung_and_where() -> None:
    run, pod = torn_down(Phase.STOPPING, attempt=0, next_phase=Phase.FAILED, next_reason=STALLED)
    (change,) = decide(Snapshot(nodes=(node(),), workloads=(run,), pods=(pod,)), NOW).changes
    assert change.status is not None
    assert (change.status.phase, change.status.reason.message) == (Phase.FAILED, f"{SAID}; no progress for 1m")


def test_a_gang_that_hangs_gets_the_time_that_its_stacks_take_whatever_its_own_grace() -> None:
    run, pod = torn_down(Phase.RUNNING, attempt=0)
    run = replace(run, spec=replace(run.spec, grace_s=0.5))
    pod = replace(
        pod, phase=PodPhase.RUNNING, exits=(), terminating_since=None, active_at=NOW - 100, started_at=NOW - 100
    )
    (change,) = decide(Snapshot(nodes=(node(),), workloads=(run,), pods=(pod,)), NOW).changes
    assert [notice.grace_s for notice in change.terminate] == [STACKS_GRACE_S]
    assert change.status is not None
    after = replace(run, status=change.status)
    assert hung(after, pod)
    assert not hung(run, pod)
    assert not hung(after, replace(pod, attempt=1))
