"""CMA-ES: what is drawn follows from the trials alone, and comes to where parameters have to be changed together."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from fairlead.policy.search.covariance_adaptation import WIDTHS, distribution_after
from fairlead.policy.search.sampling import suggest
from fairlead.policy.search.trials import TrialRecord, TrialState
from fairlead.specs.formats.reading import parse
from fairlead.specs.search_space import Value
from fairlead.specs.sweep import Sweep

RANGES = ", ".join(f"x{place}: 0.0..1.0" for place in range(3))


def sweep(parameters: str = RANGES, *, seed: int = 0, goal: str = "minimize", sampler: str = "cma-es") -> Sweep:
    text = (
        f"{{kind: Sweep, name: a, parameters: {{{parameters}}}, objective: {{metric: loss, goal: {goal}}}, "
        f"trials: 999, sampler: {sampler}, seed: {seed}, trial: {{run: x}}}}"
    )
    (found,) = parse(text)
    assert isinstance(found, Sweep)
    return found


def search(spec: Sweep, worth: Callable[[Mapping[str, Value]], float], number: int) -> list[TrialRecord]:
    history: list[TrialRecord] = []
    for trial in range(number):
        values = suggest(spec, trial, history)
        history.append(
            TrialRecord(number=trial, values=values, state=TrialState.SUCCEEDED, value=worth(values), step=1)
        )
    return history


def valley(values: Mapping[str, Value]) -> float:
    """A narrow valley along the diagonal, to which no coordinate points by itself."""
    x, y, z = (float(values[f"x{place}"]) for place in range(3))
    return 100 * (x - y) ** 2 + 100 * (y - z) ** 2 + (x + y + z - 0.9) ** 2


def best(history: list[TrialRecord]) -> float:
    return min(each.value or 0.0 for each in history)


def test_it_follows_a_valley_that_values_drawn_evenly_miss() -> None:
    bests = {
        sampler: [best(search(sweep(seed=seed, sampler=sampler), valley, 250)) for seed in range(4)]
        for sampler in ("cma-es", "random")
    }
    assert max(bests["cma-es"]) < 0.05 * min(bests["random"])


def test_the_distribution_narrows_around_the_best_place_and_is_no_longer_round() -> None:
    history = search(sweep(), valley, 400)
    places = [[float(each.values[f"x{place}"]) for place in range(3)] for each in history]
    order = sorted(range(len(places)), key=lambda place: history[place].value or 0.0)
    found = distribution_after(3, places, order)
    assert found.mean == pytest.approx([0.3, 0.3, 0.3], abs=0.01)
    assert WIDTHS[0] <= found.step_size < 0.05
    covariance = [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in found.factor] for row in found.factor
    ]
    correlation = covariance[0][1] / math.sqrt(covariance[0][0] * covariance[1][1])
    assert correlation > 0.8


def test_what_is_drawn_follows_from_the_trials_whatever_their_scale() -> None:
    history = search(sweep(), valley, 30)
    again = [replace(each, value=math.log(each.value or 1.0)) for each in history]
    assert suggest(sweep(), 30, history) == suggest(sweep(), 30, again) == suggest(sweep(), 30, list(history))
    upside_down = [replace(each, value=-(each.value or 0.0)) for each in history]
    assert suggest(sweep(goal="maximize"), 30, upside_down) == suggest(sweep(), 30, history)
    assert suggest(sweep(seed=1), 30, history) != suggest(sweep(), 30, history)


def test_trials_that_run_or_failed_change_nothing() -> None:
    history = search(sweep(), valley, 30)
    others = [
        TrialRecord(number=30, values=history[0].values, state=TrialState.ACTIVE),
        TrialRecord(number=31, values=history[1].values, state=TrialState.FAILED),
    ]
    assert suggest(sweep(), 32, [*history, *others]) == suggest(sweep(), 32, history)


def test_words_and_conditions_are_drawn_with_the_values_above_them() -> None:
    spec = sweep("depth: 1..3, width: log 1..64, kind: a | b, rate: 0.0..1.0 when depth=2|3, slope: 1..2 when kind=b")
    history = search(spec, lambda values: float(values["width"]), 40)
    assert {each.values["kind"] for each in history} == {"a", "b"}
    for each in history:
        assert ("rate" in each.values) == (each.values["depth"] != 1)
        assert ("slope" in each.values) == (each.values["kind"] == "b")
        assert 1 <= float(each.values["width"]) <= 64
