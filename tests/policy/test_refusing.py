"""A gang that a quota refuses: it is withdrawn whole, waits as Pending, and is tried again without end."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.kinds.retries import longest_wait_s, retry_refused
from fairlead.specs.training import Retry
from fairlead.state.phase_transitions import move
from fairlead.state.plan import Change, TerminatePod
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Snapshot, Status, Workload
from tests.builders import changed, node, status, training

NOW = 1_000_000_000.0
WORDS = "the quota small of namespace vision is used up (pods: 1 asked for, 4 of 4 used)"


def run(state: Status, **changes: Any) -> Workload:
    spec = training("train", **{"nodes": 2, **changes})
    return Workload(uid="w", spec=spec, intent=Intent.RUN, status=state, version=7, created_at=NOW - 100)


def pod(index: int, phase: PodPhase, **changes: Any) -> Pod:
    return Pod(
        uid=f"w-3-{index}", workload_uid="w", attempt=3, index=index, node=f"n{index}", grant=Grant(), phase=phase,
        created_at=NOW - 1, **changes,
    )  # fmt: skip


def decided(workload: Workload, *pods: Pod, now: float = NOW) -> tuple[Change, ...]:
    return decide(Snapshot(nodes=(node("n0"), node("n1")), workloads=(workload,), pods=pods), now).changes


STARTING = status(Phase.STARTING, since=NOW - 1, attempt=3, started_at=NOW - 1, disruptions=10, program_failures=1)
REFUSED = pod(1, PodPhase.REFUSED, message=WORDS)


def after(*changes: Change) -> Status:
    (change,) = changes
    assert change.status is not None
    return change.status


def test_a_gang_of_which_a_quota_refuses_a_pod_is_withdrawn_whole_and_nothing_is_counted() -> None:
    (change,) = decided(run(STARTING), pod(0, PodPhase.STARTING), REFUSED)
    assert change.terminate == (TerminatePod(pod_uid="w-3-0", grace_s=1.0),)
    told = Reason(
        code=Code.OVER_QUOTA,
        message=f"pod 1 of 2 was refused: {WORDS}",
        remedy="It starts by itself once there is room, at most 5m later.",
    )
    assert change.status == changed(
        move(STARTING, Phase.STOPPING, told, NOW),
        next_phase=Phase.PENDING,
        next_reason=told,
        refusals=1,
        retry_at=retry_refused(run(STARTING), NOW),
    )


def test_it_then_waits_as_pending_for_the_reason_it_was_given_and_the_clock_of_its_longest_time_stands() -> None:
    stopping = after(*decided(run(STARTING, max_duration_s=5.0), REFUSED))
    pending = after(*decided(run(stopping, max_duration_s=5.0), REFUSED))
    assert (pending.phase, pending.reason, pending.attempt) == (Phase.PENDING, stopping.reason, 4)
    assert (pending.started_at, pending.failures.retry_at, pending.failures.refusals) == (
        None,
        stopping.failures.retry_at,
        1,
    )
    assert (
        decided(
            run(replace(pending, failures=replace(pending.failures, retry_at=NOW + 60.0)), max_duration_s=5.0),
            REFUSED,
            now=NOW + 59.0,
        )
        == ()
    )


def test_it_starts_again_when_its_time_has_come_and_is_forgiven_once_it_runs() -> None:
    pending = status(attempt=4, retry_at=NOW, refusals=3, reason=Reason(code=Code.OVER_QUOTA, message=WORDS))
    assert decided(run(pending), now=NOW - 0.1) == ()
    starting = after(*decided(run(pending)))
    assert (starting.phase, starting.attempt, starting.failures.retry_at, starting.failures.refusals) == (
        Phase.STARTING,
        4,
        None,
        3,
    )
    ranks = tuple(replace(pod(i, PodPhase.RUNNING, started_at=NOW), attempt=4, uid=f"w-4-{i}") for i in (0, 1))
    assert after(*decided(run(starting), *ranks)).failures.refusals == 0


def test_who_is_suspended_and_resumed_is_tried_at_once() -> None:
    pending = status(attempt=4, retry_at=NOW + 300, refusals=9, reason=Reason(code=Code.OVER_QUOTA, message=WORDS))
    suspended = after(*decided(replace(run(pending), intent=Intent.SUSPEND)))
    resumed = after(*decided(run(suspended)))
    assert (resumed.phase, resumed.failures.retry_at, resumed.failures.refusals) == (Phase.PENDING, None, 0)
    assert after(*decided(run(resumed))).phase is Phase.STARTING


def test_what_was_lost_as_well_counts_as_lost() -> None:
    lost = after(
        *decided(
            run(replace(STARTING, failures=replace(STARTING.failures, disruptions=0))),
            pod(0, PodPhase.LOST, message="gone"),
            REFUSED,
        )
    )
    assert (lost.phase, lost.reason.code, lost.failures.disruptions) == (Phase.RESTARTING, Code.POD_LOST, 1)


def test_an_elastic_gang_that_was_refused_starts_with_its_fewest_nodes_and_says_that_it_stays_so() -> None:
    pending = status(attempt=4, retry_at=NOW, reason=Reason(code=Code.OVER_QUOTA, message=WORDS))
    sizes = []
    for refusals in (0, 1):
        (change,) = decided(
            run(replace(pending, failures=replace(pending.failures, refusals=refusals)), nodes=1, most_nodes=2)
        )
        sizes.append(len(change.create))
    assert sizes == [2, 1]
    rank = replace(pod(0, PodPhase.RUNNING, started_at=NOW), attempt=4)
    running = after(*decided(run(after(change), nodes=1, most_nodes=2), rank))
    assert (running.phase, running.failures.refusals) == (Phase.RUNNING, 1)
    assert running.reason.message.endswith("; runs on 1 of 1..2 nodes, and stays so since a quota refused more")


@pytest.mark.parametrize(
    ("retry", "refusals", "wait_s"),
    [
        (Retry(), 0, 1.0),
        (Retry(), 3, 8.0),
        (Retry(), 500, 300.0),
        (Retry(backoff_s=0.0, max_backoff_s=0.0), 500, 60.0),
        (Retry(backoff_s=20.0, max_backoff_s=7200.0), 1, 40.0),
    ],
)
def test_tries_become_rarer_up_to_the_bound_and_are_never_frequent(retry: Retry, refusals: int, wait_s: float) -> None:
    waits = {retry_refused(run(status(refusals=refusals, attempt=n), retry=retry), NOW) - NOW for n in range(50)}
    assert wait_s / 2 <= min(waits) < max(waits) <= wait_s <= longest_wait_s(run(status(), retry=retry).spec)


def test_gangs_that_kept_each_other_out_are_tried_at_different_times() -> None:
    times = sorted(retry_refused(replace(run(STARTING), uid=f"w-{n}"), NOW) - NOW for n in range(100))
    assert all(abs(times[10 * n] - (0.5 + 0.05 * n)) < 0.1 for n in range(10)), times
