"""Sweeps as files: what parameters may be, how they get into a trial, and every mistake."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import InvalidSpec
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.rendering import to_yaml
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.search_space import Parameter, count_combinations, grid, read_parameter, read_parameters
from fairlead.specs.sweep import Sweep, trial_run, values_of

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
