"""Simulates rounds of a federation with unlike sites, and chooses its ``sample`` and ``deadline`` by them.

A round lasts until the slowest of its sampled sites has answered, or until its deadline. Its worth is a share of a
round of all sites: with K of N updates, 1 / (1 + HETEROGENEITY v), v = (N - K) / (K (N - 1)), the variance of a mean of
K of N without replacement, as in the bound of Li et al. (arXiv:1907.02189, theorem 3) and in the number of rounds of
Luo et al. (arXiv:2012.08336, equation 13). Sites that answer less often than others bias the model: its rounds are
worth 1 - BIAS c of that, c = sum (p - w)^2 / w, with w the share of a site in the examples and p that in the updates;
that such a distance bounds how near the model gets is theorem 2 of Wang et al. (arXiv:2007.07481). Both constants were
measured by `python -m benchmarks.federation`.

See decision 277.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fairlead.frozen import dataclass
from fairlead.specs.federation import Federation
from fairlead.text.quantities import describe_duration, plural

HETEROGENEITY = 15.0
BIAS = 0.3
FLOWER_TIMEOUT_S = 3600.0
"""Time of a round without ``deadline``, the default of Flower's ``Strategy.start``."""
STARTS = 4
"""Simulations of a candidate, which begin at times of day that are equally far apart."""
DRAWN_ROUNDS = 60
MOST_SAMPLES = 9
MOST_NAMED = 5
"""The number of sites that a sentence lists by name."""
QUANTILES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Shares of the sites' typical times among which a deadline is chosen."""
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsForecast:
    """The rounds of a federation under one ``sample`` and ``deadline``, as simulated.

    Attributes:
        sample: Number of sites that train in a round.
        deadline_s: Deadline of a round; None for the app's own.
        round_s: Mean time of a round in seconds, with waits for sites and with rounds that are repeated.
        updates: Mean number of updates in a round.
        worth: Rounds of all sites that one round is worth, at most 1.
        never: The sites of which no update arrives in time.
    """

    sample: int
    deadline_s: float | None
    round_s: float
    updates: float
    worth: float
    never: tuple[str, ...]

    @property
    def pace(self) -> float:
        """Return the rounds of all sites that a second is worth."""
        return self.worth / self.round_s

    def rounds_for(self, rounds: int) -> int | None:
        """Return the number of rounds that are worth as much as ``rounds`` of all sites; None if none is enough."""
        return None if self.worth <= 0 else max(1, round(rounds / self.worth))


def is_foreseeable(spec: Federation) -> bool:
    """Return whether each site has an expectation to simulate rounds by."""
    return spec.app is not None and all(site.expect is not None for site in spec.sites.values())


def resolved(spec: Federation) -> tuple[Federation, tuple[str, ...]]:
    """Return the federation with values in place of ``auto``, and a note on them."""
    if not (spec.sample_auto or spec.deadline_auto):
        return spec, ()
    best = choose(spec)[0]
    values = [f"sample: {best.sample}"] if spec.sample_auto else []
    if spec.deadline_auto and best.deadline_s is not None:
        values.append(f"deadline: {describe_duration(best.deadline_s)}")
    note = f"{', '.join(values)}, the fastest of simulated rounds: {describe_rounds(spec, best)}"
    chosen = replace(
        spec, sample=float(best.sample) if spec.sample_auto else spec.sample, sample_auto=False,
        deadline_s=best.deadline_s, deadline_auto=False,
    )  # fmt: skip
    return chosen, (note,)


def describe_rounds(spec: Federation, forecast: RoundsForecast) -> str:
    """Describe the rounds of a federation under a sample and a deadline as a clause."""
    if not math.isfinite(forecast.round_s):
        return f"no round has {plural(min(spec.min_sites or forecast.sample, forecast.sample), 'update')}"
    needed = forecast.rounds_for(spec.rounds)
    worth = "worth nothing" if needed is None else f"{needed} of them worth {spec.rounds} of all sites"
    text = f"{describe_duration(forecast.round_s)} a round with {forecast.updates:.3g} updates, {worth}"
    if forecast.never:
        more = f" and {len(forecast.never) - MOST_NAMED} more" if len(forecast.never) > MOST_NAMED else ""
        text += f"; never in time: {', '.join(forecast.never[:MOST_NAMED])}{more}"
    return text


def choose(spec: Federation) -> tuple[RoundsForecast, ...]:
    """Return the candidates for what the spec leaves to ``auto``, that of the greatest pace first; one without any.

    Among equals fewer sites are first.
    """
    sites = _Sites(spec)
    starts = [DAY_S * number / STARTS for number in range(STARTS)]
    forecasts = _forecasts(spec, sites, list(_candidates(spec, sites)), starts, _num_draws(spec, DRAWN_ROUNDS))
    return tuple(sorted(forecasts, key=lambda forecast: (-forecast.pace, forecast.sample, forecast.deadline_s or 0.0)))


def forecast(spec: Federation, sample: int, deadline_s: float | None, begins: float) -> RoundsForecast:
    """Simulate the rounds of a federation that begins at a time in Unix seconds."""
    drawn = _num_draws(spec, STARTS * DRAWN_ROUNDS)
    return _forecasts(spec, _Sites(spec), [(sample, deadline_s)], [begins], drawn)[0]


def _num_draws(spec: Federation, most: int) -> int:
    """Return the number of rounds to simulate: with windows no more than there are, as later ones wait for others."""
    has_windows = any(site.window is not None for site in spec.sites.values())
    return min(spec.rounds, most) if has_windows else most


