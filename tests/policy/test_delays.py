"""A gang that is placed and does not start: what is in its way is told while it is still tried."""

from dataclasses import replace

from fairlead.policy.decide import decide
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Snapshot, Status, Workload
from tests.builders import node, status, training

NOW = 2_000_000_000.0
PULL = "the image none:7 cannot be pulled"
STARTING = status(Phase.STARTING, reason=Reason(code=Code.PLACED, message="2 pods placed"), started_at=NOW - 5)


def look(is_now: Status, *messages: str | None) -> tuple[Change, ...]:
    spec = training("train", nodes=len(messages))
    run = Workload(uid="u", spec=spec, intent=Intent.RUN, status=is_now, version=7, created_at=NOW - 9)
    pods = tuple(
        Pod(
            uid=f"u-0-{index}", workload_uid="u", attempt=0, index=index, node="node-0", grant=Grant(cpu_milli=1),
            phase=PodPhase.STARTING, created_at=NOW - 4, message=message,
        )
        for index, message in enumerate(messages)
    )  # fmt: skip
    return decide(Snapshot(nodes=(node(),), workloads=(run,), pods=pods), NOW).changes


def told(*changes: Change) -> Status:
    (change,) = changes
    assert change.status is not None
    assert change.event is not None
    assert change.event.reason == change.status.reason
    assert not change.terminate
    return change.status


def test_what_keeps_a_pod_from_starting_is_told_while_it_is_tried() -> None:
    after = told(*look(STARTING, None, PULL))
    reason = Reason(code=Code.START_DELAYED, message=f"pod 1 of 2 has not started: {PULL}")
    assert after == replace(STARTING, reason=reason)


def test_it_is_told_once_however_the_words_change() -> None:
    after = told(*look(STARTING, PULL, None))
    assert look(after, f"{PULL}: Back-off", PULL) == ()


def test_it_is_told_when_nothing_is_in_the_way_any_more() -> None:
    after = told(*look(STARTING, PULL, None))
    mended = told(*look(after, None, None))
    assert (mended.phase, mended.reason.code) == (Phase.STARTING, Code.PLACED)
    assert look(mended, None, None) == ()
