"""Workspaces that nobody uses: when that is so, what is said of it before, and what follows."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policy.decide import decide
from fairlead.policy.kinds.workspace_idle import (
    NOTICE_S,
    Activity,
    act,
    activity_of,
    is_over,
    is_warned,
    look_s,
    look_times,
    notice_s,
    reason,
    suspends_at,
)
from fairlead.policy.next_decision import depends_on_time, next_decision_at
from fairlead.specs.workspace import Ide, SuspendTimes, Workspace, WorkspaceIdle
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, RankExit, Snapshot, Workload
from tests.builders import node, status

NOW = 1_700_000_000.0  # 22:13:20 UTC
HOUR_S = 3_600.0
WARNING = Reason(code=Code.IDLE, message="nothing ran in it")
AFTER = st.floats(min_value=10.0, max_value=30 * 86_400.0)


def workspace(*, after_s: float = HOUR_S, suspend_at: SuspendTimes | None = None) -> Workspace:
    return Workspace(name="dev", idle=WorkspaceIdle(after_s=after_s), suspend_at=suspend_at)


def running(
    spec: Workspace | None = None, *, since: float = NOW - 10 * HOUR_S, warned_at: float | None = None
) -> Workload[Workspace]:
    return Workload(
        uid="dev", spec=spec or workspace(), intent=Intent.RUN, version=1, created_at=since,
        status=status(
            Phase.RUNNING, since=since, started_at=since, warning=None if warned_at is None else WARNING,
            warned_at=warned_at,
        ),
    )  # fmt: skip


def pod(active_at: float | None, **changes: object) -> Pod:
    made = Pod(
        uid="dev-0-0", workload_uid="dev", attempt=0, index=0, node="node-0", grant=Grant(cpu_milli=1000),
        phase=PodPhase.RUNNING, created_at=NOW - 10 * HOUR_S, started_at=NOW - 10 * HOUR_S, active_at=active_at,
        ready=True,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def decided(run: Workload[Workspace], *pods: Pod, now: float = NOW) -> Workload[Workspace]:
    """The workload after a pass."""
    plan = decide(Snapshot(nodes=(node(),), workloads=(run,), pods=pods), now)
    for change in plan.changes:
        intent = run.intent if change.intent is None else change.intent
        run = replace(run, status=change.status or run.status, intent=intent)
    return run


def test_time_in_which_a_pod_gave_no_answer_is_no_lack_of_activity() -> None:
    quiet = pod(NOW - 2 * HOUR_S, heard_at=NOW - HOUR_S - notice_s(HOUR_S) - 1)
    assert decided(running(warned_at=NOW - HOUR_S), quiet).status.warning.reason is None
    assert decided(running(warned_at=NOW - HOUR_S), replace(quiet, heard_at=NOW)).intent is Intent.SUSPEND


def test_a_workspace_whose_server_is_not_installed_has_failed_and_another_end_restarts_it() -> None:
    def after(code: int) -> Phase:
        end = RankExit(rank=0, exit_code=code, signal=None, at=NOW, tail=("error: there is no jupyter_server.",))
        return decided(running(), pod(None, phase=PodPhase.FAILED, exits=(end,))).status.phase

    assert after(127) is Phase.FAILED
    assert after(1) is Phase.RESTARTING


def test_a_workspace_without_activity_is_announced_and_then_suspended() -> None:
    quiet = pod(NOW - HOUR_S + notice_s(HOUR_S))
    warned = decided(running(), quiet)
    assert warned.status.phase is Phase.RUNNING
    assert warned.status.warning.reason is not None
    assert warned.status.warning.reason.message == "nothing ran and nobody typed in it for 55m; it is suspended in 5m"
    later = decided(warned, quiet, now=NOW + notice_s(HOUR_S))
    assert (later.status.phase, later.intent) == (Phase.STOPPING, Intent.SUSPEND)
    assert later.status.after_stop.phase is Phase.SUSPENDED
    assert later.status.after_stop.reason is not None
    assert later.status.after_stop.reason.message == "suspended by `idle`: nothing ran and nobody typed in it for 1h"


def test_activity_after_the_announcement_withdraws_it() -> None:
    after = decided(running(warned_at=NOW - 200.0), pod(NOW - 1.0))
    assert (after.status.phase, after.status.warning.reason) == (Phase.RUNNING, None)


def test_use_of_a_gpu_keeps_a_workspace_without_kernels_that_tell() -> None:
    run = replace(running(warned_at=NOW - HOUR_S), gpu_active_at=NOW - 20.0)
    assert activity_of(run, (pod(None),)).active_at == NOW - 20.0
    assert act(run, (pod(None),), NOW) is None


def test_a_machine_that_slept_is_announced_its_suspension_before() -> None:
    slept = decided(running(), pod(NOW - 9 * HOUR_S))
    assert slept.status.phase is Phase.RUNNING
    assert slept.status.warning.at == NOW


def test_a_workspace_is_suspended_at_its_time_whatever_goes_on() -> None:
    spec = workspace(suspend_at=SuspendTimes(at="0 20 * * *", timezone="Europe/Berlin"))
    times = spec.suspend_at
    assert times is not None
    begun = NOW - 10 * HOUR_S
    at = suspends_at(times, begun)
    assert (at - begun) % HOUR_S == 2_800.0  # 19:00 UTC in winter
    before, soon = decided(running(spec), pod(at - 301.0), now=at - 301.0), at - NOTICE_S
    assert before.status.warning.reason is None
    warned = decided(running(spec), pod(soon), now=soon)
    assert warned.status.warning.reason is not None
    assert warned.status.warning.reason.message == "it is suspended by `suspend_at: 0 20 * * *` in 5m or less"
    assert decided(warned, pod(at), now=at).intent is Intent.SUSPEND
    assert act(running(spec, since=at + 1.0), (pod(at + 2.0),), at + HOUR_S) is None  # it was resumed since


def test_a_running_workspace_is_judged_again_by_time_alone() -> None:
    run = running(workspace(after_s=600.0))
    assert depends_on_time(run)
    snapshot = Snapshot(nodes=(node(),), workloads=(run,), pods=(pod(NOW),))
    assert next_decision_at(snapshot, NOW) == NOW + look_s(600.0) == NOW + 12.0
    assert list(look_times(replace(run, status=status(Phase.PENDING)), NOW)) == []


def test_a_server_that_ends_by_itself_suspends_its_workspace() -> None:
    ended = decided(running(), pod(NOW, phase=PodPhase.SUCCEEDED, exits=(RankExit(rank=0, exit_code=0, at=NOW),)))
    assert ended.intent is Intent.SUSPEND
    assert ended.status.after_stop.reason is not None
    assert ended.status.after_stop.reason.message == "suspended, as its server was shut down from within"


def test_a_server_that_was_killed_starts_again() -> None:
    killed = decided(running(), pod(NOW, phase=PodPhase.FAILED, exits=(RankExit(rank=0, signal=9, at=NOW),)))
    assert killed.status.phase is Phase.STARTING or killed.status.phase is Phase.RESTARTING
    assert killed.status.attempt == 1


def test_a_workspace_runs_once_its_server_answers() -> None:
    starting = replace(running(), status=status(Phase.STARTING, since=NOW - 5.0))
    assert decided(starting, pod(NOW, ready=False)).status.phase is Phase.STARTING
    assert decided(starting, pod(NOW)).status.phase is Phase.RUNNING


def test_a_server_without_a_probe_runs_once_it_has_started_and_claims_no_answer() -> None:
    run = running(replace(workspace(), ide=Ide.SSH))
    starting = replace(run, status=replace(run.status, phase=Phase.STARTING))
    change = decided(starting, pod(None, ready=False))
    assert (change.status.phase, change.status.reason.message) == (
        Phase.RUNNING,
        "its server has started, and has no probe",
    )


@given(after_s=AFTER, data=st.data())
@settings(max_examples=200)
def test_nothing_is_suspended_within_its_time_or_without_announcement(after_s: float, data: st.DataObject) -> None:
    since = data.draw(st.floats(0.0, 1e6))
    active_at = data.draw(st.none() | st.floats(0.0, 2e6))
    warned_at = data.draw(st.none() | st.floats(0.0, 2e6))
    now = data.draw(st.floats(0.0, 4e6))
    activity = Activity(since=since, active_at=active_at, warned_at=warned_at)
    if is_over(activity, after_s, now):
        assert now - since >= after_s
        assert active_at is None or now - active_at >= after_s
        assert warned_at is not None
        assert now - warned_at >= notice_s(after_s)
        assert is_warned(activity, after_s, now)


@given(after_s=AFTER, since=st.floats(0.0, 1e6))
def test_a_workspace_without_activity_ends_soon_after_its_time(after_s: float, since: float) -> None:
    now, warned_at = since, None
    while not is_over(Activity(since=since, warned_at=warned_at), after_s, now):
        if warned_at is None and is_warned(Activity(since=since), after_s, now):
            warned_at = now
        now += look_s(after_s)
    assert now - since <= after_s + 2 * look_s(after_s) + 1e-3


@given(after_s=AFTER, now=st.floats(1e6, 2e6))
def test_a_busy_kernel_is_never_suspended(after_s: float, now: float) -> None:
    run = running(workspace(after_s=after_s), since=0.0, warned_at=1.0)
    assert act(run, (pod(now),), now) is None
    assert reason(run, (pod(now),), now) is None


@pytest.mark.parametrize("after_s", [10.0, 600.0, HOUR_S, 86_400.0])
def test_the_announcement_comes_minutes_before_or_a_quarter_of_the_time(after_s: float) -> None:
    assert notice_s(after_s) == min(300.0, after_s / 4)
