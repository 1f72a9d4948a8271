"""Compares a new revision with the old one by paired requests, with bounded error rates.

The new revision gets a slice of the requests and the old one an equal slice at the same times; the gateway pairs a
request of one with a request of the other, so that load, time of day and warm-up affect both alike. Each criterion,
such as "failed" or "slower than the target", is true or false for each request, and a pair gives the difference D, -1,
0 or 1.

Two tests by betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024)
may be evaluated at any time: by Ville's inequality a fair wealth ever reaches 1/a with probability at most a. A mixture
of constant bets depends on how often each D occurred and not on their order, so only counts are kept.

- It is *rolled back* once the wealth of betting on D > 0 reaches the number of criteria / (1 - confidence): a revision
  that is no worse is rolled back with probability 1 - confidence at most.
- It is *promoted* once the wealth of betting on D < margin has reached 1 / (1 - confidence) for every criterion: one
  that is worse by its margin or more in any of them is promoted with probability 1 - confidence at most.
- If neither is reached after ``MOST_PAIRS``, the old revision stays.

If the old revision cannot be compared with, ``fails_mostly`` judges the new one alone.
"""

import math
from collections.abc import Mapping
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.state.endpoint_detail import Comparison

MOST_PAIRS = 20_000
# Bets as parts of the maximum, mixed evenly: small ones detect small differences, large ones a broken revision.
BETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)


class CanaryVerdict(StrEnum):
    """The outcome for the new revision."""

    GO_ON = "go on"
    PROMOTE = "promote"
    ROLL_BACK = "roll back"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The comparison of the new revision so far.

    Attributes:
        blamed: Criteria by which it is worse than the old one.
        evidence: The part of the evidence required for promotion, from 0 to 1.
    """

    verdict: CanaryVerdict
    blamed: tuple[str, ...]
    evidence: float


def judge_canary(seen: Mapping[str, Comparison], margins: Mapping[str, float], confidence: float) -> Judgement:
    """Return the verdict on a new revision.

    Args:
        seen: By criterion; a missing one has no pairs.
        margins: For each criterion, the increase in the rate of bad requests that is too much, from 0 to 1, such as
            0.01.
        confidence: 1 less the rate of each error, from 0 to 1.
    """
    error = 1.0 - confidence
    comparisons = {name: seen.get(name, Comparison(name=name)) for name in margins}
    blamed = tuple(
        name
        for name, comparison in comparisons.items()
        if log_wealth(comparison, 0.0, above=True) >= math.log(len(margins) / error)
    )
    fine = min(log_wealth(comparison, margins[name], above=False) for name, comparison in comparisons.items())
    evidence = min(1.0, max(0.0, fine / math.log(1.0 / error)))
    if blamed:
        verdict = CanaryVerdict.ROLL_BACK
    elif evidence >= 1.0:
        verdict = CanaryVerdict.PROMOTE
    elif max(comparison.pairs for comparison in comparisons.values()) >= MOST_PAIRS:
        verdict = CanaryVerdict.UNDECIDED
    else:
        verdict = CanaryVerdict.GO_ON
    return Judgement(verdict=verdict, blamed=blamed, evidence=evidence)


def fails_mostly(requests: int, errors: int, confidence: float) -> bool:
    """Return whether there is evidence that a revision fails more than half of its requests, without a comparison.

    One that fails half of them or fewer is found to at any time with probability 1 - confidence at most.
    """
    # As if compared with one that fails exactly those that it does not.
    seen = Comparison(name="failed", pairs=requests, worse=errors, better=requests - errors)
    return log_wealth(seen, 0.0, above=True) >= math.log(1.0 / (1.0 - confidence))


def log_wealth(seen: Comparison, bound: float, *, above: bool) -> float:
    """Return the log wealth of bets on a mean of D above ``bound``, or below it, from a stake of 1."""
    worst = 1.0 + bound if above else 1.0 - bound
    counts = ((1.0, seen.worse), (-1.0, seen.better), (0.0, seen.pairs - seen.worse - seen.better))
    logs = [
        sum(n * math.log1p(bet / worst * (value - bound if above else bound - value)) for value, n in counts)
        for bet in BETS
    ]
    most = max(logs)
    return most + math.log(sum(math.exp(log_value - most) for log_value in logs) / len(BETS))


def step_at(steps: int, evidence: float) -> int:
    """Return the current step, from 0; each step ends when its part of the evidence is reached."""
    return min(steps - 1, int(evidence * steps))
