"""Metrics over time: which points count, and which are left of many."""

from hypothesis import given
from hypothesis import strategies as st

from fairlead.specs.goal import Goal
from fairlead.state.series import Point, best, continued, thinned, usual_goal

VALUES = st.lists(st.floats(-1e6, 1e6), max_size=300)


def curve(values: list[float], *, attempt: int = 0, first: int = 0) -> list[Point]:
    return [
        Point(at=float(place), step=first + place, value=value, attempt=attempt) for place, value in enumerate(values)
    ]


def test_an_attempt_replaces_what_it_does_again() -> None:
    points = [*curve([5, 4, 3, 2]), *curve([2.5, 1], attempt=1, first=3)]
    assert [(point.step, point.value) for point in continued(points)] == [(0, 5), (1, 4), (2, 3), (3, 2.5), (4, 1)]


@given(VALUES, st.integers(4, 50))
def test_of_many_points_ends_and_extremes_are_left(values: list[float], most: int) -> None:
    points = curve(values)
    left = thinned(points, most)
    assert len(left) <= max(most, 4)
    assert [point.step for point in left] == sorted(point.step for point in left if point.step is not None)
    if points:
        assert (left[0], left[-1]) == (points[0], points[-1])
        for goal in Goal:
            assert best(left, goal) == best(points, goal)


def test_less_is_better_of_losses_and_errors_and_more_of_all_else() -> None:
    assert [usual_goal(name) for name in ("val_loss", "error", "accuracy", "f1")] == [
        Goal.MINIMIZE, Goal.MINIMIZE, Goal.MAXIMIZE, Goal.MAXIMIZE,
    ]  # fmt: skip
