"""The part of the contract about parents and children, for adapters that keep them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fairlead.control.loop import run_pass
from fairlead.errors import NameTaken
from fairlead.policy.kinds.parents import submit
from fairlead.specs.training import Training
from fairlead.specs.workload import renamed
from fairlead.state.plan import Change, ChildIntent, child_uid
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Workload, is_leaf
from tests.builders import plan, status
from tests.cluster.harness import Harness
from tests.relay import LEGS, Ran, Relay
from tests.relays import know_relays


def a_relay(harness: Harness, leg: Training | None = None) -> Workload[Relay]:
    return harness.cluster.submit(Relay(name="relay", leg=leg or harness.program(harness.moment_s / 4)))


def now_of(harness: Harness, workload: AnyWorkload) -> AnyWorkload:
    return next(each for each in harness.cluster.workloads() if each.uid == workload.uid)


def apply(harness: Harness, change: Change) -> bool:
    return harness.cluster.apply(plan(change))[0]


def with_child(harness: Harness, name: str = "first") -> tuple[AnyWorkload, Workload]:
    parent = a_relay(harness, harness.program())
    order = submit(parent, name, parent.spec.leg)
    assert apply(harness, Change(workload_uid=parent.uid, version=parent.version, submit=(order,)))
    (child,) = harness.cluster.children(parent.uid)
    assert is_leaf(child)
    return now_of(harness, parent), child


def until(harness: Harness, parent: AnyWorkload, *phases: Phase) -> AnyWorkload:
    """Passes of the loop until the parent is in one of the phases."""

    def reached() -> bool:
        while run_pass(harness.cluster, harness.now()):
            pass
        return now_of(harness, parent).status.phase in phases

    harness.until(reached)
    return now_of(harness, parent)


class FamilyContract:
    """Parents and children: what is kept of them, and that they live and go together.

    Attributes:
        makes_uids: The cluster gives uids itself, and knows a child by its name and its parent.
    """

    makes_uids = False

    @pytest.fixture(autouse=True)
    def relays(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with know_relays(monkeypatch):
            yield

    def test_a_parent_reads_back_as_it_was_and_has_no_pods(self, harness: Harness) -> None:
        parent = a_relay(harness)
        (seen,) = harness.cluster.snapshot().parents
        assert seen == parent == now_of(harness, parent)
        assert harness.cluster.snapshot().workloads == ()
        with pytest.raises(NameTaken):
            harness.cluster.submit(renamed(harness.program(), "relay"))

    def test_the_detail_of_a_status_reads_back_as_a_value_of_its_kind(self, harness: Harness) -> None:
        parent = a_relay(harness)
        told = status(Phase.RUNNING, detail=Ran(legs=("first",)), halted=("a", "b"))
        assert apply(harness, Change(workload_uid=parent.uid, version=parent.version, status=told))
        harness.crash()
        assert now_of(harness, parent).status == told

    def test_a_child_is_submitted_once_however_often_it_is_ordered(self, harness: Harness) -> None:
        parent, child = with_child(harness)
        assert (child.parent, child.spec.name) == (parent.uid, "relay-first")
        assert self.makes_uids or child.uid == child_uid(parent.uid, "first")
        order = submit(parent, "first", harness.program())
        assert apply(harness, Change(workload_uid=parent.uid, version=parent.version, submit=(order,)))
        harness.crash()
        assert harness.cluster.children(parent.uid) == (child,)
        assert [event.type for event in harness.cluster.events(child.uid)] == ["Submitted"]

    def test_a_child_whose_name_is_taken_holds_up_the_whole_change(self, harness: Harness) -> None:
        harness.cluster.submit(renamed(harness.program(), "relay-first"))
        parent = a_relay(harness, harness.program())
        change = Change(
            workload_uid=parent.uid,
            version=parent.version,
            status=status(Phase.RUNNING),
            submit=(submit(parent, "second", harness.program()), submit(parent, "first", harness.program())),
        )
        assert not apply(harness, change)
        assert now_of(harness, parent) == parent
        assert harness.cluster.children(parent.uid) == ()

    def test_what_a_parent_wants_of_a_child_raises_its_version_once(self, harness: Harness) -> None:
        parent, child = with_child(harness)
        wanted = ChildIntent(uid=child.uid, intent=Intent.SUSPEND)
        seen: list[tuple[Intent, int]] = []
        for _ in range(2):
            parent = now_of(harness, parent)
            assert apply(harness, Change(workload_uid=parent.uid, version=parent.version, children=(wanted,)))
            seen += [(now.intent, now.version) for now in harness.cluster.children(parent.uid)]
        assert seen[0] == seen[1]
        assert seen[0][0] is Intent.SUSPEND
        assert seen[0][1] > child.version

    def test_a_stale_change_submits_nothing(self, harness: Harness) -> None:
        parent = a_relay(harness)
        order = submit(parent, "first", harness.program())
        harness.cluster.set_intent(parent.uid, Intent.STOP)
        assert not apply(harness, Change(workload_uid=parent.uid, version=parent.version, submit=(order,)))
        assert harness.cluster.children(parent.uid) == ()

    def test_a_parent_is_not_forgotten_while_it_has_children(self, harness: Harness) -> None:
        parent, child = with_child(harness)
        assert not apply(harness, Change(workload_uid=parent.uid, version=parent.version, forget=True))
        assert apply(harness, Change(workload_uid=child.uid, version=child.version, forget=True))
        assert apply(harness, Change(workload_uid=parent.uid, version=parent.version, forget=True))
        assert harness.cluster.workloads() == ()

    def test_a_snapshot_shows_all_children_of_an_unfinished_parent(self, harness: Harness) -> None:
        parent, child = with_child(harness)
        over = status(Phase.SUCCEEDED)
        ended = Change(workload_uid=child.uid, version=child.version, status=over, intent=Intent.STOP)
        assert apply(harness, ended)
        shown = harness.cluster.snapshot()
        assert (shown.workloads, [each.uid for each in shown.ended]) == ((), [child.uid])
        assert [each.uid for each in shown.parents] == [parent.uid]

    def test_the_reason_of_a_finished_child_can_be_told_anew(self, harness: Harness) -> None:
        _, child = with_child(harness)
        over = status(Phase.STOPPED)
        assert apply(harness, Change(workload_uid=child.uid, version=child.version, status=over, intent=Intent.STOP))
        (seen,) = harness.cluster.snapshot().ended
        told = replace(over, reason=replace(over.reason, message="told anew"))
        assert apply(harness, Change(workload_uid=seen.uid, version=seen.version, status=told))
        assert not apply(harness, Change(workload_uid=seen.uid, version=seen.version, status=over))
        assert [each.status.reason.message for each in harness.cluster.snapshot().ended] == ["told anew"]
        harness.crash()
        assert [each.status.reason.message for each in harness.cluster.snapshot().ended] == ["told anew"]

    def test_the_children_of_a_parent_run_one_after_another(self, harness: Harness) -> None:
        parent = until(harness, a_relay(harness), Phase.SUCCEEDED, Phase.FAILED)
        assert (parent.status.phase, parent.status.detail) == (Phase.SUCCEEDED, Ran(legs=LEGS))
        children = harness.cluster.children(parent.uid)
        assert [child.spec.name for child in children] == [f"relay-{name}" for name in LEGS]
        assert {child.status.phase for child in children} == {Phase.SUCCEEDED}

    def test_a_parent_fails_with_its_child_and_both_are_deleted(self, harness: Harness) -> None:
        parent = a_relay(harness, harness.program(harness.moment_s / 4, exit_code=3))
        failed = until(harness, parent, Phase.SUCCEEDED, Phase.FAILED)
        assert failed.status.phase is Phase.FAILED
        assert failed.status.reason.message.startswith("relay-first is Failed: ")
        harness.cluster.set_intent(parent.uid, Intent.DELETE)
        harness.until(lambda: not run_pass(harness.cluster, harness.now()) and not harness.cluster.workloads())

    def test_a_parent_is_suspended_resumed_and_stopped_with_its_child(self, harness: Harness) -> None:
        parent = a_relay(harness, harness.program())
        until(harness, parent, Phase.RUNNING)
        for intent, phase, below in (
            (Intent.SUSPEND, Phase.SUSPENDED, Phase.SUSPENDED),
            (Intent.RUN, Phase.RUNNING, None),
            (Intent.STOP, Phase.STOPPED, Phase.STOPPED),
        ):
            harness.cluster.set_intent(parent.uid, intent)
            until(harness, parent, phase)
            (child,) = harness.cluster.children(parent.uid)
            assert below in (None, child.status.phase)
            assert child.intent is intent
        assert harness.cluster.snapshot().pods == ()

    def test_all_that_is_below_a_parent_goes_with_it(self, harness: Harness) -> None:
        parent = a_relay(harness, harness.program())
        until(harness, parent, Phase.RUNNING)
        harness.cluster.set_intent(parent.uid, Intent.DELETE)
        harness.until(lambda: not run_pass(harness.cluster, harness.now()) and not harness.cluster.workloads())

        assert harness.cluster.events() == ()
