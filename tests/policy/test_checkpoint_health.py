"""Checkpoints that do not come as the spec promises: what is said of it, when, and what the end is called."""

from dataclasses import replace

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.kinds.checkpoint_health import SILENT_S, unsaved, warned, warning
from fairlead.specs.training import Checkpoint, Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Progress, RankExit, Snapshot, Workload
from tests.builders import node, status, training

NOW = 1_000_000_000.0
EVERY_3M = Checkpoint(every_s=180.0)
EVERY_20 = Checkpoint(every_steps=20)


def running(checkpoint: Checkpoint, progress: Progress | None = None, **changes: object) -> Workload:
    """A run since NOW."""
    spec: Training = training("net", checkpoint=checkpoint)
    return Workload(
        uid="net", spec=spec, intent=Intent.RUN, version=1, created_at=NOW, progress=progress,
        status=status(Phase.RUNNING, since=NOW, **changes),
    )  # fmt: skip


def said(at: float = NOW + 1.0, **facts: object) -> Progress:
    return Progress(updated_at=at, **facts)  # type: ignore[arg-type] # the tests below give what Progress takes


def pod(phase: PodPhase = PodPhase.RUNNING, *codes: int) -> Pod:
    exits = tuple(RankExit(rank=rank, exit_code=code, at=NOW + 5) for rank, code in enumerate(codes))
    return Pod(
        uid="net-0-0", workload_uid="net", attempt=0, index=0, node="node-0", grant=Grant(), phase=phase,
        created_at=NOW, started_at=NOW, exits=exits,
    )  # fmt: skip


def test_nothing_is_late_before_three_intervals() -> None:
    assert warning(running(EVERY_3M), NOW + 539) is None
    assert warning(running(Checkpoint()), NOW + 1e6) is None
    found = warning(running(EVERY_3M), NOW + 541)
    assert found is not None
    assert found.code is Code.CHECKPOINT_LATE


def test_a_short_interval_has_a_minute() -> None:
    assert warning(running(Checkpoint(every_s=1.0)), NOW + 59) is None
    assert warning(running(Checkpoint(every_s=1.0)), NOW + 61) is not None


def test_a_program_that_never_calls_checkpoint_is_told_so() -> None:
    found = warning(running(EVERY_3M, said(step=900)), NOW + 720)
    assert found is not None
    assert found.message == (
        "no checkpoint for 12m, although `checkpoint.every` is 3m: the program has not called `run.checkpoint` yet"
    )
    assert found.remedy is not None
    assert "Call `run.checkpoint(step)` after every step" in found.remedy


def test_steps_are_counted_from_the_newest_checkpoint() -> None:
    assert warning(running(EVERY_20, said(step=100, checkpoint_step=40, saves_failed=0)), NOW + 5) is None
    found = warning(running(EVERY_20, said(step=101, checkpoint_step=40, saves_failed=0)), NOW + 5)
    assert found is not None
    assert found.message == (
        "no checkpoint for 61 steps, although `checkpoint.every` is 20 steps: no save was complete since"
    )
    assert warning(running(EVERY_20), NOW + SILENT_S - 1) is None
    assert warning(running(EVERY_20), NOW + SILENT_S + 1) is not None


def test_saves_that_fail_are_told_with_their_number_and_cause() -> None:
    progress = said(step=1200, checkpoint_step=900, checkpoint_at=NOW + 10, saves_failed=8, save_problem="disk full")
    found = warning(running(EVERY_3M, progress), NOW + 730)
    assert found is not None
    assert (found.code, found.message) == (
        Code.CHECKPOINT_FAILING, "no checkpoint for 12m: 8 saves failed: disk full"
    )  # fmt: skip
    assert found.remedy is not None
    assert "a restart continues from step 900" in found.remedy


def test_what_a_start_before_said_does_not_count() -> None:
    before = said(NOW - 5, saves_failed=8, save_problem="disk full", checkpoint_at=NOW - 900)
    assert warning(running(EVERY_3M, before), NOW + 100) is None


