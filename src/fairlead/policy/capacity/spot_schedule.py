"""Decides under a deadline whether to wait, to run on spot or on on-demand nodes, from observations of spot.

Assumes that on-demand is always available, and that a state that has lasted for n ticks, spot or its absence, ends in
the next one with probability 1/(n + 1): Laplace's rule of succession, nothing fitted. Under that belief a backward
dynamic programme finds the least expected cost for every time left, slack, machine and age. Safety is a constraint, not
part of the expectation: no wait and no spot that would leave less slack than a change to on-demand takes.

Slack is time left minus work left. A change-over is the time of a start before work continues, including lost work.
Ticks are charged whole, and spot is lost between them. The loop evaluates this for every run that has a deadline and
may use spot.
"""

import math
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fairlead.frozen import dataclass

# Ages of availability or outage are distinguished up to these, in ticks; Fibonacci numbers, as ages matter by ratio.
AGES = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)
# Higher than the cost of any run; the cost of leaving too little slack.
_NEVER = np.float32(1e9)


class CapacityUse(IntEnum):
    """The capacity that a run uses for the next tick."""

    NOTHING = 0
    SPOT = 1
    ON_DEMAND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotProblem:
    """The problem that a table is solved for; equal problems share one.

    Attributes:
        tick_s: Seconds between decisions.
        step_s: The resolution of slack in seconds; ``tick_s`` is a multiple of it.
        changeover_s: The cost of each start in seconds; rounded up to whole steps.
        spot_price: Dollars, or any unit, per hour on spot.
        on_demand_price: The same on on-demand.
        num_ticks: The number of ticks from start to deadline.
        slack_s: The maximum slack: that of the start.
        reserve_s: Slack kept beyond what a change to on-demand takes, in seconds.
    """

    tick_s: float
    step_s: float
    changeover_s: float
    spot_price: float
    on_demand_price: float
    num_ticks: int
    slack_s: float
    reserve_s: float = 0.0

    @property
    def steps_of_tick(self) -> int:
        """Return the steps of slack per tick."""
        return max(1, round(self.tick_s / self.step_s))

    @property
    def steps_of_changeover(self) -> int:
        """Return the steps of slack that a start takes."""
        return math.ceil(self.changeover_s / self.step_s - 1e-9)

    @property
    def steps_of_reserve(self) -> int:
        """Return the steps of slack that are kept in reserve."""
        return math.ceil(self.reserve_s / self.step_s - 1e-9)

    @property
    def steps_of_slack(self) -> int:
        """Return the maximum steps of slack."""
        return max(0, math.floor(self.slack_s / self.step_s + 1e-9))

    @property
    def pending(self) -> tuple[int, ...]:
        """Return the possible remaining steps of a change-over at the beginning of a tick."""
        left = range(self.steps_of_changeover - self.steps_of_tick, 0, -self.steps_of_tick)
        return (0, *sorted(left))


@dataclass(frozen=True, slots=True)
class SpotSchedule:
    """The cheapest use for every state, and the expected cost from the start."""

    problem: SpotProblem
    uses: NDArray[np.uint8]
    costs: NDArray[np.float32]

    def use(
        self, *, ticks_left: int, slack_s: float, now: CapacityUse, pending_s: float, spot: bool, age: int
    ) -> CapacityUse:
        """Return the use for the next tick.

        Args:
            ticks_left: Until the deadline, including the coming one.
            slack_s: Time left minus work left.
            now: What the run is on; spot that has just ended counts as nothing.
            pending_s: The rest of its change-over.
            spot: Whether spot is available.
            age: For how many ticks that has been so, from 1.
        """
        problem = self.problem
        slack = math.floor(slack_s / problem.step_s + 1e-9)
        slack = min(slack, problem.steps_of_slack)
        if slack < 0 or ticks_left < 1:
            return CapacityUse.ON_DEMAND
        machine = _machine(problem, now, math.ceil(pending_s / problem.step_s - 1e-9))
        row = _age(age) + (0 if spot else len(AGES))
        return CapacityUse(int(self.uses[min(ticks_left, problem.num_ticks), machine, row, slack]))

    def expected_cost(self, *, spot: bool, age: int) -> float:
        """Return the expected cost of the whole run from its start, in the unit of the prices."""
        return float(self.costs[_age(age) + (0 if spot else len(AGES)), -1])