class _Sites:
    """Expectations of the sites of a federation, an array by site of each figure; times are in seconds."""

    def __init__(self, spec: Federation) -> None:
        expectations = [site.expect for site in spec.sites.values() if site.expect is not None]
        self.examples = np.array([float(expected.examples) for expected in expectations])
        self.train_s = np.array([expected.train_s for expected in expectations])
        self.spread = np.array([expected.spread for expected in expectations])
        self.available = np.array([expected.available for expected in expectations])
        transfers = 2.0 * (spec.model_size or 0)
        self.transfer_s = np.array([transfers / (expected.link or np.inf) for expected in expectations])
        edges_s = 60.0 * np.array([site.minutes or (0, 0) for site in spec.sites.values()])
        self._begins, self._ends = edges_s.T
        self._is_always_open = self._begins == self._ends

    def open_at(self, clock: np.ndarray, least: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return when ``least`` sites are open, which are, and for how many seconds from then.

        Args:
            clock: Times in Unix seconds, of any shape.
            least: Numbers of sites, of that shape.
        """
        for _ in range(1 if self._is_always_open.all() else 2 * len(self.examples)):
            until_end, until_begin = ((edge - clock[..., None]) % DAY_S for edge in (self._ends, self._begins))
            is_open = self._is_always_open | (until_end < until_begin) | (until_begin == 0)
            waits = is_open.sum(axis=-1) < least
            if not waits.any():
                break
            clock = clock + np.where(waits, np.where(is_open, np.inf, until_begin).min(axis=-1), 0.0)
        return clock, is_open, np.where(self._is_always_open, np.inf, until_end)


def _forecasts(
    spec: Federation, sites: _Sites, candidates: list[tuple[int, float | None]], starts: list[float], drawn: int
) -> list[RoundsForecast]:
    """Simulate ``drawn`` rounds for each candidate from each start, with the same draws for all candidates.

    Arrays have the shape (candidates, starts, sites), or the first two of these.
    """
    samples = np.array([sample for sample, _ in candidates])[:, None]
    limits_s = np.array([deadline_s or FLOWER_TIMEOUT_S for _, deadline_s in candidates])[:, None]
    least = np.minimum(samples, spec.min_sites or samples)
    draws, shape = np.random.default_rng(0), (len(starts), len(sites.examples))
    clock = begun = np.tile(np.array(starts), (len(candidates), 1))
    done, updates, worth = (np.zeros_like(clock) for _ in range(3))
    shares = np.zeros((len(candidates), *shape))
    for _ in range(drawn):
        times = sites.train_s * np.exp(sites.spread * draws.standard_normal(shape)) + sites.transfer_s
        answers = draws.random(shape) < sites.available
        order = np.argsort(draws.random(shape), axis=-1)[None]
        clock, is_open, closes_s = sites.open_at(clock, np.broadcast_to(least, clock.shape))
        in_time = is_open & answers & (times <= np.minimum(limits_s[..., None], closes_s))
        ordered = np.take_along_axis(is_open, order, axis=-1)
        chosen = np.empty_like(is_open)
        np.put_along_axis(
            chosen,
            np.broadcast_to(order, chosen.shape),
            ordered & (ordered.cumsum(axis=-1) <= samples[..., None]),
            axis=-1,
        )
        count = (in_time & chosen).sum(axis=-1)
        slowest = np.where(chosen, times, 0.0).max(axis=-1)
        clock = clock + np.where(count == chosen.sum(axis=-1), slowest, limits_s)
        is_done = count >= least
        done, updates = done + is_done, updates + is_done * count
        variance = (shape[1] - count) / (np.maximum(count, 1) * max(1, shape[1] - 1))
        worth += is_done / (1.0 + HETEROGENEITY * variance)
        taking_part = np.minimum(1.0, samples / is_open.sum(axis=-1))
        shares += is_done[..., None] * in_time * taking_part[..., None]
    forecasts = []
    part = sites.examples / sites.examples.sum()
    for number, (sample, deadline_s) in enumerate(candidates):
        rounds = done[number].sum()
        share = shares[number].sum(axis=0)
        present = share * sites.examples / max((share * sites.examples).sum(), 1e-9)
        bias = float(((present - part) ** 2 / part).sum())
        forecasts.append(
            RoundsForecast(
                sample=sample, deadline_s=deadline_s,
                round_s=float((clock - begun)[number].sum() / rounds) if rounds else np.inf,
                updates=float(updates[number].sum() / max(rounds, 1)),
                worth=float(max(0.0, worth[number].sum() / max(rounds, 1) * (1 - BIAS * bias))),
                never=tuple(name for name, one in zip(spec.sites, share, strict=True) if one == 0),
            )
        )  # fmt: skip
    return forecasts


def _candidates(spec: Federation, sites: _Sites) -> Iterator[tuple[int, float | None]]:
    total = len(spec.sites)
    least = max(spec.min_sites or 1, spec.aggregate.least_updates if spec.aggregate is not None else 1)
    samples, deadlines = [spec.sampled_sites], [spec.deadline_s]
    if spec.sample_auto:
        samples = sorted({round(number) for number in np.geomspace(least, total, MOST_SAMPLES)})
    if spec.deadline_auto:
        typical_s, spread = sites.train_s + sites.transfer_s, 1.0 + float(sites.spread.max())
        lengths = [spread * float(np.quantile(typical_s, share)) for share in QUANTILES]
        deadlines = [*sorted({_rounded(length) for length in (*lengths, spread * lengths[-1])})]
    return ((sample, deadline_s) for sample in samples for deadline_s in deadlines)


def _rounded(seconds: float) -> float:
    """Return seconds of two digits, at least 1."""
    return max(1.0, float(f"{seconds:.2g}"))
