"""Parents of any kind: what their children are told, and when a parent is over, stands still or is forgotten."""

from dataclasses import replace

from fairlead.policy.decide import decide
from fairlead.policy.kinds.parents import child_name
from fairlead.state.plan import Change, ChildIntent, child_uid
from fairlead.state.reasons import Code
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Snapshot, Workload
from tests.builders import node, status, training
from tests.relay import Ran, Relay
from tests.relays import relays

NOW = 1_000_000_100.0
RUN, SUSPEND, STOP, DELETE = Intent.RUN, Intent.SUSPEND, Intent.STOP, Intent.DELETE


__all__ = ["relays"]


def relay(phase: Phase = Phase.RUNNING, intent: Intent = RUN, **changes: object) -> Workload[Relay]:
    return Workload(
        uid="parent",
        spec=Relay(name="relay", leg=training("leg")),
        intent=intent,
        status=status(phase, **changes),
        version=7,
        created_at=1_000_000_000.0,
    )


def leg(name: str, phase: Phase, intent: Intent = RUN) -> Workload:
    return Workload(
        uid=child_uid("parent", name),
        spec=training(f"relay-{name}"),
        intent=intent,
        status=status(phase),
        version=1,
        created_at=1_000_000_001.0,
        parent="parent",
    )


def judged(parent: AnyWorkload, *children: Workload, others: tuple[Workload, ...] = ()) -> Change | None:
    going = tuple(child for child in children if not child.status.phase.is_final)
    ended = tuple(child for child in children if child.status.phase.is_final)
    # Without a node no leaf is placed, so that what comes out is the parent's.
    snapshot = Snapshot(nodes=(), workloads=(*going, *others), pods=(), parents=(parent,), ended=ended)
    found = [change for change in decide(snapshot, NOW).changes if change.workload_uid == parent.uid]
    return found[0] if found else None


def change_of(parent: AnyWorkload, *children: Workload, others: tuple[Workload, ...] = ()) -> Change:
    change = judged(parent, *children, others=others)
    assert change is not None
    assert (change.workload_uid, change.version) == (parent.uid, parent.version)
    return change


def phase_of(change: Change) -> Phase:
    assert change.status is not None
    return change.status.phase


def told(*children: Workload, intent: Intent) -> tuple[ChildIntent, ...]:
    return tuple(ChildIntent(uid=child.uid, intent=intent) for child in children)


def test_the_first_judgement_submits_the_first_child_with_its_parents_name_and_team() -> None:
    parent = relay(Phase.PENDING)
    change = change_of(replace(parent, spec=replace(parent.spec, team="research")))
    assert phase_of(change) is Phase.RUNNING
    assert [(order.name, order.spec.name, order.spec.team) for order in change.submit] == [
        ("first", "relay-first", "research")
    ]


def test_a_parent_whose_child_runs_needs_nothing_more_once_it_has_said_so() -> None:
    first = leg("first", Phase.RUNNING)
    change = change_of(relay(), first)
    assert change.status is not None
    parent = relay()
    assert judged(replace(parent, status=change.status), first) is None


def test_a_parent_goes_on_when_a_child_has_succeeded_and_ends_with_the_last() -> None:
    first, second = leg("first", Phase.SUCCEEDED, STOP), leg("second", Phase.SUCCEEDED, STOP)
    assert [order.name for order in change_of(relay(), first).submit] == ["second"]
    over = change_of(relay(), first, second, leg("third", Phase.SUCCEEDED, STOP))
    assert phase_of(over) is Phase.SUCCEEDED
    assert over.intent is STOP
    assert over.status is not None
    assert over.status.detail == Ran(legs=("first", "second", "third"))


def test_a_parent_that_is_stopped_stops_its_children_and_ends_after_them() -> None:
    first = leg("first", Phase.RUNNING)
    change = change_of(relay(intent=STOP), first)
    assert (phase_of(change), change.children) == (Phase.STOPPING, told(first, intent=STOP))
    assert change.status is not None
    stopping = replace(relay(intent=STOP), status=change.status)
    assert judged(stopping, replace(first, intent=STOP)) is None
    assert phase_of(change_of(stopping, leg("first", Phase.STOPPED, STOP))) is Phase.STOPPED