def test_a_late_checkpoint_is_told_once_again_when_twice_as_old_and_taken_back() -> None:
    run = running(EVERY_3M)
    first = warned(run, NOW + 600)
    assert first is not None
    run = replace(run, status=first)
    assert warned(run, NOW + 1199) is None
    second = warned(run, NOW + 1200)
    assert second is not None
    assert second.warning.reason is not None
    assert "for 20m" in second.warning.reason.message
    run = replace(run, status=second, progress=said(NOW + 1300, checkpoint_at=NOW + 1300, saves_failed=0))
    third = warned(run, NOW + 1301)
    assert third is not None
    assert (third.warning.reason, third.warning.at) == (None, None)


def test_the_loop_keeps_the_warning_and_tells_it() -> None:
    run = running(EVERY_3M)
    quiet = Snapshot(nodes=(node("node-0"),), workloads=(run,), pods=(pod(),))
    assert decide(quiet, NOW + 100).changes == ()
    (change,) = decide(quiet, NOW + 600).changes
    assert change.status is not None
    assert change.status.phase is Phase.RUNNING
    assert change.event is not None
    assert (change.event.type, change.event.reason) == ("CheckpointLate", change.status.warning.reason)


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.STARTING])
def test_a_run_that_ends_well_without_its_last_checkpoint_has_failed(phase: Phase) -> None:
    lost = said(step=1200, checkpoint_step=900, saves_failed=3, save_failed_step=1200, save_problem="disk full")
    run = replace(running(EVERY_3M, lost), status=status(phase, since=NOW, started_at=NOW))
    ended = Snapshot(nodes=(node("node-0"),), workloads=(run,), pods=(pod(PodPhase.SUCCEEDED, 0),))
    (change,) = decide(ended, NOW + 60).changes
    assert change.status is not None
    assert (change.status.phase, change.status.reason.code) == (Phase.FAILED, Code.LAST_CHECKPOINT_FAILED)
    assert change.status.reason.message == (
        "all ranks succeeded after 1200 steps in 1m; its last checkpoint (step 1200) could "
        "not be saved: disk full; the newest complete one is of step 900"
    )
    assert change.status.reason.remedy == "Fix that; then `fairlead resume net` trains from there and saves."


def test_a_save_that_failed_before_one_went_well_costs_nothing() -> None:
    run = running(EVERY_3M, said(step=1200, checkpoint_step=1200, saves_failed=0))
    ended = Snapshot(nodes=(node("node-0"),), workloads=(run,), pods=(pod(PodPhase.SUCCEEDED, 0),))
    (change,) = decide(ended, NOW + 60).changes
    assert change.status is not None
    assert change.status.phase is Phase.SUCCEEDED


def test_a_run_that_stopped_without_its_checkpoint_says_so() -> None:
    lost = said(step=45, saves_failed=1, save_failed_step=45, save_problem="disk full")
    assert unsaved(lost) == "its last checkpoint (step 45) could not be saved: disk full; there is no complete one"
    run = replace(
        running(EVERY_3M, lost),
        intent=Intent.STOP,
        status=status(Phase.STOPPING, since=NOW, next_phase=Phase.STOPPED),
    )
    ended = Snapshot(nodes=(node("node-0"),), workloads=(run,), pods=(pod(PodPhase.FAILED, 143),))
    (change,) = decide(ended, NOW + 60).changes
    assert change.status is not None
    assert change.status.reason.message.endswith(str(unsaved(lost)))


def test_an_interval_that_the_run_chose_is_what_it_is_late_by() -> None:
    wish = Checkpoint(every_auto=True)
    assert warning(running(wish, said(step=9, saves_failed=0)), NOW + SILENT_S - 1) is None
    assert warning(running(wish, said(step=9)), NOW + SILENT_S + 1) is not None
    chose = said(checkpoint_at=NOW, saves_failed=0, checkpoint_interval_s=600.0, checkpoint_interval_why="a reason")
    assert warning(running(wish, chose), NOW + 1799) is None
    found = warning(running(wish, chose), NOW + 1801)
    assert found is not None
    assert found.message == (
        "no checkpoint for 30m 1s, although `checkpoint.every` is auto, now 10m: no save was complete since"
    )
    assert found.remedy is not None
    assert "`checkpoint.to` names another" in found.remedy
