"""Compares requests to a canary with requests to an equal share of the old revision, in pairs."""

import math
from collections import Counter, deque
from typing import Any

from fairlead.gateway.messages import ResponseHead
from fairlead.gateway.routes import CANARY, CONTROL, CanaryRoute

MOST_AHEAD = 1_000
"""Maximum number of unpaired requests kept of one side, so that pairs are close in time."""


class Pairs:
    """Paired outcomes of both sides since this gateway began to follow a trial.

    Attributes:
        worse: Pairs in which only the canary's request was bad, by criterion; `better` counts those with only the
            other's.
    """

    __slots__ = ("_ahead", "_ahead_arm", "better", "num_pairs", "route", "worse")

    def __init__(self, route: CanaryRoute) -> None:
        self.route = route
        self.num_pairs = 0
        self.worse: Counter[str] = Counter()
        self.better: Counter[str] = Counter()
        self._ahead: deque[frozenset[str]] = deque(maxlen=MOST_AHEAD)
        self._ahead_arm = ""

    def add(self, arm: str, *, failed: bool, duration_s: float, response: ResponseHead | None) -> None:
        """Record a completed request of one side; `response` is None without a response."""
        bad = {"failed"} if failed else set()
        if self.route.latency_s is not None and duration_s > self.route.latency_s:
            bad.add("slow")
        if response is not None and self._is_bad(response):
            bad.add("metric")
        if self._ahead and self._ahead_arm != arm:
            self._compare(arm, frozenset(bad), self._ahead.popleft())
        else:
            self._ahead_arm = arm
            self._ahead.append(frozenset(bad))

    def is_slow(self, duration_s: float) -> bool:
        """Return whether an abandoned request was already slow."""
        return self.route.latency_s is not None and duration_s > self.route.latency_s

    def as_json(self) -> dict[str, Any]:
        """Return the counts in the format of demand.json."""
        return {
            "trial": self.route.trial, "pairs": self.num_pairs, "worse": dict(self.worse), "better": dict(self.better),
        }  # fmt: skip

    def _compare(self, arm: str, bad: frozenset[str], other: frozenset[str]) -> None:
        canary, control = (bad, other) if arm == CANARY else (other, bad)
        assert arm in (CANARY, CONTROL), "only these two are compared"
        self.num_pairs += 1
        self.worse.update(canary - control)
        self.better.update(control - canary)

    def _is_bad(self, response: ResponseHead) -> bool:
        if self.route.header is None:
            return False
        text = next((value for low, _, value in response.fields if low == self.route.header), None)
        try:
            number = math.nan if text is None else float(text)
        except ValueError:
            return False
        above, below = self.route.above, self.route.below
        return (above is not None and number > above) or (below is not None and number < below)
