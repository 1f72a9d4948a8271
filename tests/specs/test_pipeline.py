"""Pipelines are read with every mistake told at once, and conditions are read without eval."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import InvalidSpec
from fairlead.specs.expressions import holds, names_in
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.rendering import to_yaml
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.pipeline import Pipeline

WHOLE = """
kind: Pipeline
name: churn
env: {SEED: 1}
resources: {cpu: 2}
steps:
  prepare: {run: python prepare.py, outputs: [data, shards], inputs: [raw.csv], code: [prepare.py]}
  train:
    needs: [prepare]
    each_of: prepare.shards
    run: python train.py $FAIRLEAD_INPUT_PREPARE_DATA $FAIRLEAD_OUTPUT_ACCURACY
    outputs: [accuracy]
    gate: accuracy > 0.9
    cache: {max_age: 7d}
    retry: 2
    timeout: 1h
  deploy: {needs: [train], run: ./deploy.sh, when: "0.95 in train.accuracy", env: {A: b}}
  alone: echo done
"""


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidSpec) as refused:
        parse(text)
    return refused.value.problems


@pytest.mark.parametrize("form", ["short", "kubernetes"])
def test_a_pipeline_is_the_same_after_every_way_there_and_back(form: Any) -> None:
    (spec,) = parse(WHOLE)
    assert parse(to_yaml(spec, form=form)) == (spec,)
    assert isinstance(spec, Pipeline)
    assert from_json(to_json(spec)) == spec


def test_every_mistake_is_told_at_once_with_its_line() -> None:
    told = problems(
        "kind: Pipeline\n"
        "name: a\n"
        "steps:\n"
        "  a: {run: x $FAIRLEAD_INPUT_B_ROWS $FAIRLEAD_OUTPUT_X, needs: [c]}\n"
        "  b: {run: y, needs: [a], outputs: [data], gate: acc > 1}\n"
        '  c: {run: z, needs: [b, d], when: "b.data > f(3)", each_of: b.foo}\n'
    )
    assert told == (
        "<text>:4: steps.a.run: FAIRLEAD_OUTPUT_X is not set; add x to `outputs`",
        "<text>:4: steps.a.run: FAIRLEAD_INPUT_B_ROWS is not set, as no step in `needs` has that output; set: none",
        "<text>:4: steps.a.needs: the steps need each other in a circle, a needs c needs b needs a; "
        "remove one of these needs",
        '<text>:5: steps.b.gate: "acc" is none of the outputs of this step: data; add it to `outputs`',
        '<text>:6: steps.c.needs: there is no step "d"; steps: a, b, c',
        '<text>:6: steps.c.when: "b.data > f(3)" holds "f(3)"; a condition has names, numbers, texts, comparisons, '
        "`in`, `and`, `or` and `not` only",
        '<text>:6: steps.c.each_of: "b.foo" is not an output of its needs; outputs: b.data',
    )


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (
            "a: {training: {run: x}, resources: {cpu: 1}}",
            "steps.a.resources: it is for a command; give `training.resources`",
        ),
        ("driver: {training: {run: x}}", "as the one that runs the commands is; rename it"),
        ("a: {run: x, ruun: 3}", "steps.a.ruun: unknown key; did you mean `run`?"),
        ("a: {needs: [b]}", "steps.a.run: missing"),
        ("Bad: {run: x}", 'steps.Bad: "Bad" is not a name'),
        ("a:", "steps.a: nothing is given"),
        ("a: {run: 'x {{steps.b.rows}}'}", "steps.a.run: {{steps.b.rows}} is not filled in: an output of a step in"),
        ("a: {run: 'x {{ item }}', each: [b]}", "steps.a.run: {{ item }} is not filled in"),
        ("a: {run: x, needs: [a]}", "steps.a.needs: a step cannot need itself"),
        ("a: {run: x, outputs: [b, b]}", 'steps.a.outputs: "b" is listed twice'),
        ("a: {run: x, gate: 3 +}", 'steps.a.gate: "3 +" is not a condition'),
        ("a: {run: x, env: {FAIRLEAD_ITEM: a}}", "steps.a.env:"),
        ("a: {run: x, retry: -1}", "steps.a.retry:"),
        ("a: {run: x, each: [b], each_of: c.d}", "steps.a.each_of: it is either a list in `each`"),
    ],
)
def test_a_mistake_names_the_step_and_the_key(step: str, told: str) -> None:
    assert any(told in each for each in problems(f"kind: Pipeline\nname: a\nsteps:\n  {step}\n"))


def test_a_pipeline_without_steps_is_refused() -> None:
    assert "there is no step" in problems("kind: Pipeline\nname: a\nsteps: {}\n")[0]


def test_steps_come_after_their_needs() -> None:
    (spec,) = parse("kind: Pipeline\nname: a\nsteps: {c: {run: x, needs: [b]}, b: {run: x, needs: [a]}, a: x}\n")
    assert isinstance(spec, Pipeline)
    assert spec.in_order() == ("a", "b", "c")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a > 0.9", True),
        ("a > 0.9 and not b.c", False),
        ("0.5 < a <= 0.95", True),
        ("d in ['x', 'y'] or a < 0", True),
        ("-a < 0", True),
        ("b.c == true", True),
        ("d != 'x'", False),
    ],
)
def test_a_condition_is_decided(text: str, said: bool) -> None:
    assert holds(text, {"a": 0.95, "b.c": True, "d": "x"}) is said


@pytest.mark.parametrize(
    "text", ["f(1)", "a.b.c > 1", "[x for x in y]", "a if b else c", "lambda: 1", "a := 1", "a[0]", "a is b", "f'{a}'"]
)
def test_nothing_else_is_a_condition(text: str) -> None:
    with pytest.raises(ValueError, match=r"condition|compares"):
        names_in(text)


def test_values_that_cannot_be_compared_are_told() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        holds("a > 1", {"a": "x"})
    with pytest.raises(ValueError, match="a has no value"):
        holds("a > 1", {})


@given(st.text(max_size=60))
def test_no_text_does_anything_but_be_read_or_refused(text: str) -> None:
    try:
        names = names_in(text)
    except ValueError:
        return
    try:
        holds(text, dict.fromkeys(names, 1))
    except ValueError:
        return


def test_an_age_of_results_of_a_step_that_always_runs_is_refused() -> None:
    text = "kind: Pipeline\nname: p\nsteps: {a: {run: echo, cache: {max_age: 1d, off: true}}}\n"
    (problem,) = problems(text)
    assert "a step with `off` always runs" in problem


LONG = "a" * 40


def steps_of(*lines: str) -> str:
    return "kind: Pipeline\nname: p\nsteps:\n" + "".join(f"  {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["a: {outputs: [x]}"], "missing; give a command, or say in `training` or `sweep`"),
        (["a: {run: x, training: {run: x}}"], "a step is one thing, and `run` is given too"),
        (["a: {training: {run: x}, retry: 2}"], "give `training.retry` instead"),
        (["a: {training: {run: x}, timeout: 1h}"], "give `training.max_duration` instead"),
        (["driver: {training: {run: x}}"], "would be named p-driver"),
        (
            ["a: {training: {run: x}, each: [u, v]}", "a_1: {training: {run: x}}"],
            "named p-a-1, as that of a is",
        ),
        (
            [f"{LONG}: {{training: {{run: x}}, each_of: b.l, needs: [b]}}", "b: {run: x, outputs: [l]}"],
            "at most 46",
        ),
        (["a: {sweep: {parameters: {x: 1 | 2}, trial: {run: x}}, outputs: [value]}"], "without an `objective`"),
        (
            ["a: {sweep: {parameters: {x: 1 | 2}, objective: loss, trial: {run: x}}, outputs: [model]}"],
            "of its best trial there are: parameters, value, checkpoint",
        ),
        (["a: {training: {run: 'x > $FAIRLEAD_OUTPUT_X'}}"], "steps.a.training.run: FAIRLEAD_OUTPUT_X is not set"),
    ],
)
def test_a_step_that_is_a_run_says_what_cannot_be(lines: list[str], said: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse(steps_of(*lines))
    assert said in str(caught.value)


def test_two_outputs_never_share_one_variable() -> None:
    text = (
        "kind: Pipeline\nname: collide\nsteps:\n"
        "  train: {run: x, outputs: [eval_data]}\n"
        "  train_eval: {run: x, outputs: [data]}\n"
        "  report: {run: cat $FAIRLEAD_INPUT_TRAIN_EVAL_DATA, needs: [train, train_eval]}\n"
    )
    with pytest.raises(InvalidSpec) as caught:
        parse(text)
    assert caught.value.problems == (
        "<text>:6: steps.report.needs: train.eval_data and train_eval.data would both be in "
        "FAIRLEAD_INPUT_TRAIN_EVAL_DATA; rename a step or an output",
    )
    parse(text.replace(", needs: [train, train_eval]", ", needs: [train]"))
