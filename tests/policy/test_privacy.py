"""The privacy that rounds spend agrees with closed forms, and noise is the least that fits the budget."""

import math
from dataclasses import replace

import pytest

from fairlead.policy.kinds import privacy
from fairlead.policy.kinds.privacy import ORDERS, epsilon_spent, noise_for, noise_plan, rounds_within
from fairlead.specs.aggregation import Privacy
from fairlead.specs.federation import Federation, Site

DELTA = 1e-5
SPEC = Federation(
    name="digits", app="app", sites={name: Site() for name in ("north", "south", "west", "east")}, rounds=50,
    privacy=Privacy(epsilon=8.0, delta=DELTA, clip=0.5),
)  # fmt: skip


def binomial_divergence(order: int, noise: float, probability: float) -> float:
    """The divergence at a whole order as a sum of binomial terms (Mironov, Talwar and Zhang, section 3.3)."""
    logs = [
        math.log(math.comb(order, number))
        + (order - number) * math.log1p(-probability)
        + number * math.log(probability)
        + (number * number - number) / (2 * noise**2)
        for number in range(order + 1)
    ]
    peak = max(logs)
    return (peak + math.log(sum(math.exp(log - peak) for log in logs))) / (order - 1)


@pytest.mark.parametrize("noise", [0.3, 0.7, 1.1, 4.0, 50.0])
@pytest.mark.parametrize("probability", [0.001, 0.3, 0.9])
def test_the_integral_is_the_sum_of_binomial_terms_at_whole_orders(noise: float, probability: float) -> None:
    divergences = dict(zip(ORDERS, privacy._divergences(noise, probability), strict=True))
    for order in (2, 3, 7, 32, 63):
        assert divergences[order] == pytest.approx(binomial_divergence(order, noise, probability), rel=1e-6, abs=1e-12)
    # (a - 1) D is convex in a (van Erven and Harremoes, 2014, theorem 11), so that orders between agree too.
    values = [(order - 1) * divergences[order] for order in ORDERS[:99]]
    for before, middle, after in zip(values, values[1:], values[2:], strict=False):
        assert middle <= (before + after) / 2 + 1e-9


def test_sites_that_always_take_part_spend_what_the_gaussian_mechanism_does() -> None:
    # rho-zCDP with rho = T / (2 z^2) gives epsilon = rho + 2 sqrt(rho log(1 / delta)) (Bun and Steinke, 2016).
    for rounds, noise in ((50, 10.0), (3, 1.0), (1000, 60.0)):
        rho = rounds / (2 * noise**2)
        bound = rho + 2 * math.sqrt(rho * math.log(1 / DELTA))
        assert 0.8 * bound < epsilon_spent(rounds, DELTA, noise, 1.0) < bound
    assert epsilon_spent(50, DELTA, 1.0, 0.999999) == pytest.approx(epsilon_spent(50, DELTA, 1.0, 1.0), rel=1e-3)


def test_more_rounds_sites_or_less_noise_spend_more_and_no_round_spends_nothing() -> None:
    assert epsilon_spent(0, DELTA, 1.0, 0.5) == 0.0
    base = epsilon_spent(50, DELTA, 2.0, 0.2)
    assert epsilon_spent(51, DELTA, 2.0, 0.2) > base
    assert epsilon_spent(50, DELTA, 1.9, 0.2) > base
    assert epsilon_spent(50, DELTA, 2.0, 0.25) > base
    assert epsilon_spent(50, 1e-6, 2.0, 0.2) > base


@pytest.mark.parametrize(("epsilon", "probability", "rounds"), [(8.0, 0.2, 50), (1.0, 1.0, 50), (0.5, 0.05, 1000)])
def test_noise_is_the_least_with_which_the_rounds_fit(epsilon: float, probability: float, rounds: int) -> None:
    noise = noise_for(epsilon, DELTA, probability, rounds)
    assert epsilon_spent(rounds, DELTA, noise, probability) <= epsilon
    assert epsilon_spent(rounds, DELTA, noise * 0.999, probability) > epsilon
    assert rounds_within(epsilon, DELTA, noise, probability, 10 * rounds) in (rounds, rounds + 1)


def test_a_federation_has_the_noise_of_its_budget_or_ends_early_with_its_own() -> None:
    assert noise_plan(replace(SPEC, privacy=None)) is None
    plan = noise_plan(replace(SPEC, sample=0.5))
    assert plan is not None
    assert (plan.probability, plan.rounds) == (0.5, 50)
    whole = noise_plan(SPEC)
    assert whole is not None
    assert whole.noise > plan.noise
    assert SPEC.privacy is not None
    fixed = noise_plan(replace(SPEC, privacy=replace(SPEC.privacy, noise=3.0)))
    assert fixed is not None
    assert epsilon_spent(fixed.rounds, DELTA, 3.0, 1.0) <= 8.0 < epsilon_spent(fixed.rounds + 1, DELTA, 3.0, 1.0)
    assert 0 < fixed.rounds < 50
