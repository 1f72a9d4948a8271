"""How often the ranks exchange, and what they learn from it."""

from collections.abc import Sequence
from typing import Any

import pytest

from fairlead.runtime.agreement import LONGEST_GAP, Agreement, ExchangeResult
from fairlead.runtime.channels import Alone
from fairlead.runtime.errors import AgreementFailed


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TwoRanks:
    """A channel to a peer that says what it was told to; each exchange takes its cost."""

    world_size = 2

    def __init__(self, clock: Clock, *, rank: int, cost_s: float) -> None:
        self.rank = rank
        self._clock = clock
        self.cost_s = cost_s
        self.peer = [0, 0, 0, 0, 0, 0, -(10**9), 0, 0]

    def maximum(self, vector: Sequence[int]) -> list[int]:
        self._clock.now += self.cost_s
        return [max(own, other) for own, other in zip(vector, self.peer, strict=True)]

    def gather(self, value: Any) -> list[Any]:
        raise AssertionError("agreement uses the maximum alone")

    def close(self) -> None:
        """Nothing is held."""


def run_steps(agreement: Agreement, clock: Clock, *, step_s: float, num_steps: int) -> list[int]:
    """Steps at which an exchange was made."""
    exchanged = []
    for step in range(1, num_steps + 1):
        clock.now += step_s
        if agreement.comes_now():
            agreement.agree(step, stop=False, due=False, busy=False, over=False)
            exchanged.append(step)
    return exchanged


def test_every_step_when_it_takes_two_hundred_times_as_long_as_the_exchange() -> None:
    clock = Clock()
    agreement = Agreement(TwoRanks(clock, rank=0, cost_s=0.001), clock=clock)
    assert run_steps(agreement, clock, step_s=0.201, num_steps=20) == list(range(1, 21))


def test_fast_steps_are_exchanged_at_growing_distances_within_half_a_percent() -> None:
    clock = Clock()
    agreement = Agreement(TwoRanks(clock, rank=0, cost_s=0.0005), clock=clock)
    exchanged = run_steps(agreement, clock, step_s=0.001, num_steps=1000)
    assert agreement.gap == 100
    assert exchanged[:5] == [1, 3, 7, 15, 31]
    late = [step for step in exchanged if step > 200]
    assert len(late) * 0.0005 <= 0.005 * 800 * 0.001 * 1.05


def test_waiting_for_other_ranks_counts_but_no_notice_waits_longer_than_a_quarter_of_a_second_for_that() -> None:
    clock = Clock()
    channel = TwoRanks(clock, rank=0, cost_s=0.00001)
    agreement = Agreement(channel, clock=clock)
    channel.cost_s = 0.0007
    run_steps(agreement, clock, step_s=0.01, num_steps=1000)
    assert agreement.gap == 15
    channel.cost_s = 0.1
    run_steps(agreement, clock, step_s=0.1, num_steps=100)
    assert agreement.gap == 2
    run_steps(agreement, clock, step_s=2.0, num_steps=20)
    assert agreement.gap == 1


def test_steps_that_grow_slow_again_are_exchanged_each_time() -> None:
    clock = Clock()
    agreement = Agreement(TwoRanks(clock, rank=0, cost_s=0.0005), clock=clock)
    run_steps(agreement, clock, step_s=0.001, num_steps=1000)
    run_steps(agreement, clock, step_s=1.0, num_steps=60)
    assert agreement.gap == 1


def test_gap_has_an_upper_bound() -> None:
    clock = Clock()
    agreement = Agreement(TwoRanks(clock, rank=0, cost_s=1.0), clock=clock)
    run_steps(agreement, clock, step_s=1e-6, num_steps=10_000)
    assert agreement.gap == LONGEST_GAP


def test_other_ranks_take_the_gap_of_rank_0() -> None:
    clock = Clock()
    channel = TwoRanks(clock, rank=1, cost_s=1.0)
    agreement = Agreement(channel, clock=clock)
    channel.peer = [0, 0, 0, 0, 7, 1, -1, 0, 0]
    assert agreement.comes_now()
    agreement.agree(1, stop=False, due=False, busy=False, over=False)
    assert agreement.gap == 7


def test_one_notice_anywhere_stops_all() -> None:
    clock = Clock()
    channel = TwoRanks(clock, rank=0, cost_s=0.001)
    agreement = Agreement(channel, clock=clock)
    channel.peer = [1, 0, 1, 1, 0, 5, -5, 0, 0]
    verdict = agreement.agree(5, stop=False, due=True, busy=False, over=False)
    assert verdict == ExchangeResult(stop=True, due=True, busy=True, over=True)


def test_ranks_at_different_steps_are_an_error() -> None:
    clock = Clock()
    channel = TwoRanks(clock, rank=0, cost_s=0.001)
    agreement = Agreement(channel, clock=clock)
    channel.peer = [0, 0, 0, 0, 0, 6, -6, 0, 0]
    with pytest.raises(AgreementFailed, match="step 5 on one rank and for step 6 on another"):
        agreement.agree(5, stop=False, due=False, busy=False, over=False)


def test_a_run_of_one_rank_pays_nothing() -> None:
    clock = Clock()
    agreement = Agreement(Alone(), clock=clock)
    assert run_steps(agreement, clock, step_s=1e-6, num_steps=5) == [1, 2, 3, 4, 5]
    assert agreement.cost_s == 0.0
