"""Brings together the own times that the ranks of a gang report, and names the rank that is slow now.

Reports come at different times and overlap; a step counts once all ranks have reported it. Steps that a report no
longer has are passed over.

See decision 216.
"""

from bisect import bisect_right
from collections.abc import Mapping

from fairlead.frozen import dataclass
from fairlead.policy.health.slow_ranks import SlowRank, SlowRankDetector
from fairlead.state.slow_ranks import SlowRankReport

MOST_RANKS = 4096
"""Ranks of a gang that is judged."""
CPU_SLOWDOWN, CPU_LEAST_STEPS = 1.15, 25
"""The test of processor times: on a busy machine a rank takes a fifth more for five steps, or 5 % more for forty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTimes:
    """The own times of one rank, as it reported them.

    Attributes:
        step: The last step of ``own_us``, as the count of completed ones.
        own_us: Microseconds of the steps up to it, positive.
        step_s: Mean seconds of a step with waits.
        of_gpu: Whether a GPU's events measured them; else they are processor time.
    """

    step: int
    own_us: tuple[int, ...]
    step_s: float
    of_gpu: bool = False


class GangTimes:
    """The test of one attempt of a gang."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._begin()

    def _begin(self) -> None:
        """Forget all steps."""
        self._detector: SlowRankDetector | None = None
        self._num_observed, self._last_step = 0, -1
        self._stretches: list[tuple[int, int]] = []
        """The number of steps observed before each stretch without a gap, and the first step of that stretch."""
        self._slow: SlowRank | None = None

    def observe(self, reports: Mapping[int, OwnTimes]) -> SlowRankReport | None:
        """Take the newest reports in, by rank, and return the rank that is slow; None without one."""
        if self._num_ranks < 2 or self._num_ranks > MOST_RANKS or set(reports) != set(range(self._num_ranks)):
            return None
        own = [reports[rank] for rank in range(self._num_ranks)]
        last = min(report.step for report in own)
        first = max(report.step - len(report.own_us) + 1 for report in own)
        done = self._last_step
        if last < done:  # the gang continues from an earlier step
            self._begin()
            done = -1
        if self._detector is None and all(report.of_gpu for report in own):
            self._detector = SlowRankDetector(self._num_ranks)
        elif self._detector is None:
            self._detector = SlowRankDetector(self._num_ranks, slowdown=CPU_SLOWDOWN, least_steps=CPU_LEAST_STEPS)
        for step in range(max(first, done + 1), last + 1):
            self._slow = self._detector.observe([report.own_us[step - report.step - 1] / 1e6 for report in own])
            if not self._stretches or step != self._last_step + 1:
                self._stretches.append((self._num_observed, step))
            self._num_observed, self._last_step = self._num_observed + 1, step
        if self._slow is None:
            return None
        slow = own[self._slow.rank]
        own_s = sum(slow.own_us) / len(slow.own_us) / 1e6
        step_s = max(report.step_s for report in own)
        return SlowRankReport(
            rank=self._slow.rank,
            factor=round(self._slow.factor, 2),
            since=self._step_at(min(self._slow.since, self._num_observed - 1)),
            step_s=step_s,
            lost_s=min(own_s * (1 - 1 / self._slow.factor), step_s),
        )

    def _step_at(self, index: int) -> int:
        """Return the number of the step that was observed as the one of this index, from 0 on."""
        place = bisect_right(self._stretches, index, key=lambda stretch: stretch[0]) - 1
        before, first = self._stretches[place]
        return first + index - before
