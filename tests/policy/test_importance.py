"""The importance of parameters: a part of the variance that a parameter explains by itself, and not by chance."""

import random

import pytest

from fairlead.policy.search.importance import importance
from fairlead.policy.search.sampling import suggest
from fairlead.policy.search.trials import TrialRecord, TrialState
from fairlead.specs.formats.reading import parse
from fairlead.specs.search_space import Value, read_parameters
from fairlead.specs.sweep import Sweep


def searched(num_trials: int, seed: int) -> dict[str, float]:
    """A search whose objective follows from `rate` and a little from `depth`; `slope` and `activation` do nothing."""
    (sweep,) = parse(
        f"kind: Sweep\nname: r\nseed: {seed}\ntrials: {num_trials}\nobjective: {{metric: loss, goal: minimize}}\n"
        "parameters:\n  rate: log 1e-3..1e0\n  depth: 1..4\n  activation: relu | tanh\n"
        "  slope: 0.0..0.3 when activation=relu\ntrial: {run: echo}\n"
    )
    assert isinstance(sweep, Sweep)
    history: list[TrialRecord] = []
    for number in range(num_trials):
        values = suggest(sweep, number, history)
        loss = (float(values["rate"]) - 0.1) ** 2 + 0.01 * float(values["depth"])
        history.append(TrialRecord(number=number, values=values, state=TrialState.SUCCEEDED, value=loss))
    return importance(sweep.space, history)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_trials", [12, 40])
def test_parameters_without_effect_have_no_part_however_the_search_tried_them(num_trials: int, seed: int) -> None:
    found = searched(num_trials, seed)
    assert found["slope"] <= 0.1
    assert found["activation"] <= 0.1
    if num_trials == 40:
        assert max(found, key=lambda name: found[name]) == "rate"
        assert found["rate"] >= 0.25


def test_a_conditional_parameter_with_an_effect_has_its_part() -> None:
    space, _ = read_parameters({"opt": "sgd | adam", "momentum": "0.0..1.0 when opt=sgd"})
    rng = random.Random(3)
    history = []
    for number in range(60):
        is_sgd = number % 2 == 0
        momentum = rng.random()
        values: dict[str, Value] = {"opt": "sgd", "momentum": momentum} if is_sgd else {"opt": "adam"}
        value = (momentum if is_sgd else 0.5) + rng.gauss(0, 0.01)
        history.append(TrialRecord(number=number, values=values, state=TrialState.SUCCEEDED, value=value))
    found = importance(space, history)
    assert found["momentum"] > 0.5
    assert found["opt"] < 0.1


def test_two_parameters_that_always_change_together_share_no_effect_and_chance_has_none() -> None:
    space, _ = read_parameters({"a": "0.0..1.0", "b": "0.0..1.0", "noise": "0.0..1.0"})
    rng = random.Random(5)
    draws = [(rng.random(), rng.random()) for _ in range(200)]
    history = [
        TrialRecord(
            number=number, values={"a": a, "b": a, "noise": noise}, state=TrialState.SUCCEEDED, value=a + 1000.0
        )
        for number, (a, noise) in enumerate(draws)
    ]
    assert importance(space, history) == pytest.approx({"a": 0.0, "b": 0.0, "noise": 0.0}, abs=0.02)


def test_few_trials_or_equal_values_tell_nothing() -> None:
    space, _ = read_parameters({"a": "0.0..1.0"})
    history = [
        TrialRecord(number=number, values={"a": number / 20}, state=TrialState.SUCCEEDED, value=1.0)
        for number in range(20)
    ]
    assert importance(space, history) == {"a": 0.0}
    assert importance(space, history[:9]) == {}
    names = [f"p{number}" for number in range(20)]
    many, _ = read_parameters(dict.fromkeys(names, "0.0..1.0"))
    rng = random.Random(1)
    few = [
        TrialRecord(number=n, values={name: rng.random() for name in names}, state=TrialState.SUCCEEDED, value=float(n))
        for n in range(12)
    ]
    assert importance(many, few) == {}
