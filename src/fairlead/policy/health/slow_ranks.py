"""Finds the rank of a synchronous gang that computes more slowly than its peers, step by step.

The rank's own time of a step is its computation without any wait for others. Two effects that are no fault of the
machine are removed from its logarithm: the stage (the median of the same stage's other data ranks is subtracted) and
the data (all stages of a data rank process the same samples, so that part which the other stages predict is
subtracted). A CUSUM of the log-likelihood ratio of "slower by a factor" against "like its peers" then accumulates the
remainder (Page, "Continuous inspection schemes", Biometrika 1954).

Only the standard library is used, since the supervisor of one machine has no other.

See decision 214.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

from fairlead.frozen import dataclass

SLOWDOWN = 1.05
"""The factor between which and 1 the test decides."""
WINDOW = 32
"""Steps from which noise and the effect of data are estimated."""
EARLY, EARLY_NOISE, LEAST_NOISE = 8, 0.01, 0.005
"""Steps before which the larger least noise holds, and the two least values."""
FALSE_ALARM_ODDS = 100_000
"""An alarm needs evidence of this ratio for every rank of the gang."""
STEPS_NEEDED = 3
"""Steps that an alarm takes at least, whatever they show: one pause is no slow rank."""
LEAST_CHANGES = 3
"""Changes from step to step that are needed before anything counts as evidence."""
LEAST_EXCESS = 0.7
"""The least part of ``SLOWDOWN``, as a logarithm, by which the rank has to be slower in the median."""
NOISE_EVERY = 8
"""Steps between two estimates of one rank's noise, which take turns."""
MAD_TO_SIGMA, P90_TO_SIGMA = 1.4826, 1.6449
"""Ratios of a normal deviation to its median and 90th percentile of absolute values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank that is slower than its peers.

    Attributes:
        rank: Its index in the values that were observed.
        factor: Its own time as a multiple of its peers', above 1.
        since: The observed step with which it began, counted from 0.
    """

    rank: int
    factor: float
    since: int


