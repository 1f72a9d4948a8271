"""Sweeps as files: what parameters may be, how they get into a trial, and every mistake."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import InvalidSpec
from fairlead.policy.search.sampling import suggest
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.rendering import to_yaml
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.search_space import (
    Parameter,
    count_combinations,
    grid,
    read_parameter,
    read_parameters,
    show_value,
)
from fairlead.specs.sweep import Objective, Sampler, Sweep, Trial, trial_run, values_of

FILE = """
kind: Sweep
name: rates
parameters: {lr: log 1e-4..1e-1, layers: 1..8, opt: sgd | adam, momentum: 0.1..0.9 when opt=sgd}
objective: loss
trials: 40
trial: {run: 'train --lr {{lr}} {{ opt }} --layers {{layers}}', env: {M: '{{momentum}}'}}
"""


def sweep(text: str = FILE, **changes: str) -> Sweep:
    lines = [line for line in text.strip().splitlines() if line.partition(":")[0] not in changes]
    (found,) = parse("\n".join([*lines, *(f"{key}: {value}" for key, value in changes.items() if value)]))
    assert isinstance(found, Sweep)
    return found


def problem(**changes: str) -> str:
    with pytest.raises(InvalidSpec) as caught:
        sweep(**changes)
    return "\n".join(caught.value.problems)


def test_a_sweep_reads_back_as_it_was_in_both_forms_and_from_a_database() -> None:
    for each in (sweep(), sweep(prune="{rule: median, after: 5}", parallel="3", stop="{target: 0.1, duration: 2h}")):
        assert parse(to_yaml(each, form="short")) == parse(to_yaml(each)) == (each,)
        assert from_json(to_json(each)) == each


def test_values_get_into_the_command_the_variables_and_a_table_of_all() -> None:
    run = trial_run(sweep(), {"lr": 0.001, "layers": 3, "opt": "adam"})
    assert run.run == "train --lr 0.001 adam --layers 3"
    assert run.env["M"] == ""
    assert (run.env["FAIRLEAD_PARAM_LR"], run.env["FAIRLEAD_PARAM_OPT"]) == ("0.001", "adam")
    assert json.loads(run.env["FAIRLEAD_PARAMS"]) == values_of(run) == {"lr": 0.001, "layers": 3, "opt": "adam"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parameters": "{lr: 1..}"}, 'lr: "1.." is not a range'),
        ({"parameters": "{lr: 5..1}"}, "ends below its beginning"),
        ({"parameters": "{lr: log 0..1}"}, "needs numbers above 0"),
        ({"parameters": "{lr: a | a}"}, "lists a value twice"),
        ({"parameters": "{lr: 0.1..0.2 when opt=sgd}"}, "which is not a parameter above it"),
        ({"parameters": "{opt: a | b, lr: 0.1..0.2 when opt=c}"}, "opt=c, which opt never is"),
        ({"parameters": "{}"}, "none is given"),
        ({"parameters": "{lr: 0.1..0.2}"}, "`{{layers}}` is not a parameter of this sweep; those are: lr"),
        (
            {"parameters": "{lr: 0.1..0.2, layers: 1..2, opt: a, momentum: 1, spare: 1..2}"},
            "spare: nothing in the trial",
        ),
        ({"trials": ""}, "lr has no end of values"),
        ({"sampler": "grid"}, "grid needs values that are listed"),
        ({"objective": ""}, "without a `sampler` it is grid where no `objective` is given"),
        ({"objective": "", "prune": "asha"}, "`prune` needs an `objective`"),
        ({"objective": "", "sampler": "tpe"}, "tpe learns from an `objective`"),
        ({"objective": "", "sampler": "cma-es"}, "cma-es learns from an `objective`"),
        (
            {"parameters": "{lr: 0.1 | 0.2, layers: 1..2 when lr=0.1}", "sampler": "cma-es"},
            "cma-es adapts ranges that are always there, and this sweep has none",
        ),
        ({"objectives": "[cost, speed]"}, "`objectives` says what trials are judged by; leave one of the two out"),
        ({"objective": "", "objectives": "[cost]"}, "1 given; give two to 4, or one as `objective: cost`"),
        ({"objective": "", "objectives": "[cost, 'cost:maximize']"}, '"cost" is listed twice'),
        ({"objective": "", "objectives": "[a, b]", "prune": "asha"}, "`prune` compares trials by one `objective`"),
        ({"objective": "", "objectives": "[a, b]", "stop": "{target: 1}"}, "`stop.target` is a value of one"),
        ({"objective": "", "objectives": "[a, b]", "sampler": "tpe"}, "tpe learns from one `objective`"),
        ({"sampler": "nsga-ii"}, "nsga-ii is for several `objectives`"),
        (
            {"objective": "minimize loss"},
            '"minimize loss" is no metric but one with its goal; write {metric: loss, goal',
        ),
        ({"objective": "'accuracy:maximize'"}, "write {metric: accuracy, goal: maximize}"),
        ({"objective": "", "objectives": "[cost, speed maximise]"}, 'write "speed:maximize"'),
        ({"objective": "", "objectives": "[cost, 'speed:Max']"}, 'write "speed:maximize"'),
        ({"prune": "hyperband"}, "has to know how many steps"),
        ({"prune": "{rule: asha, steps: 9}"}, "asha does not use it"),
        ({"pruner": "asha"}, "did you mean `prune`?"),
        ({"parallel": "many"}, "parallel"),
        ({"trial": "{run: x, name: y}"}, "unknown key"),
        ({"trial": "{run: x, env: {FAIRLEAD_PARAM_LR: 1}}"}, "is set for each trial by the sweep"),
    ],
)
def test_every_mistake_is_told(changes: dict[str, str], said: str) -> None:
    assert said in problem(**changes)


def test_an_array_has_a_run_for_each_value() -> None:
    array = sweep("kind: Sweep\nname: shards\nparameters: {shard: 0..99}\ntrial: {run: work $FAIRLEAD_PARAM_SHARD}")
    assert (array.num_trials, array.objective) == (100, None)


def test_a_grid_has_each_combination_once_and_none_that_a_condition_leaves_out() -> None:
    space, problems = read_parameters({"opt": "sgd | adam", "momentum": "1..3 when opt=sgd", "size": "7 | 9"})
    assert not problems
    found = list(grid(space))
    assert len(found) == count_combinations(space, 100) == 8
    assert {"opt": "adam", "size": 9} in found
    assert len({json.dumps(each, sort_keys=True) for each in found}) == 8


@given(
    st.sampled_from(["0.5..2.5", "1..8", "log 1e-5..1e-1", "log 1..1000", "a | 2 | 3.5"]),
    st.floats(0, 1, exclude_max=True),
)
def test_a_part_of_a_range_is_a_value_in_it_and_the_way_back_is_near(text: str, part: float) -> None:
    parameter = read_parameter("x", text)
    value = parameter.at(part)
    if parameter.choices:
        assert value in parameter.choices
        return
    assert isinstance(value, (int, float))
    assert parameter.low <= value <= parameter.high
    assert isinstance(value, int) == parameter.is_whole
    assert 0.0 <= parameter.part(value) <= 1.0
    if not parameter.is_whole:
        assert parameter.part(value) == pytest.approx(part, abs=1e-3)


def test_every_whole_number_of_a_range_is_as_likely_as_any_other() -> None:
    parameter: Parameter = read_parameter("x", "1..4")
    values = [parameter.at((place + 0.5) / 400) for place in range(400)]
    assert [values.count(number) for number in (1, 2, 3, 4)] == [100] * 4


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ("1.10 | 1.20", ["1.10", "1.20"]),
        ("001 | 010", ["001", "010"]),
        ("1234567.5 | 0.123456789", ["1234567.5", "0.123456789"]),
        ("1e5 | 12e3", ["1e5", "12e3"]),
        (".5 | 5.", [".5", "5."]),
        ("-0 | 1e-4", ["-0", "1e-4"]),
    ],
)
def test_a_listed_value_reaches_the_program_as_it_was_written(values: str, texts: list[str]) -> None:
    trial = Trial(name="s", run="python t.py {{x}}", env={"GIVEN": "{{ x }}"})
    spec = Sweep(name="s", trial=trial, parameters={"x": values})
    runs = [trial_run(spec, combination) for combination in grid(spec.space)]
    assert [run.run for run in runs] == [f"python t.py {text}" for text in texts]
    assert [(run.env["GIVEN"], run.env["FAIRLEAD_PARAM_X"]) for run in runs] == [(text, text) for text in texts]


def test_numbers_are_numbers_in_json_and_words_with_leading_zeros_are_words() -> None:
    spec = Sweep(name="s", trial=Trial(name="s", run="x"), parameters={"lr": "1e-4 | 1.10", "code": "007"})
    runs = [trial_run(spec, combination) for combination in grid(spec.space)]
    assert [json.loads(run.env["FAIRLEAD_PARAMS"]) for run in runs] == [
        {"lr": 1e-4, "code": "007"},
        {"lr": 1.1, "code": "007"},
    ]


def test_without_a_number_of_trials_each_combination_is_tried_once() -> None:
    spec = Sweep(
        name="s",
        trial=Trial(name="s", run="x"),
        parameters={"opt": "sgd | adam | lion", "bs": "16 | 32"},
        objective=Objective(metric="loss"),
    )
    assert spec.chosen_sampler is Sampler.GRID
    drawn = [suggest(spec, number, (), ()) for number in range(spec.num_trials)]
    assert len({tuple(values.items()) for values in drawn}) == len(drawn) == 6
    assert replace(spec, trials=6).chosen_sampler is Sampler.TPE


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_shown_with_all_of_its_digits(number: float) -> None:
    assert float(show_value(number)) == number


@pytest.mark.parametrize(
    "text",
    [
        "0.1-0.5",
        "1-5",
        "1e-5, 1e-1",
        "0.1,0.2",
        "0.1 0.2",
        "0.1;0.2",
        "1 to 5",
        "loguniform(1e-5, 1e-1)",
        "1...5",
        "[0.1, 0.2]",
        "(1, 2)",
        "np.logspace(-5, -1, 5)",
    ],
)
def test_a_range_in_the_words_of_other_tools_is_no_single_value(text: str) -> None:
    message = problem(parameters=f"{{lr: '{text}'}}")
    assert f'lr: "{text}" is not a range; give two' in message or f'lr: "{text}" is a single word here; give' in message


@pytest.mark.parametrize("value", ["[0.1, 0.01]", "{min: 0.001, max: 0.1}"])
def test_values_that_are_no_text_are_answered_with_how_values_and_ranges_are_written(value: str) -> None:
    assert "such as `lr: 0.1 | 0.01` for values or `0.01..0.1`" in problem(parameters=f"{{lr: {value}}}")


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("sgd | adam", "2 values: sgd, adam"),
        ("1.10", "1 value: 1.10"),
        (" | ".join(map(str, range(10))), "10 values: 0, 1, 2, 3, 4, 5, 6, 7, ..."),
        ("1..5", "whole numbers from 1 to 5"),
        ("0.1..1.0", "any number from 0.1 to 1"),
        ("log 1e-5..1e-1", "any number from 1e-05 to 0.1 on a logarithmic scale"),
        ("0.5..0.9 when opt=sgd|lion", "any number from 0.5 to 0.9; only if opt is sgd or lion"),
    ],
)
def test_a_parameter_is_described_as_it_was_understood(text: str, described: str) -> None:
    assert read_parameter("x", text).describe() == described
