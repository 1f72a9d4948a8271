"""Which step of a pipeline is next, and whether what it returned before is taken."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.policy.kinds.steps import (
    Expand,
    Prepare,
    Result,
    Settle,
    Task,
    TaskPhase,
    decide_cache,
    gate_problem,
    judge,
    outcome,
    step_phase,
)
from fairlead.specs.pipeline import Cache, Pipeline, Step

GOOD, WAITING, FAILED, SKIPPED = TaskPhase.SUCCEEDED, TaskPhase.WAITING, TaskPhase.FAILED, TaskPhase.SKIPPED


def pipeline(**steps: Step) -> Pipeline:
    return Pipeline(name="p", steps=steps)


def done(step: str, **values: Any) -> list[Task]:
    return [Task(step=step, phase=GOOD, values=values, outputs=dict.fromkeys(values, "hash"))]


TWO = pipeline(a=Step(run="a", outputs=("x", "items")), b=Step(run="b", needs=("a",)))


@pytest.mark.parametrize(
    ("phase", "action"),
    [
        (WAITING, None),
        (TaskPhase.RUNNING, None),
        (GOOD, Prepare(step="b")),
        (TaskPhase.CACHED, Prepare(step="b")),
        (FAILED, Settle(step="b", phase=SKIPPED, message="a has failed")),
        (SKIPPED, Settle(step="b", phase=SKIPPED, message="a was skipped")),
    ],
)
def test_a_step_follows_its_needs(phase: TaskPhase, action: Any) -> None:
    assert judge(TWO, "b", {"a": [Task(step="a", phase=phase)], "b": [Task(step="b")]}) == action


def test_a_step_without_needs_is_ready() -> None:
    assert judge(TWO, "a", {"a": [Task(step="a")], "b": [Task(step="b")]}) == Prepare(step="a")


@pytest.mark.parametrize(
    ("value", "action"),
    [
        (5, Prepare(step="b")),
        (1, Settle(step="b", phase=SKIPPED, message="when: `a.x > 3` does not hold: a.x is 1")),
        ("y", Settle(step="b", phase=FAILED, message="when: `a.x > 3`: 'y' and 3 cannot be compared with `>`")),
    ],
)
def test_a_condition_decides_whether_a_step_is_run(value: Any, action: Any) -> None:
    conditional = replace(TWO, steps={**TWO.steps, "b": Step(run="b", needs=("a",), when="a.x > 3")})
    assert judge(conditional, "b", {"a": done("a", x=value), "b": [Task(step="b")]}) == action


@pytest.mark.parametrize(
    ("value", "action"),
    [
        ([1, "two", {"k": 3}], Expand(step="b", items=("1", "two", '{"k": 3}'))),
        ([], Settle(step="b", phase=SKIPPED, message="each_of: a.items is empty")),
        (
            3,
            Settle(step="b", phase=FAILED, message="each_of: a.items is not a list; write a JSON list, such as [1, 2]"),
        ),
    ],
)
def test_a_step_is_fanned_out_over_what_another_returned(value: Any, action: Any) -> None:
    fanned = replace(TWO, steps={**TWO.steps, "b": Step(run="b", needs=("a",), each_of="a.items")})
    assert judge(fanned, "b", {"a": done("a", items=value), "b": [Task(step="b")]}) == action


@pytest.mark.parametrize("need", [done("a"), [*done("a", items=1), Task(step="a", index=1, phase=GOOD)]])
def test_a_list_that_cannot_be_read_is_told_with_its_limit(need: list[Task]) -> None:
    each = ("x", "y") if len(need) > 1 else ()
    tasks = [replace(task, index=place) if each else task for place, task in enumerate(need)]
    fanned = pipeline(a=Step(run="a", each=each, outputs=("items",)), b=Step(run="b", needs=("a",), each_of="a.items"))
    action = judge(fanned, "b", {"a": tasks, "b": [Task(step="b")]})
    assert isinstance(action, Settle)
    assert action.phase is FAILED
    assert "a.items cannot be read: it is a directory, not UTF-8 text, `null` or larger than 4 MiB" in action.message


def test_a_step_is_expanded_once() -> None:
    fanned = pipeline(a=Step(run="a", each=("x", "y")))
    assert judge(fanned, "a", {"a": [Task(step="a")]}) == Expand(step="a", items=("x", "y"))
    tasks = [Task(step="a", index=place, item=item) for place, item in enumerate("xy")]
    assert judge(fanned, "a", {"a": tasks}) == Prepare(step="a")


def test_conditions_read_lists_of_a_step_that_is_fanned_out() -> None:
    fanned = pipeline(
        a=Step(run="a", each=("x", "y"), outputs=("ok",)), b=Step(run="b", needs=("a",), when="2 in a.ok")
    )
    tasks = [Task(step="a", index=place, phase=GOOD, values={"ok": place + 1}) for place in range(2)]
    assert judge(fanned, "b", {"a": tasks, "b": [Task(step="b")]}) == Prepare(step="b")


@pytest.mark.parametrize(
    ("phases", "whole"),
    [
        ((GOOD, TaskPhase.RUNNING, FAILED), TaskPhase.RUNNING),
        ((GOOD, WAITING), WAITING),
        ((GOOD, FAILED), FAILED),
        ((GOOD, TaskPhase.CACHED), GOOD),
        ((SKIPPED, SKIPPED), SKIPPED),
        ((TaskPhase.CACHED, SKIPPED), TaskPhase.CACHED),
    ],
)
def test_a_step_is_what_its_tasks_are(phases: tuple[TaskPhase, ...], whole: TaskPhase) -> None:
    assert step_phase([Task(step="a", index=place, phase=phase) for place, phase in enumerate(phases)]) is whole


def test_a_gate_says_what_it_read() -> None:
    step = Step(run="a", outputs=("accuracy",), gate="accuracy > 0.9")
    assert gate_problem(step, {"accuracy": 0.95}) is None
    assert gate_problem(step, {"accuracy": 0.85}) == "gate: `accuracy > 0.9` does not hold: accuracy is 0.85"
    assert gate_problem(step, {}) == "gate: `accuracy > 0.9`: accuracy has no value"


PARTS = {"command": "a", "code train.py": "1", "a.x": "2"}
OLD = Result(parts=PARTS, outputs={}, values={}, at=1000.0, took_s=1.0, run="r1")


@pytest.mark.parametrize(
    ("cache", "same", "last", "taken", "why"),
    [
        (Cache(), OLD, OLD, True, "unchanged since run r1"),
        (Cache(off=True), OLD, OLD, False, "cache: off"),
        (Cache(), None, None, False, "it has not succeeded before"),
        (Cache(max_age_s=3600.0), OLD, OLD, True, "unchanged since run r1"),
        (Cache(max_age_s=60.0), OLD, OLD, False, "its result is older than cache.max_age, 1m"),
        (Cache(), replace(OLD, lacks="model"), OLD, False, "its output model is not there any more"),
        (Cache(), None, replace(OLD, parts={**PARTS, "code train.py": "0"}), False, "code train.py has changed"),
        (
            Cache(),
            None,
            replace(OLD, parts={"command": "b", "a.x": "2", "variable LR": "3"}),
            False,
            "command has changed, code train.py is new, variable LR is gone",
        ),
    ],
)
def test_a_result_is_taken_or_what_keeps_it_from_that_is_named(
    cache: Cache, same: Result | None, last: Result | None, taken: bool, why: str
) -> None:
    decided = decide_cache(cache, PARTS, same, last, now=2000.0)
    assert (decided.result is not None, decided.why) == (taken, why)


def test_many_changes_are_counted() -> None:
    last = replace(OLD, parts={f"code {name}.py": "0" for name in "abcde"})
    decided = decide_cache(Cache(), {f"code {name}.py": "1" for name in "abcde"}, None, last, now=2000.0)
    assert decided.why == "code a.py has changed, code b.py has changed, code c.py has changed, and 2 more"


def test_the_outcome_counts_and_names_the_first_failures() -> None:
    steps = {"a": done("a"), "b": [Task(step="b", phase=FAILED, message="exit code 3")]}
    assert outcome(steps) == (False, "step b failed: exit code 3; 1 step ran, 1 failed")
    steps |= {name: [Task(step=name, phase=FAILED, message=f"no {name}")] for name in "cde"}
    named = "step b failed: exit code 3; step c failed: no c; step d failed: no d"
    assert outcome(steps) == (False, f"{named}; 1 step ran, 4 failed")
    assert outcome({"a": done("a")}) == (True, "1 step ran")
