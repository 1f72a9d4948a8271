"""Whether a new version is as good as the old one, judged while requests come in, with error rates that are stated.

The new version gets a slice of the requests and the old one an equal slice of the same moments; the n-th request of
one is paired with the n-th of the other, so that load, hour and warm-up touch both alike. Each criterion, such as
"failed" or "slower than the target", is a yes or no for each request, and a pair gives the difference D, -1, 0 or 1.

Two tests by betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024)
may be looked at after every pair: by Ville's inequality a fair wealth ever reaches 1/a with probability a at most.

- It is *rolled back* once the wealth of betting on D > 0 reaches the number of criteria / ALPHA: a version that is no
  worse is rolled back with probability ALPHA at most.
- It is *promoted* once the wealth of betting on D < margin has reached 1 / BETA for every criterion: one that is worse
  by its margin or more in any of them is promoted with probability BETA at most.
- Of which neither is known after MOST pairs, the old version stays.

A rollout of a service would ask this of its canary at every step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

ALPHA = 0.05
BETA = 0.05
MOST = 20_000
# Parts of the most that may be bet, mixed evenly: small ones find small differences, large ones a broken version.
BETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)


class Verdict(StrEnum):
    """Outcome for the new version."""

    GO_ON = "go on"
    PROMOTE = "promote"
    ROLL_BACK = "roll back"
    UNDECIDED = "undecided"


@dataclass(slots=True)
class Wealth:
    """Of bets on a mean below ``bound``, or above it, of values from -1 to 1."""

    bound: float
    above: bool
    parts: list[float] = field(default_factory=lambda: [1.0] * len(BETS))
    most: float = 1.0

    def bet(self, value: float) -> None:
        """Win or lose by one value."""
        gain = value - self.bound if self.above else self.bound - value
        worst = 1.0 + self.bound if self.above else 1.0 - self.bound
        self.parts = [part * (1.0 + bet / worst * gain) for part, bet in zip(self.parts, BETS, strict=True)]
        self.most = max(self.most, sum(self.parts) / len(BETS))


class CanaryTest:
    """The test of one new version."""

    def __init__(self, margins: Mapping[str, float]) -> None:
        """Begin with nothing known.

        Args:
            margins: For each criterion, how much more often bad is too much, from 0 to 1, such as 0.01.
        """
        self._worse = {name: Wealth(0.0, above=True) for name in margins}
        self._fine = {name: Wealth(margin, above=False) for name, margin in margins.items()}
        self.num_pairs = 0

    def add(self, new: Mapping[str, bool], old: Mapping[str, bool]) -> Verdict:
        """Take one more pair: which criteria the request of the new version and that of the old were bad by."""
        self.num_pairs += 1
        for name in self._worse:
            difference = float(new[name]) - float(old[name])
            self._worse[name].bet(difference)
            self._fine[name].bet(difference)
        return self.verdict

    @property
    def verdict(self) -> Verdict:
        """Return the verdict of all requests so far."""
        if self.blamed:
            return Verdict.ROLL_BACK
        if all(each.most >= 1.0 / BETA for each in self._fine.values()):
            return Verdict.PROMOTE
        return Verdict.GO_ON if self.num_pairs < MOST else Verdict.UNDECIDED

    @property
    def blamed(self) -> Sequence[str]:
        """Criteria by which it is worse than the old version."""
        return [name for name, each in self._worse.items() if each.most >= len(self._worse) / ALPHA]