class SlowRankDetector:
    """The state of the test of one gang.

    Args:
        num_data: Data ranks, of which at least two are compared; with one nothing is ever detected.
        num_stages: Stages of the pipeline, 1 without one.
        slowdown: The factor between which and 1 the test decides.
        least_steps: Steps that an alarm takes at least.
    """

    def __init__(
        self, num_data: int, num_stages: int = 1, *, slowdown: float = SLOWDOWN, least_steps: int = STEPS_NEEDED
    ) -> None:
        self._num_data = num_data
        self._num_stages = num_stages
        num = num_data * num_stages
        self._limit = math.log(max(num, 1) * FALSE_ALARM_ODDS)
        self._clip = self._limit / least_steps * (1 + 1e-9)
        self._shift = math.log(slowdown)
        self._steps = 0
        self._last: list[float] = []
        self._last_shared: list[float] = []
        self._last_rest: list[float] = []
        # Of each stage the changes from step to step: sums of x*y and x*x, where x is what the other stages share.
        self._products: list[deque[tuple[float, float]]] = [deque(maxlen=WINDOW) for _ in range(num_stages)]
        self._changes: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(num)]
        self._levels: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(num)]
        self._rank_noise = [0.0] * num
        self._noise = EARLY_NOISE
        self._score = [0.0] * num
        self._since = [0] * num
        self._excess: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(num)]
        self._slow: int | None = None

    def observe(self, own_s: Sequence[float]) -> SlowRank | None:
        """Take the own times of one step in, and return the rank that is slow now, if any.

        Args:
            own_s: Seconds of each rank, positive, with the stages of a data rank side by side: the rank of data rank d
                and stage s is ``d * num_stages + s``.
        """
        if self._num_data < 2:
            return None
        rest = self._without_shared(self._against_peers([math.log(own) for own in own_s]))
        self._measure_noise(rest)
        self._steps += 1
        self._accumulate(rest)
        return self._judge()

    def _against_peers(self, logs: list[float]) -> list[float]:
        """Return the logarithms less the median of the other data ranks of the same stage."""
        result = logs[:]
        stages = self._num_stages
        for stage in range(stages):
            ordered = sorted(logs[stage::stages])
            for rank in range(stage, len(logs), stages):
                result[rank] -= _median_without(ordered, logs[rank])
        return result

    def _without_shared(self, residuals: list[float]) -> list[float]:
        """Return the residuals less the part that the other stages of the same data rank predict."""
        stages = self._num_stages
        if stages == 1:
            return residuals
        shared = residuals[:]
        for first in range(0, len(residuals), stages):
            ordered = sorted(residuals[first : first + stages])
            for rank in range(first, first + stages):
                shared[rank] = _median_without(ordered, residuals[rank])
        if self._last:
            for stage in range(stages):
                x = [shared[rank] - self._last_shared[rank] for rank in range(stage, len(shared), stages)]
                y = [residuals[rank] - self._last[rank] for rank in range(stage, len(shared), stages)]
                self._products[stage].append((sum(a * b for a, b in zip(x, y, strict=True)), sum(a * a for a in x)))
        self._last, self._last_shared = residuals, shared
        slopes = []
        for products in self._products:
            square = sum(xx for _, xx in products)
            slopes.append(sum(xy for xy, _ in products) / square if square > 0 else 0.0)
        return [value - slopes[rank % stages] * shared[rank] for rank, value in enumerate(residuals)]

    def _measure_noise(self, rest: list[float]) -> None:
        """Estimate the noise of a step, also from changes, so that being slow all the time is no noise."""
        if self._last_rest:
            for rank, (now, before) in enumerate(zip(rest, self._last_rest, strict=True)):
                self._changes[rank].append(abs(now - before) / math.sqrt(2))
                self._levels[rank].append(abs(now))
        self._last_rest = rest
        if not self._changes[0]:
            return
        few = self._steps < EARLY
        for rank in range(len(rest)):
            if few or (rank + self._steps) % NOISE_EVERY == 0:
                self._rank_noise[rank] = math.sqrt(_sigma(self._changes[rank]) * _sigma(self._levels[rank]))
        self._noise = max(median(self._rank_noise), EARLY_NOISE if few else LEAST_NOISE)

    def _accumulate(self, rest: list[float]) -> None:
        if len(self._changes[0]) < LEAST_CHANGES:
            return
        shift = self._shift
        weight = shift / self._noise**2
        for rank, value in enumerate(rest):
            evidence = min(max(weight * (value - shift / 2), -self._clip), self._clip)
            score = self._score[rank] + evidence
            if score <= 0:
                self._score[rank] = 0.0
                self._since[rank] = self._steps
                self._excess[rank].clear()
            else:
                self._score[rank] = min(score, 2 * self._limit)
                self._excess[rank].append(value)

    def _judge(self) -> SlowRank | None:
        excess = {rank: median(self._excess[rank]) for rank, score in enumerate(self._score) if score >= self._limit}
        excess = {rank: value for rank, value in excess.items() if value >= LEAST_EXCESS * self._shift}
        if self._slow is not None and self._score[self._slow] > 0:
            excess[self._slow] = median(self._excess[self._slow])
        if not excess:
            self._slow = None
            return None
        self._slow = max(excess, key=lambda rank: excess[rank])
        return SlowRank(rank=self._slow, factor=math.exp(excess[self._slow]), since=self._since[self._slow])


def _sigma(sizes: Iterable[float]) -> float:
    """Return the standard deviation of a normal distribution with such absolute values, by the larger estimate."""
    ordered = sorted(sizes)
    num = len(ordered)
    return max(ordered[num // 2] * MAD_TO_SIGMA, ordered[9 * num // 10] / P90_TO_SIGMA)


def _median_without(ordered: list[float], value: float) -> float:
    """Return the median of sorted values without one of them."""
    position = bisect_left(ordered, value)
    num = len(ordered) - 1
    low, high = (num - 1) // 2, num // 2
    return (ordered[low + (low >= position)] + ordered[high + (high >= position)]) / 2
