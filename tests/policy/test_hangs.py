"""Who of a gang that hung keeps the others waiting, in words; and that nobody is blamed where it cannot be told."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.kinds.failures import hung
from fairlead.policy.kinds.hangs import REMEDY, HangVerdict, judge_hang
from fairlead.policy.kinds.training import STACKS_GRACE_S
from fairlead.specs.training import Retry
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


def explain(exits: list[RankExit], world_size: int) -> str | None:
    verdict = judge_hang(exits, world_size)
    return None if verdict is None else verdict.says


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
            f"the program is at fault: the ranks differ in {NUMBER_118}: ranks 0 and 2 call all_reduce of [4] Float, "
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
            "the program is at fault: rank 1 has not entered collective 5 of even, all_reduce, in which rank 0 waits: "
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


def worker(rank: int, number: int, operation: str | None = None, place: str = STEP) -> GroupProgress:
    return replace(group("default_pg", number, operation), rank=rank, place=place)


def launcher(*workers: GroupProgress) -> Whereabouts:
    """A rank that started several processes, as torchrun does."""
    return Whereabouts(place=None, waits_in="launch_agent", collectives=workers)


def test_the_worker_behind_a_launcher_that_is_missing_is_named_by_its_own_rank() -> None:
    pods = gang(
        launcher(worker(0, 118, "all_reduce"), worker(1, 118, "all_reduce")),
        launcher(worker(2, 118, "all_reduce"), worker(3, 117, place=LOAD)),
    )
    assert judge_hang(pods, 2) == HangVerdict(
        f"rank 3 has not entered {NUMBER_118}, all_reduce, in which ranks 0, 1 and 2 wait: rank 3 hangs in {LOAD}"
    )


def test_workers_of_one_pod_that_differ_are_the_fault_of_the_program() -> None:
    verdict = judge_hang(gang(launcher(worker(0, 118, "all_reduce"), worker(1, 118, "broadcast"))), 1)
    said = f"the program is at fault: the ranks differ in {NUMBER_118}: rank 0 calls all_reduce, rank 1 calls broadcast"
    assert verdict == HangVerdict(said, is_program=True)


def test_workers_of_pods_that_do_not_know_each_other_are_not_mixed_up() -> None:
    pods = gang(launcher(worker(0, 118, "all_reduce")), launcher(worker(0, 118, "broadcast")))
    assert "is not known" in str(explain(pods, 2))


@pytest.mark.parametrize(("name", "is_program"), [("all_reduce", True), ("scatter", False), ("all_to_all", False)])
def test_sizes_that_may_differ_are_no_fault(name: str, is_program: bool) -> None:
    sizes = [entered(group("default_pg", 118, f"{name} of [{size}] Float")) for size in (4, 8)]
    verdict = judge_hang(gang(*sizes), 2)
    assert verdict is not None
    assert verdict.is_program is is_program


def test_a_collective_that_all_have_entered_explains_others_that_are_not_complete() -> None:
    done = group("c", 7, "all_reduce")
    verdict = judge_hang(
        gang(
            entered(group("a", 5, "all_reduce"), done),
            entered(group("a", 4), group("b", 5, "barrier"), done),
            entered(group("b", 4), done),
        ),
        3,
    )
    assert verdict is not None
    assert not verdict.is_program


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


UNEQUAL = (group("default_pg", 118, "all_reduce"), group("default_pg", 118, "broadcast"))


def differing(**changes: Any) -> tuple[Workload, Pod]:
    """A run that restarts after a hang in which its ranks call different collectives."""
    run, pod = torn_down(Phase.RESTARTING, attempt=1, disruptions=1, **changes)
    return run, replace(pod, exits=tuple(gang(*map(entered, UNEQUAL))))


def test_a_hang_that_the_program_caused_counts_as_its_failure_and_ends_a_run_without_such_retries() -> None:
    run, pod = differing()
    (change,) = decide(Snapshot(nodes=(node(),), workloads=(run,), pods=(pod,)), NOW).changes
    assert change.status is not None
    assert not change.create
    assert (change.status.phase, change.status.failures.program, change.status.failures.disruptions) == (
        Phase.FAILED, 1, 0,
    )  # fmt: skip
    assert "the program is at fault: the ranks differ in" in change.status.reason.message
    assert change.status.reason.message.endswith("no progress for 1m; `retry` allows no restart")
    assert change.status.reason.remedy == REMEDY


def test_a_hang_that_the_program_caused_restarts_once_for_each_retry_of_the_program() -> None:
    run, pod = differing()
    run = replace(run, spec=replace(run.spec, retry=Retry(program=1, backoff_s=7.0)))
    (change,) = decide(Snapshot(nodes=(node(),), workloads=(run,), pods=(pod,)), NOW).changes
    assert change.status is not None
    assert (change.status.phase, change.status.failures.program, change.status.failures.disruptions) == (
        Phase.RESTARTING, 1, 0,
    )  # fmt: skip
    assert change.status.failures.retry_at == NOW + 7.0
    assert change.status.reason.message.endswith("; it restarts in 7s")
    again = replace(run, status=change.status)
    assert not decide(Snapshot(nodes=(node(),), workloads=(again,), pods=(pod,)), NOW).changes


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
