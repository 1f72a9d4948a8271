"""A run that is to go on: one that had finished, one whose nodes have left, and what may stand in their way."""

from dataclasses import replace

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.kinds.lifecycle import upgraded
from fairlead.specs.resources import Resources
from fairlead.specs.training import Training
from fairlead.state.phase_transitions import move
from fairlead.state.reasons import Code, Reason
from fairlead.state.run_times import active_until
from fairlead.state.snapshot import Intent, Phase, Snapshot, Workload
from tests.builders import changed, node, status, training

NOW = 2_000_000_000.0


def workload(uid: str, spec: Training, phase: Phase) -> Workload:
    return Workload(uid=uid, spec=spec, intent=Intent.RUN, version=3, status=status(phase), created_at=NOW)


def test_a_finished_run_that_is_wanted_again_is_pending() -> None:
    failed = workload("a", training("same"), Phase.FAILED)
    (change,) = decide(Snapshot(nodes=(node(),), workloads=(failed,), pods=()), NOW).changes
    assert change.status is not None
    assert (change.status.phase, change.status.reason.code) == (Phase.PENDING, Code.RESUMED)


@pytest.mark.parametrize(
    ("wanted", "phases"),
    [
        (Intent.RUN, [Phase.STOPPED, Phase.PENDING]),
        (Intent.STOP, [Phase.STOPPED]),
        (Intent.SUSPEND, [Phase.STOPPED]),
    ],
)
def test_a_run_that_is_wanted_again_while_it_stops_on_request_goes_on_when_it_has_stopped(
    wanted: Intent, phases: list[Phase]
) -> None:
    final = Reason(code=Code.STOPPED, message="stopped on request")
    stopping = changed(status(Phase.STOPPING), next_phase=Phase.STOPPED, next_reason=final)
    run, found = replace(workload("a", training("same"), Phase.STOPPING), status=stopping, intent=wanted), []
    for second in range(2):
        changes = decide(Snapshot(nodes=(), workloads=(run,), pods=()), NOW + second).changes
        if changes and changes[0].status is not None:
            run = replace(run, status=changes[0].status, intent=changes[0].intent or run.intent)
            found.append(run.status.phase)
    assert found == phases


def test_a_run_whose_name_another_has_by_now_says_so_and_is_wanted_no_more() -> None:
    failed = workload("a", training("same"), Phase.FAILED)
    other = workload("b", training("same"), Phase.RUNNING)
    changes = decide(Snapshot(nodes=(node(),), workloads=(failed, other), pods=()), NOW).changes
    (change,) = (change for change in changes if change.workload_uid == "a")
    assert (change.status, change.intent) == (None, Intent.STOP)
    assert change.event is not None
    assert (change.event.type, change.event.reason.code) == ("NotResumed", Code.NAME_TAKEN)


def test_a_run_of_that_name_in_another_team_is_not_in_the_way() -> None:
    failed = workload("a", training("same"), Phase.FAILED)
    other = workload("b", training("same", team="vision"), Phase.RUNNING)
    changes = decide(Snapshot(nodes=(node(),), workloads=(failed, other), pods=()), NOW).changes
    assert [change.status.phase for change in changes if change.workload_uid == "a" and change.status] == [
        Phase.PENDING
    ]


def test_a_run_that_fitted_once_waits_for_the_nodes_that_have_left() -> None:
    wide = workload("a", training("wide", nodes=3, resources=Resources(cpu_milli=4000)), Phase.PENDING)
    here = (node("one"), node("two"))
    new = status(reason=Reason(code=Code.SUBMITTED, message="submitted"))
    first = replace(wide, spec=replace(wide.spec, resources=Resources(cpu_milli=4001)), status=new)
    (refused,) = decide(Snapshot(nodes=here, workloads=(first,), pods=()), NOW).changes
    assert refused.status is not None
    assert refused.status.phase is Phase.FAILED
    waits = replace(wide, status=status(reason=Reason(code=Code.WAITING_FOR_RESOURCES, message="needs 3 nodes")))
    (told,) = decide(Snapshot(nodes=here, workloads=(waits,), pods=()), NOW).changes
    assert told.status is not None
    assert told.status.phase is Phase.PENDING
    assert told.status.reason.message.startswith("too few nodes are there that could hold it: wide needs 3")
    back = (*here, node("three"))
    again = replace(wide, status=told.status, version=wide.version + 1)
    (started,) = decide(Snapshot(nodes=back, workloads=(again,), pods=()), NOW).changes
    assert len(started.create) == 3


@pytest.mark.parametrize(
    ("wanted", "after"),
    [
        (Intent.RUN, (Phase.PENDING, Code.RESUMED)),
        (Intent.SUSPEND, None),
        (Intent.STOP, (Phase.STOPPED, Code.STOPPED)),
        (Intent.DELETE, (Phase.STOPPED, Code.STOPPED)),
    ],
)
def test_a_suspended_run_waits_for_nothing_but_what_is_wanted_of_it(
    wanted: Intent, after: tuple[Phase, Code] | None
) -> None:
    suspended = replace(workload("a", training("same"), Phase.SUSPENDED), intent=wanted)
    changes = decide(Snapshot(nodes=(node(),), workloads=(suspended,), pods=()), NOW).changes
    assert [(each.status.phase, each.status.reason.code) for each in changes if each.status] == (
        [after] if after else []
    )


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.RESTARTING])
def test_a_run_that_is_suspended_before_it_starts_is_suspended_and_starts_nothing(phase: Phase) -> None:
    run = replace(workload("a", training("same"), phase), intent=Intent.SUSPEND)
    (change,) = decide(Snapshot(nodes=(node(),), workloads=(run,), pods=()), NOW).changes
    assert change.status is not None
    assert (change.status.phase, change.status.reason.code, change.create) == (Phase.SUSPENDED, Code.SUSPENDED, ())


def test_a_run_that_an_older_version_had_suspended_is_read_as_suspended() -> None:
    reason = Reason(code=Code.SUSPENDED, message="suspended on request")
    assert upgraded(status(reason=reason)).phase is Phase.SUSPENDED
    stopping = changed(status(Phase.STOPPING), next_phase=Phase.PENDING, next_reason=reason)
    assert upgraded(stopping).after_stop.phase is Phase.SUSPENDED
    waits = replace(reason, code=Code.WAITING_FOR_TURN)
    for plain in (
        status(reason=waits),
        replace(stopping, after_stop=replace(stopping.after_stop, reason=waits)),
        status(Phase.STOPPING),
    ):
        assert upgraded(plain) == plain


def test_the_time_that_a_run_was_running_has_nothing_of_its_waiting() -> None:
    running = replace(status(Phase.RUNNING), since=NOW)
    stopping = move(running, Phase.STOPPING, running.reason, NOW + 60)
    suspended = move(stopping, Phase.SUSPENDED, running.reason, NOW + 65)
    assert active_until(suspended, NOW + 7200) == 60
    resumed = move(
        move(suspended, Phase.PENDING, running.reason, NOW + 3600), Phase.STARTING, running.reason, NOW + 3700
    )
    again = move(resumed, Phase.RUNNING, running.reason, NOW + 3705)
    assert active_until(again, NOW + 3715) == 70
    over = move(again, Phase.SUCCEEDED, running.reason, NOW + 3725)
    assert active_until(over, NOW + 9000) == 80
