"""Trials for several objectives come near the best compromises sooner than at random, and follow from what is known."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy.search.nondominated_sorting import best_of_all, crowding
from fairlead.policy.search.sampling import suggest
from fairlead.policy.search.trials import TrialRecord, TrialState, front
from fairlead.specs.formats.reading import parse
from fairlead.specs.search_space import Value
from fairlead.specs.sweep import MAX_TRIALS, Sweep

SPACE = "{x0: 0.0..1.0, x1: 0.0..1.0, x2: 0.0..1.0, x3: 0.0..1.0, x4: 0.0..1.0}"
Scores = list[tuple[float, float]]


def sweep(sampler: str = "nsga-ii", seed: int = 0, space: str = SPACE) -> Sweep:
    (found,) = parse(
        f"kind: Sweep\nname: a\nparameters: {space}\nobjectives: [cost, loss]\ntrials: 100\n"
        f"sampler: {sampler}\nseed: {seed}\ntrial: {{run: x}}\n"
    )
    assert isinstance(found, Sweep)
    return found


def zdt1(values: Mapping[str, Value]) -> tuple[float, float]:
    """The first problem of Zitzler, Deb and Thiele (2000), in five dimensions: the front is where all but x0 are 0."""
    first, *others = (float(values[f"x{place}"]) for place in range(5))
    slope = 1.0 + 9.0 * sum(others) / len(others)
    return first, slope * (1.0 - math.sqrt(first / slope))


def searched(wanted: Sweep) -> list[TrialRecord]:
    history: list[TrialRecord] = []
    for number in range(100):
        values = suggest(wanted, number, history)
        history.append(TrialRecord(number=number, values=values, state=TrialState.SUCCEEDED, scores=zdt1(values)))
    return history


def hypervolume(scores: Sequence[Sequence[float]]) -> float:
    """The area that is beaten, up to 1.1 and 6."""
    total, best = 0.0, 6.0
    for cost, loss in sorted((cost, loss) for cost, loss in scores if cost < 1.1):
        if loss < best:
            total, best = total + (1.1 - cost) * (best - loss), loss
    return total


def test_a_hundred_trials_come_further_than_at_random() -> None:
    found = [[hypervolume([each.scores for each in searched(sweep(way, seed))]) for seed in range(3)]
             for way in ("nsga-ii", "random")]  # fmt: skip
    assert statistics.median(found[0]) > 1.1 * statistics.median(found[1])


def test_the_values_of_a_trial_follow_from_the_seed_and_the_trials_before_it() -> None:
    history = searched(sweep())
    assert searched(sweep()) == history
    assert searched(sweep(seed=1))[50].values != history[50].values


def test_words_and_parameters_with_a_condition_are_bred_too() -> None:
    wanted = sweep(space="{x: 1..8, way: a | b, rate: 0.0..1.0 when way=a}")
    history: list[TrialRecord] = []
    for number in range(80):
        values = suggest(wanted, number, history)
        assert ("rate" in values) == (values["way"] == "a")
        scores = (float(values["x"]), (0.0 if values["way"] == "a" else 5.0) - float(values["x"]))
        history.append(TrialRecord(number=number, values=values, state=TrialState.SUCCEEDED, scores=scores))
    assert sum(each.values["way"] == "a" for each in history[40:]) > 30


def test_trials_at_the_ends_of_a_front_have_endless_room_around_them() -> None:
    assert crowding([(0.0, 3.0), (1.0, 1.0), (2.0, 0.5), (3.0, 0.0)]) == [
        math.inf,
        2 / 3 + 2.5 / 3,
        2 / 3 + 1.0 / 3,
        math.inf,
    ]


@given(
    scores=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=40)
    | st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40)
)
def test_the_front_is_all_that_no_other_beats(scores: list[tuple[int, ...]]) -> None:
    trials = [
        TrialRecord(number=number, values={}, state=TrialState.SUCCEEDED, scores=tuple(map(float, each)))
        for number, each in enumerate(scores)
    ]

    def is_beaten(each: TrialRecord) -> bool:
        return any(
            other.scores != each.scores and all(a <= b for a, b in zip(other.scores, each.scores, strict=True))
            for other in trials
        )

    unbeaten = {each.number for each in trials if not is_beaten(each)}
    assert {each.number for each in front(trials)} == unbeaten
    kept = best_of_all(trials, len(unbeaten))
    assert {each.number for each in kept} == unbeaten
    assert len(best_of_all(trials, 5)) == min(5, len(trials))


def test_the_front_of_as_many_trials_as_a_sweep_has_takes_no_time() -> None:
    trials = [
        TrialRecord(number=number, values={}, state=TrialState.SUCCEEDED, scores=(number, MAX_TRIALS - number))
        for number in range(MAX_TRIALS)
    ]
    began = time.monotonic()
    assert front(trials) == trials
    assert time.monotonic() - began < 3.0
