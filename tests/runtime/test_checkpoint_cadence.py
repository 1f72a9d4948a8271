"""A kill at any instant costs no more than the interval, and the training waits only where it has to."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.runtime.checkpoint.cadence import Cadence


@dataclass(slots=True)
class Trained:
    """What came of a training on a virtual clock.

    Attributes:
        begun: Steps of which a save was begun.
        worst_steps: The most steps that a kill at any instant would have cost.
        worst_s: The same in seconds of training, up to the end of the step in which it came.
        waited_s: How long the training stood still, the blocking part of saves included.
    """

    begun: list[int]
    worst_steps: int = 0
    worst_s: float = 0.0
    waited_s: float = 0.0


def train(
    *,
    num_steps: int,
    step_s: float,
    save_s: float,
    blocked_s: float = 0.0,
    every_s: float | None = None,
    every_steps: int | None = None,
) -> Trained:
    """Train on a virtual clock as a session of one rank does."""
    now = 0.0
    cadence = Cadence(every_s=every_s, every_steps=every_steps, step=0, clock=lambda: now)
    trained = Trained(begun=[])
    kept, kept_at = 0, 0.0
    saving: tuple[int, float, float] | None = None

    def finish(at: float) -> None:
        """The save under way ends, if it does so by then."""
        nonlocal saving, kept, kept_at
        if saving is not None and saving[2] <= at:
            kept, kept_at, _ = saving
            saving = None
            cadence.end(seconds=blocked_s + save_s, blocked_s=blocked_s)

    for step in range(1, num_steps + 1):
        if saving is not None and saving[2] < now + step_s:
            finish(now + step_s)
        now += step_s
        trained.worst_steps = max(trained.worst_steps, step - kept)
        trained.worst_s = max(trained.worst_s, now - trained.waited_s - kept_at)
        over, due = cadence.exceeds_interval(step), cadence.due(step)
        if saving is not None:
            if not over:
                continue
            waited = saving[2] - now
            now = saving[2]
            finish(now)
            cadence.add_wait(waited)
            cadence.agree_idle()
            trained.waited_s += waited
            continue
        cadence.agree_idle()
        assert every_steps is None or cadence.at_limit(step) == over
        if over or due:
            cadence.begin(step)
            trained.begun.append(step)
            stood_s = blocked_s + (save_s if over else 0.0)
            saving = (step, now - trained.waited_s, now + blocked_s + save_s)
            now += stood_s
            cadence.add_wait(stood_s)
            trained.waited_s += stood_s
            if over:
                finish(now)
                cadence.agree_idle()
    return trained


@given(
    every_steps=st.integers(1, 30),
    step_s=st.floats(0.001, 10.0),
    save_s=st.floats(0.0, 100.0),
    blocked_s=st.floats(0.0, 5.0),
)
def test_no_kill_costs_more_steps_than_the_interval(
    every_steps: int, step_s: float, save_s: float, blocked_s: float
) -> None:
    trained = train(
        num_steps=5 * every_steps + 7, every_steps=every_steps, step_s=step_s, save_s=save_s, blocked_s=blocked_s
    )
    assert trained.worst_steps <= every_steps


@given(step_s=st.floats(0.01, 1.0), every=st.floats(1.5, 200.0), save_s=st.floats(0.0, 100.0))
def test_no_kill_costs_more_seconds_than_the_interval(step_s: float, every: float, save_s: float) -> None:
    every_s = every * step_s
    trained = train(num_steps=300, every_s=every_s, step_s=step_s, save_s=save_s)
    assert trained.worst_s <= every_s + 1e-6


def test_a_save_that_fits_into_the_interval_is_hidden_after_the_first() -> None:
    trained = train(num_steps=500, every_steps=100, step_s=1.0, save_s=40.0, blocked_s=0.5)
    assert trained.begun == [50, 100, 150, 200, 250, 300, 350, 400, 450, 500]
    assert trained.waited_s == pytest.approx(10 * 0.5)


@pytest.mark.parametrize("every_steps", [1, 5, 20, 100])
def test_quick_saves_are_of_multiples_of_the_interval_after_a_first_one_at_half_of_it(every_steps: int) -> None:
    trained = train(num_steps=4 * every_steps, every_steps=every_steps, step_s=1.0, save_s=0.04 * every_steps)
    multiples = [every_steps * number for number in range(1, 5)]
    assert trained.begun == sorted({(every_steps + 1) // 2, *multiples})
    assert trained.worst_steps <= every_steps
    assert trained.waited_s <= 0.05 * 4 * every_steps + 1e-9


def test_a_save_of_more_than_a_twentieth_of_the_interval_begins_earlier() -> None:
    trained = train(num_steps=400, every_steps=100, step_s=1.0, save_s=8.0)
    assert trained.begun == [50, 140, 230, 320]
    assert trained.waited_s == 0.0


def test_a_save_longer_than_the_interval_is_waited_for_at_its_end() -> None:
    trained = train(num_steps=50, every_steps=10, step_s=1.0, save_s=30.0)
    assert trained.begun[:4] == [5, 15, 25, 35]
    assert trained.worst_steps == 10


def test_a_failed_save_is_not_tried_again_at_each_step() -> None:
    now = 0.0
    cadence = Cadence(every_s=None, every_steps=10, step=0, clock=lambda: now)
    cadence.begin(10)
    cadence.end(seconds=1.0, blocked_s=1.0)
    assert [step for step in range(11, 25) if cadence.exceeds_interval(step)] == [20, 21, 22, 23, 24]


def test_without_an_interval_nothing_is_due() -> None:
    cadence = Cadence(every_s=None, every_steps=None, step=0)
    assert [cadence.due(10**9), cadence.exceeds_interval(10**9), cadence.at_limit(10**9)] == [False, False, False]


def test_a_run_that_resumes_counts_from_where_it_resumed() -> None:
    cadence = Cadence(every_s=None, every_steps=10, step=73, clock=lambda: 0.0)
    assert [step for step in range(74, 90) if cadence.at_limit(step)] == list(range(83, 90))