@lru_cache(maxsize=16)
def solve(problem: SpotProblem) -> SpotSchedule:
    """Solve the dynamic programme backwards; takes about a second for a deadline of days at a step of minutes."""
    num_states, num_slacks = 2 * len(AGES), problem.steps_of_slack + 1
    pending = problem.pending
    num_machines = 1 + 2 * len(pending)
    uses = np.zeros((problem.num_ticks + 1, num_machines, num_states, num_slacks), dtype=np.uint8)
    costs = np.zeros((num_machines, num_states, num_slacks), dtype=np.float32)
    for ticks_left in range(1, problem.num_ticks + 1):
        after = _expected(costs, len(pending))
        costs = np.empty_like(after)
        waiting = _shifted(
            after[0], problem.steps_of_tick, least=problem.steps_of_changeover + problem.steps_of_reserve
        )
        fresh, others = problem.steps_of_changeover, (ticks_left - 1) * problem.steps_of_tick
        on_spot = _continued(problem, after, CapacityUse.SPOT, fresh, others)
        on_demand = _continued(problem, after, CapacityUse.ON_DEMAND, fresh, others)
        for machine, (use, left) in enumerate(_machines(pending)):
            choices = [waiting, on_spot, on_demand]
            if use is not CapacityUse.NOTHING:
                choices[use] = _continued(problem, after, use, left, others)
            stacked = np.stack(choices)
            stacked[CapacityUse.SPOT, len(AGES) :] = np.inf
            # Where no choice is safe any more, on-demand is the least unsafe.
            best = np.where(stacked.min(axis=0) >= _NEVER, np.uint8(CapacityUse.ON_DEMAND), stacked.argmin(axis=0))
            uses[ticks_left, machine] = best
            costs[machine] = np.take_along_axis(stacked, best[None].astype(np.intp), axis=0)[0]
        # With this much slack no work is left.
        done = ticks_left * problem.steps_of_tick
        costs[:, :, done:] = 0.0
        uses[ticks_left, :, :, done:] = CapacityUse.NOTHING
    return SpotSchedule(problem, uses, costs[0])


def _machines(pending: tuple[int, ...]) -> Iterator[tuple[CapacityUse, int]]:
    yield CapacityUse.NOTHING, 0
    for use in (CapacityUse.SPOT, CapacityUse.ON_DEMAND):
        yield from ((use, left) for left in pending)


def _machine(problem: SpotProblem, use: CapacityUse, left: int) -> int:
    if use is CapacityUse.NOTHING:
        return 0
    pending = problem.pending
    level = next((i for i, size in enumerate(pending) if size >= left), len(pending) - 1)
    return 1 + level + (len(pending) if use is CapacityUse.ON_DEMAND else 0)


def _age(ticks: int) -> int:
    """Return the bucket of an age."""
    return max(i for i, least in enumerate(AGES) if least <= max(ticks, 1))


def _continued(
    problem: SpotProblem, after: NDArray[np.float32], use: CapacityUse, left: int, others: int
) -> NDArray[np.float32]:
    """Return the cost of a tick on a machine with that much of its change-over left, and of what follows.

    Args:
        others: Steps in the ticks after this one; with that much slack the run is over and needs no reserve.
    """
    served = min(left, problem.steps_of_tick)
    rest = left - served
    on_spot = use is CapacityUse.SPOT
    price = problem.spot_price if on_spot else problem.on_demand_price
    least = min(problem.steps_of_changeover + problem.steps_of_reserve, others) if on_spot else rest
    following = _shifted(after[_machine(problem, use, rest)], served, least=least)
    return following + np.float32(price * problem.tick_s / 3600.0)


def _shifted(after: NDArray[np.float32], steps: int, *, least: int) -> NDArray[np.float32]:
    """Return costs by slack before so many steps of it are used, with at least ``least`` steps left after."""
    shifted = np.full_like(after, _NEVER)
    low = max(least, 0)
    if low + steps < after.shape[-1]:
        shifted[:, low + steps :] = after[:, low : after.shape[-1] - steps]
    return shifted


def _expected(costs: NDArray[np.float32], num_pending: int) -> NDArray[np.float32]:
    """Return costs before it is known whether spot lasts; a machine on spot is lost with it."""
    num = len(AGES)
    expected = np.empty_like(costs)
    for i, least in enumerate(AGES):
        above = AGES[i + 1] if i + 1 < num else None
        middle = least if above is None else math.sqrt(least * (above - 1))
        ends = np.float32(1.0 / (middle + 1.0))
        older = np.float32(0.0 if above is None else 1.0 / (above - least))
        for first, other in ((0, num), (num, 0)):
            stays = costs[:, first + i]
            if above is not None:
                stays = (1 - older) * stays + older * costs[:, first + i + 1]
            expected[:, first + i] = (1 - ends) * stays + ends * costs[:, other]
        # The end of spot leaves its run without a machine.
        stays = costs[1 : 1 + num_pending, i]
        if above is not None:
            stays = (1 - older) * stays + older * costs[1 : 1 + num_pending, i + 1]
        expected[1 : 1 + num_pending, i] = (1 - ends) * stays + ends * costs[0, num]
    return expected