def test_a_parent_that_is_suspended_suspends_its_children_and_resumes_them() -> None:
    first = leg("first", Phase.RUNNING)
    change = change_of(relay(intent=SUSPEND), first)
    assert (phase_of(change), change.children) == (Phase.STOPPING, told(first, intent=SUSPEND))
    assert change.status is not None
    stopping = replace(relay(intent=SUSPEND), status=change.status)
    first = leg("first", Phase.SUSPENDED, SUSPEND)
    assert phase_of(change_of(stopping, first)) is Phase.SUSPENDED
    resumed = change_of(relay(Phase.SUSPENDED), first)
    assert (phase_of(resumed), resumed.children) == (Phase.PENDING, told(first, intent=RUN))


def test_a_child_that_is_resumed_under_a_suspended_parent_is_suspended_again() -> None:
    first = leg("first", Phase.RUNNING)
    change = change_of(relay(Phase.SUSPENDED, SUSPEND), first)
    assert (change.status, change.children) == (None, told(first, intent=SUSPEND))


def test_a_stop_reaches_a_parent_that_is_about_to_be_suspended() -> None:
    first = leg("first", Phase.SUSPENDED, SUSPEND)
    stopping = relay(Phase.STOPPING, STOP, next_phase=Phase.SUSPENDED)
    assert change_of(stopping, first).children == told(first, intent=STOP)
    assert phase_of(change_of(stopping, leg("first", Phase.STOPPED, STOP))) is Phase.STOPPED


def test_a_parent_that_is_deleted_is_forgotten_only_after_its_children() -> None:
    first, second = leg("first", Phase.SUCCEEDED, STOP), leg("second", Phase.RUNNING)
    change = change_of(relay(intent=DELETE), first, second)
    assert (phase_of(change), change.children) == (Phase.STOPPING, told(second, intent=DELETE))
    stopped = relay(Phase.STOPPED, DELETE)
    change = change_of(stopped, first)
    assert (change.forget, change.children) == (False, told(first, intent=DELETE))
    assert judged(stopped, replace(first, intent=DELETE)) is None
    assert change_of(stopped).forget


def test_a_failed_child_fails_its_parent_and_both_go_on_when_it_is_resumed() -> None:
    first = leg("first", Phase.FAILED, STOP)
    change = change_of(relay(), first)
    assert change.status is not None
    assert (phase_of(change), change.status.reason.code) == (Phase.FAILED, Code.CHILD_FAILED)
    resumed = change_of(relay(Phase.FAILED), first)
    assert (phase_of(resumed), resumed.children) == (Phase.PENDING, told(first, intent=RUN))
    # The child is still Failed when the parent is judged next, and wanted to run.
    assert phase_of(change_of(relay(Phase.PENDING), leg("first", Phase.FAILED, RUN))) is Phase.RUNNING


def test_what_was_stopped_with_its_parent_resumes_with_it_and_nothing_else_does() -> None:
    first, second = leg("first", Phase.STOPPED, STOP), leg("second", Phase.STOPPED, STOP)
    resumed = change_of(relay(Phase.STOPPED, halted=(second.uid,)), first, second)
    assert resumed.children == told(second, intent=RUN)
    assert resumed.status is not None
    assert resumed.status.halted == ()


def test_a_parent_waits_while_another_run_has_the_name_of_its_child() -> None:
    other = replace(leg("first", Phase.RUNNING), uid="other", parent=None)
    change = change_of(relay(), others=(other,))
    assert change.submit == ()
    assert change.status is not None
    assert change.status.reason.code is Code.NAME_TAKEN


def test_what_a_parent_asks_of_a_child_comes_before_its_start() -> None:
    first = leg("first", Phase.PENDING)
    snapshot = Snapshot(nodes=(node(),), workloads=(first,), pods=(), parents=(relay(intent=STOP),))
    assert [change.workload_uid for change in decide(snapshot, NOW).changes] == ["parent"]


def test_a_child_is_named_after_its_parent() -> None:
    assert child_name(relay(), "first") == "relay-first"
