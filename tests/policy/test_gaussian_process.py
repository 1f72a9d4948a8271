"""The Gaussian process: what is drawn follows from the trials, and comes near the best place in few of them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.samplers import FUNCTIONS, branin, record, search, sweep
from fairlead.policy.search.gaussian_process import MOST_TRIALS, Process, _chosen, _likelihood
from fairlead.policy.search.sampling import suggest
from fairlead.policy.search.trials import TrialRecord, TrialState
from fairlead.specs.goal import Goal
from fairlead.specs.search_space import Value
from fairlead.specs.sweep import Objective, Sampler, Sweep

RANGES = FUNCTIONS["branin"][1]


def history_of(spec: Sweep, number: int) -> list[TrialRecord]:
    history: list[TrialRecord] = []
    for trial in range(number):
        values = suggest(spec, trial, history)
        history.append(record(trial, values, branin(values)))
    return history


@pytest.mark.parametrize("name", ["branin", "mixed"])
def test_in_few_trials_it_comes_nearer_than_any_other_sampler(name: str) -> None:
    worth, parameters = FUNCTIONS[name]
    bests = {
        sampler: [search(sampler, parameters, worth, 30, seed) for seed in range(3)]
        for sampler in (Sampler.GP, Sampler.TPE, Sampler.RANDOM)
    }
    assert max(bests[Sampler.GP]) < min(min(bests[Sampler.TPE]), min(bests[Sampler.RANDOM]))


def test_what_is_drawn_follows_from_the_trials_alone() -> None:
    spec = sweep(Sampler.GP, RANGES, 0)
    history = history_of(spec, 12)
    assert suggest(spec, 12, history) == suggest(spec, 12, list(history))
    other = replace(spec, seed=1)
    assert any(suggest(other, n, history[:n]) != suggest(spec, n, history[:n]) for n in range(8, 12))
    upside_down = [replace(each, value=-(each.value or 0.0)) for each in history]
    most = replace(spec, objective=Objective(metric="loss", goal=Goal.MAXIMIZE))
    assert suggest(most, 12, upside_down) == suggest(spec, 12, history)


def test_trials_at_once_go_to_several_places() -> None:
    spec = sweep(Sampler.GP, RANGES, 0)
    history = history_of(spec, 12)
    places: list[dict[str, Value]] = []
    for number in range(12, 16):
        places.append(suggest(spec, number, history))
        history.append(TrialRecord(number=number, values=places[-1], state=TrialState.ACTIVE))
    far = [math.dist(list(map(float, a.values())), list(map(float, b.values()))) for a in places for b in places]
    assert sorted(far)[4] > 0.01  # beyond the four that are compared with themselves


def test_trials_that_failed_change_nothing_and_pruned_ones_are_never_good() -> None:
    spec = sweep(Sampler.GP, RANGES, 0)
    history = history_of(spec, 12)
    values = {"x0": 0.9, "x1": 0.9}
    failed = TrialRecord(number=12, values=values, state=TrialState.FAILED, value=-100.0, step=1)
    assert suggest(spec, 13, [*history, failed]) == suggest(spec, 13, history)
    pruned = replace(failed, state=TrialState.PRUNED)
    found = suggest(spec, 13, [*history, pruned])
    assert math.dist((float(found["x0"]), float(found["x1"])), (0.9, 0.9)) > 0.1


def test_values_are_those_that_there_are() -> None:
    parameters = {"depth": "1..3", "width": "log 8..64", "act": "relu | tanh", "slope": "0.0..0.5 when act=relu"}
    spec = sweep(Sampler.GP, parameters, 0)
    history: list[TrialRecord] = []
    for number in range(20):
        values = suggest(spec, number, history)
        assert values["depth"] in (1, 2, 3)
        assert isinstance(values["width"], int)
        assert 8 <= values["width"] <= 64
        assert ("slope" in values) == (values["act"] == "relu")
        history.append(record(number, values, float(values["depth"]) + (values["act"] == "relu")))
    assert history[-1].values["depth"] == 1


def test_equal_values_of_all_trials_are_no_trouble() -> None:
    spec = sweep(Sampler.GP, RANGES, 0)
    plain = replace(spec, sampler=Sampler.RANDOM)
    same = [record(number, suggest(plain, number, []), 1.0) for number in range(12)]
    assert set(suggest(spec, 12, same)) == {"x0", "x1"}
    twice = [record(number, {"x0": 0.5, "x1": 0.5}, float(number)) for number in range(12)]
    assert set(suggest(spec, 12, twice)) == {"x0", "x1"}


def test_of_many_trials_the_best_and_the_newest_are_learned_from() -> None:
    losses = [float(number % 500) for number in range(1000)]
    chosen = _chosen(losses)
    assert len(chosen) == MOST_TRIALS
    assert {0, 500, 1, 501, 999, 998} <= set(chosen)
    assert chosen == sorted(chosen)


def test_the_mean_goes_through_what_was_seen_and_is_unsure_elsewhere() -> None:
    x = np.array([[0.1], [0.4], [0.9]])
    y = np.array([1.0, -1.0, 0.5])
    process = Process.of(x, y, np.log(np.array([0.2, 1e-6])))
    mean, variance = process.predict(np.array([[0.1], [0.4], [0.9], [0.65]]))
    assert mean[:3] == pytest.approx(y, abs=1e-4)
    assert variance[:3] == pytest.approx(0.0, abs=1e-4)
    assert variance[3] > 0.1


def test_the_slope_is_that_of_the_likelihood() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.random((8, 2)), rng.normal(size=8)
    differences = (x[:, None, :] - x[None, :, :]) ** 2
    logs = np.log(np.array([0.3, 0.7, 0.01]))
    found = _likelihood(differences, y, logs)
    assert found is not None
    for place in range(3):
        step = np.eye(3)[place] * 1e-5
        above, below = _likelihood(differences, y, logs + step), _likelihood(differences, y, logs - step)
        assert above is not None
        assert below is not None
        assert found[1][place] == pytest.approx((above[0] - below[0]) / 2e-5, rel=1e-4, abs=1e-6)


def test_where_trials_are_pruned_it_learns_from_them_too() -> None:
    spec = sweep(Sampler.GP, RANGES, 0)
    plain = replace(spec, sampler=Sampler.RANDOM)
    values = [suggest(plain, number, []) for number in range(12)]
    pruned = [
        TrialRecord(number=number, values=each, state=TrialState.PRUNED, value=branin(each), step=16)
        for number, each in enumerate(values)
    ]
    assert suggest(spec, 12, pruned) != suggest(plain, 12, pruned)
