"""Which trials TPE takes for the best: those with the best values after as many steps."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.samplers import FUNCTIONS, sweep
from fairlead.policy.search.pruning import RungReport
from fairlead.policy.search.sampling import LEAST_COMPARED, best_first, suggest
from fairlead.policy.search.trials import TrialRecord, TrialState
from fairlead.specs.goal import Goal
from fairlead.specs.sweep import Objective, Sampler, Sweep

SPEC = sweep(Sampler.TPE, FUNCTIONS["branin"][1], 0)
STEPS = (3, 9, 27)


def trials(curves: list[list[float]]) -> tuple[list[TrialRecord], list[RungReport]]:
    """Trials with these values at rungs, of which those with all three came to their ends there."""
    records = [
        TrialRecord(
            number=number,
            values={each.name: each.at((number + 0.5) / len(curves)) for each in SPEC.space},
            state=TrialState.SUCCEEDED if len(curve) == len(STEPS) else TrialState.PAUSED,
            value=curve[-1],
            step=STEPS[len(curve) - 1],
        )
        for number, curve in enumerate(curves)
    ]
    reports = [
        RungReport(trial=number, rung=rung, value=value)
        for number, curve in enumerate(curves)
        for rung, value in enumerate(curve[:-1] if len(curve) == len(STEPS) else curve)
    ]
    return records, reports


def order(spec: Sweep, records: list[TrialRecord], reports: list[RungReport]) -> list[int]:
    return [each.number for each in best_first(spec, records, reports)]


def test_the_few_that_came_to_the_end_are_compared_with_the_others_where_enough_have_been() -> None:
    curves = [[9.0, 5.0 + number / 10] for number in range(LEAST_COMPARED)] + [[8.0, 5.35, 4.0], [1.0]]
    records, reports = trials(curves)
    assert order(SPEC, records, reports) == [0, 1, 2, 3, 8, 4, 5, 6, 7, 9]


def test_where_enough_came_to_the_end_their_last_values_decide() -> None:
    curves = [[1.0, number / 10, -number / 10] for number in range(LEAST_COMPARED)] + [[0.0, -1.0], [-1.0], [-2.0]]
    records, reports = trials(curves)
    assert order(SPEC, records, reports) == [*reversed(range(LEAST_COMPARED)), 8, 10, 9]


def test_a_value_that_came_late_is_not_compared_and_the_goal_turns_the_order() -> None:
    curves = [[float(number)] for number in range(LEAST_COMPARED + 1)]
    records, reports = trials(curves)
    reports[0] = replace(reports[0], is_late=True)
    assert order(SPEC, records, reports) == [*range(1, LEAST_COMPARED + 1), 0]
    most = replace(SPEC, objective=Objective(metric="loss", goal=Goal.MAXIMIZE))
    assert order(most, records, reports) == [*range(LEAST_COMPARED, 0, -1), 0]


def test_tpe_chooses_by_values_at_rungs() -> None:
    curves = [[float(number), float(number)] for number in range(11)] + [[99.0, 99.0, 98.0]]
    records, reports = trials(curves)
    assert suggest(SPEC, 12, records, reports) != suggest(SPEC, 12, records)


@given(st.lists(st.lists(st.floats(-9, 9), min_size=1, max_size=3), max_size=40))
def test_all_that_ended_are_ordered_once_and_without_rungs_by_their_last_values(curves: list[list[float]]) -> None:
    records, reports = trials(curves)
    assert sorted(order(SPEC, records, reports)) == list(range(len(curves)))
    whole = [replace(each, state=TrialState.SUCCEEDED) for each in records]
    assert order(SPEC, whole, []) == sorted(range(len(curves)), key=lambda number: (curves[number][-1], number))
