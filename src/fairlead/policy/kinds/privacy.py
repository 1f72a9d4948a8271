"""Accounts for the privacy of a federation: a Gaussian mechanism on sites that take part at random, over its rounds.

In each round every site takes part with probability q by itself, its update is clipped to a norm C, and Gaussian noise
of standard deviation z C is added to the sum. That is the sampled Gaussian mechanism of Mironov, Talwar and Zhang,
"Renyi differential privacy of the sampled Gaussian mechanism" (arXiv:1908.10530), for two federations of which one has
one site more. z is the noise multiplier. Losses and other metrics of sites are no part of this.

See decision 272.
"""

import math
from functools import lru_cache

from fairlead.frozen import dataclass
from fairlead.specs.aggregation import LEAST_NOISE, MOST_NOISE
from fairlead.specs.federation import Federation

ORDERS = (*(1 + step / 10 for step in range(1, 100)), *range(11, 64), *(2.0**power for power in range(6, 13)))
"""Orders of Renyi divergence among which the least epsilon is chosen."""
TOLERANCE = 1e-4
DEVIATIONS = 14.0
"""Standard deviations beyond which the density of noise is below 1e-42."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisePlan:
    """The noise of a federation's rounds.

    Attributes:
        noise: Noise multiplier: standard deviation of the noise of the sum over the clip.
        probability: Probability with which a site takes part in a round.
        rounds: Most rounds within the budget, at most those of the spec.
    """

    noise: float
    probability: float
    rounds: int


def noise_plan(spec: Federation) -> NoisePlan | None:
    """Return the noise of a federation, the least with which its rounds stay within its budget; None without one."""
    privacy = spec.privacy
    if privacy is None:
        return None
    probability = 1.0 if spec.sample is None else spec.sampled_sites / len(spec.sites)
    noise = privacy.noise
    if noise is None:
        noise = noise_for(privacy.epsilon, privacy.delta, probability, spec.rounds)
    rounds = rounds_within(privacy.epsilon, privacy.delta, noise, probability, spec.rounds)
    return NoisePlan(noise=noise, probability=probability, rounds=rounds)


@lru_cache(maxsize=1024)
def epsilon_spent(rounds: int, delta: float, noise: float, probability: float) -> float:
    """Return the epsilon that a number of rounds has spent; 0 before the first one.

    Conversion from Renyi divergence by Canonne, Kamath and Steinke (arXiv:2004.00010), proposition 12.

    Args:
        delta: Probability with which epsilon may be exceeded, more than 0 and less than 1.
        noise: Noise multiplier, at least ``LEAST_NOISE``.
        probability: Probability with which a site takes part in a round, more than 0 and at most 1.
    """
    if rounds == 0:
        return 0.0
    epsilons = (
        rounds * divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        for order, divergence in zip(ORDERS, _divergences(noise, probability), strict=True)
    )
    return max(0.0, float(min(epsilons)))


@lru_cache(maxsize=64)
def noise_for(epsilon: float, delta: float, probability: float, rounds: int) -> float:
    """Return the least noise multiplier with which so many rounds spend at most epsilon, to one in 10,000."""
    low, high = LEAST_NOISE, MOST_NOISE
    if epsilon_spent(rounds, delta, low, probability) <= epsilon:
        return low
    while high / low > 1 + TOLERANCE:
        middle = math.sqrt(low * high)
        if epsilon_spent(rounds, delta, middle, probability) > epsilon:
            low = middle
        else:
            high = middle
    return high


def rounds_within(epsilon: float, delta: float, noise: float, probability: float, most: int) -> int:
    """Return the most rounds, at most ``most``, that spend at most epsilon; 0 if even one spends more."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if epsilon_spent(middle, delta, noise, probability) > epsilon:
            high = middle
        else:
            low = middle
    return low


@lru_cache(maxsize=256)
def _divergences(noise: float, probability: float) -> tuple[float, ...]:
    """Return the Renyi divergences of one round at ``ORDERS``.

    log(A) / (a - 1) with A the mean of ((1 - q) + q exp((2 x - 1) / (2 z^2)))^a over x of N(0, z^2): equation 6 of
    Mironov, Talwar and Zhang, integrated by the trapezoidal rule, or a / (2 z^2) for q = 1 (Mironov, arXiv:1702.07476,
    proposition 7). The error of that rule falls with exp(-2 pi d / h) for steps h and the distance d = pi z^2 of the
    integrand's nearest singularity from the real axis (Trefethen and Weideman, SIAM Review 2014, theorem 5.1).
    """
    if probability >= 1.0:
        return tuple(order / (2 * noise**2) for order in ORDERS)
    import numpy as np  # here, since few specs have a budget

    divergences = []
    step = min(noise / 4, noise**2 / 2)
    for order in ORDERS:
        x = np.arange(-DEVIATIONS * noise, order + DEVIATIONS * noise, step)
        mixture = np.logaddexp(math.log1p(-probability), math.log(probability) + (2 * x - 1) / (2 * noise**2))
        logs = order * mixture - x**2 / (2 * noise**2)
        peak = float(np.max(logs))
        total = float(np.sum(np.exp(logs - peak))) * step / (noise * math.sqrt(2 * math.pi))
        divergences.append(max(0.0, peak + math.log(total)) / (order - 1))
    return tuple(divergences)
