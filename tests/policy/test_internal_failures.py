"""Where Fairlead itself fails at one workload, that workload alone waits, and says so."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fairlead.control.loop import run_pass
from fairlead.control.pass_counts import PassCounts
from fairlead.policy import decide as deciding
from fairlead.policy.decide import decide
from fairlead.policy.kinds import internal_failures, parents
from fairlead.policy.kinds.internal_failures import EVENT
from fairlead.policy.kinds.progress import warning_of
from fairlead.policy.pass_cache import PassCache
from fairlead.policy.queue.scheduling import start
from fairlead.specs.resources import Resources
from fairlead.state.plan import Change, Plan
from fairlead.state.reasons import Code
from fairlead.state.snapshot import AnyWorkload, Intent, Pod, Snapshot, Workload
from tests import builders

pytestmark = pytest.mark.usefixtures("failures_are_told")
NOW = 2_000_000_000.0
GIB = 1024**3


def a_run(name: str, **changes: Any) -> Workload:
    spec = builders.training(name)
    return Workload(
        **{
            "uid": name,
            "spec": spec,
            "intent": Intent.RUN,
            "status": builders.status(),
            "version": 1,
            "created_at": 1.0,
            **changes,
        }
    )


def seen(*runs: Workload, pods: tuple[Pod, ...] = (), **changes: Any) -> Snapshot:
    nodes = tuple(builders.node(f"node-{number}") for number in range(3))
    return Snapshot(nodes=nodes, workloads=runs, pods=pods, **changes)


def failing_at(name: str, work: Callable[..., Any], place: int = 0) -> Callable[..., Any]:
    """The work, which fails at the workload of a name, given at a place or in a list there."""

    def wrapped(*args: Any, **more: Any) -> Any:
        given = args[place]
        if any(each.uid == name for each in (given if isinstance(given, list) else [given])):
            raise RecursionError("poison")
        return work(*args, **more)

    return wrapped


def changed(plan: Plan, uid: str) -> Change | None:
    return next((change for change in plan.changes if change.workload_uid == uid), None)


@pytest.mark.parametrize("with_cache", [False, True])
@pytest.mark.parametrize(("where", "place"), [("_judge", 0), ("start", 0)])
@pytest.mark.parametrize("num_others", [1, 6])
def test_a_run_at_which_a_step_of_the_pass_fails_is_told_and_the_others_start(
    monkeypatch: pytest.MonkeyPatch, where: str, place: int, with_cache: bool, num_others: int
) -> None:
    monkeypatch.setattr(deciding, where, failing_at("bad", getattr(deciding, where), place))
    intent = {"intent": Intent.STOP} if where == "_judge" else {}
    bad, others = a_run("bad", **intent), [a_run(f"good-{number}") for number in range(num_others)]
    snapshot = seen(*others[:1], bad, *others[1:])
    cache = PassCache() if with_cache else None
    plan = decide(snapshot, NOW, cache)
    assert [failure.workload_uid for failure in plan.failures if failure.workload_uid] == ["bad"]
    for each in others:
        change = changed(plan, each.uid)
        assert change is not None
        assert change.create, change
    told = changed(plan, "bad")
    assert told is not None
    assert told.event is not None
    assert told.status is not None
    assert (told.event.type, told.event.reason.code) == (EVENT, Code.INTERNAL_ERROR)
    assert "RecursionError: poison" in told.event.reason.message
    assert replace(told, event=None, status=None) == Change(workload_uid="bad", version=bad.version)
    assert warning_of(replace(bad, status=told.status), NOW) == told.event.reason
    # It is told once, and taken back once the pass succeeds.
    again = replace(bad, status=told.status, version=2)
    assert changed(decide(seen(again), NOW, cache), "bad") is None
    monkeypatch.undo()
    cleared = changed(decide(seen(again), NOW, cache), "bad")
    assert cleared is not None
    assert cleared.status is not None
    assert cleared.status.warning.reason is None


def test_a_run_that_could_not_be_observed_is_told_and_nothing_else_is_decided_for_it() -> None:
    bad = a_run("bad", intent=Intent.STOP)
    plan = decide(seen(bad, a_run("good"), unreadable={"bad": "TypeError: poison"}), NOW)
    told, other = changed(plan, "bad"), changed(plan, "good")
    assert told is not None
    assert told.event is not None
    assert "TypeError: poison" in told.event.reason.message
    assert told.intent is None
    assert other is not None
    assert other.create


def test_what_fails_for_all_alike_still_lets_runs_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any, **_more: Any) -> Any:
        raise ZeroDivisionError("everywhere")

    monkeypatch.setattr(deciding, "start", broken)
    plan = decide(seen(a_run("stopped", intent=Intent.STOP), a_run("waits"), a_run("waits-too")), NOW)
    stopped = changed(plan, "stopped")
    assert stopped is not None
    assert stopped.status is not None
    assert [failure.problem for failure in plan.failures if not failure.workload_uid] == [
        "ZeroDivisionError: everywhere"
    ]


def test_a_parent_that_cannot_be_judged_does_not_keep_the_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def judge(parent: AnyWorkload, *_more: Any) -> Change | None:
        if parent.uid == "bad":
            raise TypeError("poison")
        judged.append(parent.uid)
        return None

    monkeypatch.setattr(parents, "_judge", judge)
    monkeypatch.setattr(parents, "families_at", lambda *_: {"a": None, "bad": None, "c": None})
    snapshot = seen(parents=(a_run("a"), a_run("bad"), a_run("c")))
    plan = decide(snapshot, NOW)
    assert judged == ["a", "c"]
    assert [change.workload_uid for change in plan.changes] == ["bad"]


def test_the_search_for_what_makes_a_pass_fail_is_bounded() -> None:
    runs = [(0, a_run(f"r{number}")) for number in range(4_000)]
    tries = 0

    def attempt(some: Any) -> list[Change]:
        nonlocal tries
        tries += 1
        if any(int(each.uid[1:]) % 2 for _, each in some):
            raise ValueError("every second one")
        return []

    failures = internal_failures.InternalFailures({})
    assert internal_failures.without_failing(runs, attempt, ValueError("first"), failures) == []
    assert tries <= internal_failures.MOST_ATTEMPTS + 2
    assert [failure.problem for failure in failures.all()] == ["ValueError: first"]


class _Cluster:
    """Stands in for a cluster with one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def apply(self, plan: Plan) -> tuple[bool, ...]:
        return tuple(True for _ in plan.changes)


