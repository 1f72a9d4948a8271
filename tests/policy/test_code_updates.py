"""Runs whose code is edited while they go on: each edit is an attempt, with the version of its code in the event."""

from dataclasses import replace

from fairlead.policy.kinds.code_updates import restart
from fairlead.state.plan import TerminatePod
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Progress, Workload
from tests.builders import status, training

NOW = 1_000_000_000.0


def running(phase: Phase = Phase.RUNNING, *, step: int | None = None) -> Workload:
    return Workload(
        uid="net", spec=training("net"), intent=Intent.RUN, version=7, created_at=NOW,
        progress=None if step is None else Progress(step=step + 5, checkpoint_step=step, updated_at=NOW),
        status=status(phase, since=NOW - 60.0, started_at=NOW - 60.0, attempt=2, program_failures=1),
    )  # fmt: skip


POD = Pod(
    uid="net-2-0", workload_uid="net", attempt=2, index=0, node="here", grant=Grant(cpu_milli=1000),
    phase=PodPhase.RUNNING, created_at=NOW - 60.0,
)  # fmt: skip


def test_an_edit_restarts_a_run_from_its_checkpoint_as_its_next_attempt() -> None:
    change = restart(running(step=40), (POD,), ("train.py",), "3f2a", NOW)
    assert change is not None
    assert change.version == 7
    assert change.terminate == (TerminatePod(pod_uid="net-2-0", grace_s=1.0),)
    after = change.status
    assert after is not None
    assert (after.phase, after.attempt, after.failures.retry_at, after.failures.program) == (
        Phase.RESTARTING,
        3,
        NOW,
        1,
    )
    assert after.reason.code is Code.CODE_EDITED
    assert after.reason.message == (
        "train.py was edited; attempt 3 runs the code as of now (3f2a) from its checkpoint of step 40"
    )


def test_many_edited_files_are_named_in_part() -> None:
    change = restart(running(), (POD,), ("a.py", "b.py", "c.py", "d.py", "e.py"), "3f2a", NOW)
    assert change is not None
    assert change.event is not None
    assert change.event.reason.message == (
        "a.py, b.py, c.py and 2 more were edited; attempt 3 runs the code as of now (3f2a)"
    )


def test_a_run_that_waits_to_restart_does_so_at_once_as_the_same_attempt() -> None:
    change = restart(running(Phase.RESTARTING), (), ("train.py",), "3f2a", NOW)
    assert change is not None
    assert change.status is not None
    assert (change.status.attempt, change.status.failures.retry_at) == (2, NOW)


def test_a_run_without_pods_or_on_its_way_out_is_left_alone() -> None:
    for phase in (Phase.PENDING, Phase.STOPPING, Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED):
        assert restart(running(phase), (), ("train.py",), "3f2a", NOW) is None
    assert restart(replace(running(), intent=Intent.STOP), (POD,), ("train.py",), "3f2a", NOW) is None
