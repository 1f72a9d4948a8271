"""Pods whose end nobody confirms: told once, with the node and what mends it, and withdrawn once they have ended."""

from dataclasses import replace

from fairlead.policy.decide import decide
from fairlead.policy.kinds.unconfirmed_ends import TOLD_AFTER_S
from fairlead.policy.next_decision import next_decision_at
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Snapshot, Status, Workload
from tests.builders import node, status, training

NOW = 2_000_000_000.0
SPEC = training("train", nodes=2)
LATE_S = SPEC.grace_s + TOLD_AFTER_S
WHY = Reason(code=Code.START_TIMED_OUT, message="pod 1 of 2 did not start; it restarts at once")


def world(now: Status, *, told_s: float | None) -> Snapshot:
    """A gang of which one pod has ended, and the other was told to end so long ago; None: both have."""
    run = Workload(uid="u", spec=SPEC, intent=Intent.RUN, version=7, created_at=NOW - 900, status=now)
    pods = tuple(
        Pod(
            uid=f"u-0-{index}", workload_uid="u", attempt=0, index=index, node="ab"[index], grant=Grant(cpu_milli=1),
            phase=PodPhase.STARTING if index and told_s is not None else PodPhase.FAILED, created_at=NOW - 900,
            terminating_since=None if told_s is None else NOW - told_s,
        )
        for index in range(2)
    )  # fmt: skip
    return Snapshot(nodes=(node("a"), node("b")), workloads=(run,), pods=pods)


def of(phase: Phase, **changes: object) -> Status:
    return status(phase, since=NOW - LATE_S, attempt=1, retry_at=NOW + 3600, **{"reason": WHY, **changes})


def look(now: Status, *, told_s: float | None) -> tuple[Change, ...]:
    return decide(world(now, told_s=told_s), NOW).changes


def test_an_end_that_nobody_confirms_is_told_once_with_what_mends_it_and_withdrawn_when_it_comes() -> None:
    stopped = Reason(code=Code.STOPPED, message="stopped on request")
    for before in (of(Phase.RESTARTING), of(Phase.STOPPING, next_phase=Phase.STOPPED, next_reason=stopped)):
        assert look(before, told_s=LATE_S - 1) == ()
        (change,) = look(before, told_s=LATE_S)
        assert change.event is not None
        assert change.event.type == "EndUnconfirmed"
        assert change.event.reason.message == (
            "pod 1 of 2 on node b: still terminating 1m after the grace of 30s, and no kubelet confirms the end; "
            "it may still run, so its gang waits"
        )
        assert change.status is not None
        said = change.status
        assert said.phase is before.phase
        assert said.reason.message == f"{change.event.reason.message}; {WHY.message}"
        assert "kubectl delete node b" in (said.reason.remedy or "")
        assert look(said, told_s=LATE_S + 3600) == ()
        told = replace(WHY, message=said.reason.message)
    (after,) = look(of(Phase.RESTARTING, reason=told), told_s=None)
    assert after.status is not None
    assert after.status.reason == WHY


def test_a_decision_is_due_when_the_end_of_a_pod_is_overdue() -> None:
    began = status(Phase.STOPPING, since=NOW, reason=WHY, next_phase=Phase.PENDING, next_reason=WHY)
    assert next_decision_at(world(began, told_s=0), NOW) == NOW + LATE_S
