"""Makes collective decisions of the ranks: whether to stop, whether a checkpoint is due, and at which step.

Every rank takes part at the same steps, and the result is the maximum over the ranks, so that a stop notice on one rank
stops all of them at the same step. An exchange costs a fraction of a millisecond, and more where the ranks wait for
each other. Where steps are so short that this would be noticeable, the ranks exchange only at every k-th call. k is
part of the exchanged vector, so all ranks always use the same k.

See decision 148.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fairlead.runtime.channels import Channel
from fairlead.runtime.errors import AgreementFailed

SHARE = 0.005
"""Largest share of the step time that the exchange may take."""

LONGEST_GAP = 1000
LONGEST_GAP_S = 0.25
"""Longest time between two exchanges, if steps are shorter than that."""

RECENT = 20
PROBES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeResult:
    """The result of an exchange, the same on all ranks.

    Attributes:
        stop: Some rank received a stop notice.
        due: Some rank found that a checkpoint is due.
        busy: Some rank is still writing the previous save.
        over: Some rank found that training must not continue without a newer checkpoint.
        memory_due: Some rank found that a save into memory is due.
        memory_busy: Some rank is still writing the previous save into memory.
    """

    stop: bool
    due: bool
    busy: bool
    over: bool
    memory_due: bool = False
    memory_busy: bool = False


class Agreement:
    """One rank's side of the exchange.

    Rank 0 chooses the gap by what it measures. The gap at most doubles from one exchange to the next, so that one
    unusually fast stretch cannot hide a stop notice for long.
    """

    def __init__(self, channel: Channel, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._channel = channel
        self._clock = clock
        self._gap = 1
        self._calls = 0
        self._since = clock()
        self._probed_s = self._probe()
        self._recent_s: deque[float] = deque(maxlen=RECENT)

    @property
    def cost_s(self) -> float:
        """Seconds that an exchange takes, as far as rank 0 has measured: the mean of the recent ones."""
        return max(self._probed_s, statistics.fmean(self._recent_s or (0.0,)))

    @property
    def gap(self) -> int:
        """Number of calls from one exchange to the next."""
        return self._gap

    def comes_now(self) -> bool:
        """Count one call and return whether the ranks exchange at it. The answer is the same on all ranks."""
        self._calls += 1
        return self._calls >= self._gap

    def agree(
        self,
        step: int,
        *,
        stop: bool,
        due: bool,
        busy: bool,
        over: bool,
        memory_due: bool = False,
        memory_busy: bool = False,
    ) -> ExchangeResult:
        """Exchange with the other ranks; every rank must call this at the same step.

        Raises:
            AgreementFailed: The ranks are at different steps, or one of them is gone.
        """
        wish = 0
        if self._channel.rank == 0:
            wish = self._wish((self._clock() - self._since) / max(self._calls, 1))
        flags = [int(flag) for flag in (stop, due, busy, over)]
        saves = [int(memory_due), int(memory_busy)]
        began = self._clock()
        vector = self._channel.maximum([*flags, wish, step, -step, *saves])
        self._recent_s.append(self._clock() - began)
        newest, oldest = vector[5], -vector[6]
        if newest != oldest:
            raise AgreementFailed(
                f"run.checkpoint() was called for step {oldest} on one rank and for step {newest} on another; "
                "call it on every rank, with the same steps"
            )
        self._gap = max(vector[4], 1)
        self._calls = 0
        self._since = self._clock()
        return ExchangeResult(
            stop=bool(vector[0]),
            due=bool(vector[1]),
            busy=bool(vector[2]),
            over=bool(vector[3]),
            memory_due=bool(vector[7]),
            memory_busy=bool(vector[8]),
        )

    def _wish(self, step_s: float) -> int:
        cost_s = self.cost_s
        if self._channel.world_size == 1 or step_s * SHARE >= cost_s:
            return 1
        most = min(self._gap * 2, LONGEST_GAP)
        if step_s <= 0:
            return most
        # Long steps are exchanged each time, however long ranks wait: they would wait for each other in the next one.
        return min(math.ceil(cost_s / (step_s * SHARE)), max(1, int(LONGEST_GAP_S / step_s)), most)

    def _probe(self) -> float:
        """Return the seconds that one exchange takes when no rank waits for another."""
        if self._channel.world_size == 1:
            return 0.0
        costs = []
        for _ in range(PROBES + 1):
            start = self._clock()
            self._channel.maximum([0, 0, 0, 0, 1, 0, 0, 0, 0])
            costs.append(self._clock() - start)
        return min(costs[1:])
