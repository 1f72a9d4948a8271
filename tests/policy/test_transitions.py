"""The effect of a change, which all clusters and worlds of tests take from one function."""

from dataclasses import replace

import pytest

from fairlead.state.plan import Change, ChildIntent, CreatePod, Event, SubmitChild, TerminatePod, child_uid
from fairlead.state.snapshot import Grant, Intent, Phase, Requests, Workload
from fairlead.state.transitions import Child, LivePod, NewChild, Notice, Transition, transition
from tests.builders import BECAUSE, changed, status, training

NOW = 1_000.0
RUN = Workload(
    uid="run", spec=training("train"), intent=Intent.RUN, status=status(Phase.PENDING), version=3, created_at=0.0
)
CHILDREN = (
    Child(uid="first", name="train-0", intent=Intent.RUN),
    Child(uid="second", name="train-1", intent=Intent.STOP),
    Child(uid="third", name="train-2", intent=None),
)


def of(**fields: object) -> Change:
    return Change(workload_uid="run", version=3, **fields)  # type: ignore[arg-type]


def test_a_change_of_nothing_raises_the_version_alone() -> None:
    assert transition(RUN, of(), NOW) == Transition(after=replace(RUN, version=4))


@pytest.mark.parametrize(
    "change", [replace(of(), version=2), replace(of(), version=4), replace(of(), workload_uid="other")]
)
def test_a_change_of_another_version_or_workload_has_no_effect(change: Change) -> None:
    assert transition(RUN, change, NOW) is None


def test_a_status_an_intent_and_an_event_replace_those_before() -> None:
    started, event = status(Phase.STARTING), Event(type="Starting", reason=BECAUSE)
    effect = transition(RUN, of(status=started, intent=Intent.STOP, event=event), NOW)
    assert effect == Transition(after=replace(RUN, status=started, intent=Intent.STOP, version=4), event=event)


def test_a_status_with_derived_requests_shows_in_the_spec() -> None:
    started = changed(status(Phase.STARTING), requests=Requests(memory_bytes=1 << 30, why="others used as much"))
    effect = transition(RUN, of(status=started), NOW)
    assert effect is not None
    assert effect.after is not None
    assert effect.after.spec.resources.memory_bytes == 1 << 30
    assert RUN.spec.resources.memory_bytes != 1 << 30


def test_pods_are_created_as_decided() -> None:
    create = CreatePod(attempt=0, index=0, node="n", grant=Grant(cpu_milli=1, memory_bytes=1, gpu_uuids=()))
    effect = transition(RUN, of(create=(create,)), NOW)
    assert effect is not None
    assert effect.created == (create,)


def test_a_notice_begins_now_and_repeated_ones_only_shorten_the_grace() -> None:
    def told(grace_s: float, before: Notice | None) -> tuple[Notice, ...]:
        order = TerminatePod(pod_uid="run-0-0", grace_s=grace_s)
        effect = transition(RUN, of(terminate=(order,)), NOW, pods=[LivePod(uid="run-0-0", notice=before)])
        assert effect is not None
        return effect.notices

    first = Notice(pod_uid="run-0-0", since=NOW - 5, kill_at=NOW + 10)
    assert told(30.0, None) == (Notice(pod_uid="run-0-0", since=NOW, kill_at=NOW + 30),)
    assert told(30.0, first) == ()
    assert told(10.0, first) == ()
    assert told(2.0, first) == (replace(first, kill_at=NOW + 2),)
    assert told(-1.0, first) == (replace(first, kill_at=NOW),)


def test_two_notices_of_one_change_leave_the_shorter_grace() -> None:
    orders = tuple(TerminatePod(pod_uid="run-0-0", grace_s=grace_s) for grace_s in (20.0, 5.0, 9.0))
    effect = transition(RUN, of(terminate=orders), NOW, pods=[LivePod(uid="run-0-0")])
    assert effect is not None
    assert effect.notices == (Notice(pod_uid="run-0-0", since=NOW, kill_at=NOW + 5),)


def test_a_pod_that_is_over_gets_no_notice() -> None:
    order = TerminatePod(pod_uid="run-0-1", grace_s=1.0)
    effect = transition(RUN, of(terminate=(order,)), NOW, pods=[LivePod(uid="run-0-0")])
    assert effect == Transition(after=replace(RUN, version=4))


def test_a_child_is_submitted_once() -> None:
    orders = tuple(SubmitChild(name=name, spec=training(f"train-{name}")) for name in ("1", "7"))
    effect = transition(RUN, of(submit=orders), NOW, children=CHILDREN)
    assert effect is not None
    assert effect.submitted == (NewChild(uid=child_uid("run", "7"), name="7", spec=orders[1].spec),)


def test_an_intent_reaches_the_children_that_have_another_one() -> None:
    wishes = tuple(ChildIntent(uid=uid, intent=Intent.STOP) for uid in ("first", "second", "third", "gone"))
    effect = transition(RUN, of(children=wishes), NOW, children=CHILDREN)
    assert effect is not None
    assert effect.requested == (wishes[0], wishes[2])


def test_a_workload_is_removed_only_without_live_pods_and_children() -> None:
    assert transition(RUN, of(forget=True), NOW) == Transition(after=None)
    assert transition(RUN, of(forget=True), NOW, pods=[LivePod(uid="run-0-0")]) is None
    assert transition(RUN, of(forget=True), NOW, children=CHILDREN[:1]) is None


def test_a_change_says_what_its_effect_depends_on() -> None:
    order = TerminatePod(pod_uid="run-0-0", grace_s=1.0)
    child, wish = SubmitChild(name="0", spec=RUN.spec), ChildIntent(uid="first", intent=Intent.STOP)
    needs = [
        (change.needs_pods, change.needs_children)
        for change in (of(), of(forget=True), of(terminate=(order,)), of(submit=(child,)), of(children=(wish,)))
    ]
    assert needs == [(False, False), (True, True), (True, False), (False, True), (False, True)]