def test_a_live_loop_logs_a_failure_once_with_the_name_of_the_run_and_a_simulation_raises_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deciding, "start", failing_at("bad", start))
    cluster: Any = _Cluster(seen(a_run("bad"), a_run("good")))
    counts = PassCounts()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            run_pass(cluster, NOW, counts)
    assert [each.partition(": internal error")[0] for each in caplog.messages] == ["Training default/bad"]
    with pytest.raises(RecursionError):
        run_pass(cluster, NOW)


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_run_whose_last_change_was_refused_waits_without_a_word_and_holds_no_place(with_cache: bool) -> None:
    """The first of the queue would otherwise be placed in every pass, and its nodes given to nobody."""
    whole = Resources(cpu_milli=4000, memory_bytes=GIB)
    first, second = (
        a_run(name, spec=builders.training(name, nodes=3, resources=whole), created_at=at)
        for name, at in (("first", 1.0), ("second", 2.0))
    )
    cache = PassCache() if with_cache else None
    assert [change.workload_uid for change in decide(seen(first, second), NOW, cache).changes if change.create] == [
        "first"
    ]
    plan = decide(seen(first, second, deferred=frozenset({"first"})), NOW, cache)
    assert (changed(plan, "first"), plan.failures) == (None, ())
    assert [change.workload_uid for change in plan.changes if change.create] == ["second"]
    # Tried again, it is the first once more.
    assert [change.workload_uid for change in decide(seen(first, second), NOW, cache).changes if change.create] == [
        "first"
    ]
