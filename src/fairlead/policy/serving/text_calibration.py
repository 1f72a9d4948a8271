"""Estimates the step times of a text server, and its memory, from the times of requests that it served.

A simulation with roughly right coefficients yields the steps of which each wait consisted; the time of a step is linear
in the coefficients given which of its two bounds is active. So non-negative least squares over those waits gives better
coefficients, with which the simulation is repeated. Coefficients that the waits do not determine stay near their
initial values (a ridge). CMA-ES (``fairlead.policy.search.covariance_adaptation``) then minimises the error of the
means and of each request.

Some coefficients cannot be separated from requests under a single load. So several searches are made, and all with a
similar fit are kept: their mean is the estimate, and their spread its uncertainty.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fairlead.frozen import dataclass
from fairlead.policy.search.covariance_adaptation import State
from fairlead.policy.serving.text_engine import (
    ATTENTION,
    BLOCK,
    CONTEXT,
    DECODING,
    MIXED,
    PADDED,
    TOKENS,
    Engine,
    Request,
    Served,
    Steps,
    StepTimes,
    simulate,
    simulate_steps,
)

Array = NDArray[np.float64]

# How strongly an undetermined coefficient is held at its initial value.
RIDGES = (0.05, 1.0)
ROUNDS = 5
# The factors by which a server may differ from others at the same pace.
SCALES = tuple(math.exp(0.2 * step) for step in range(-6, 3))
# The widths of searches, as powers of e, and the number of searches for each.
WIDTHS = (2.0, 1.0)
SEARCHES = 2
BLOCKS_WIDTH = 0.12
# The weight in the error of a coefficient's distance from where a search began.
FAR = 0.003
# Searches whose error is within this factor of the best are kept.
AS_GOOD = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Estimated coefficients and limits.

    Attributes:
        error: The error of means and single requests under them, relative to the means.
    """

    times: StepTimes
    engine: Engine
    error: float


def calibrate(
    requests: Sequence[Request],
    observed: Served,
    engine: Engine,
    *,
    prior: StepTimes | None = None,
    simulations: int = 400,
) -> list[Calibration]:
    """Estimate the coefficients from served requests; the best first.

    Args:
        requests: In order of arrival; those without times in ``observed`` only add load.
        observed: Times of some of them, at least two with two tokens each.
        engine: Its limits; its number of blocks is the initial value, None if memory does not bound it.
        prior: Step times by the data sheet; otherwise those of a typical server on one GPU.
        simulations: The maximum for each search.
    """
    known = _Known.of(requests, observed)
    pace_s = float(np.median(known.pace))
    task = _Task(requests=requests, known=known, floor=0.01 * np.array(typical(pace_s).values()))
    begins = [prior] if prior is not None else [typical(pace_s * scale) for scale in SCALES]
    begin = min((task.judge(times, engine) for times in begins), key=_error)
    solved = min((task.solve(begin, ridge) for ridge in RIDGES), key=_error)
    found = [
        task.search(where, width, simulations, number)
        for where, width in zip((begin, solved), WIDTHS, strict=True)
        for number in range(SEARCHES)
    ]
    found.sort(key=_error)
    return [each for each in found if each.error <= AS_GOOD * found[0].error]


def predict(requests: Sequence[Request], found: Sequence[Calibration]) -> list[Served]:
    """Return the times of requests under each of the calibrations."""
    return [simulate(requests, each.times, each.engine) for each in found]


def typical(pace_s: float) -> StepTimes:
    """Return typical step times of a server on one GPU: a prompt token takes 1/300 of a decoding step."""
    return StepTimes(
        base=0.6 * pace_s, sequence=1e-3 * pace_s, context=4e-6 * pace_s, prompt=3e-3 * pace_s,
        prompt_base=0.3 * pace_s, mixed_context=4e-6 * pace_s, attention=2e-7 * pace_s, mixed=6e-4 * pace_s,
    )  # fmt: skip


def blocks_at_once(requests: Sequence[Request], served: Served, begins_s: Array) -> int:
    """Return the maximum number of blocks held at once: all of a request's prompt, and its output so far.

    Args:
        begins_s: When the computation of each begins.
    """
    prompts, outputs = (np.array([float(value) for value in column]) for column in zip(
        *((each.prompt, each.output) for each in requests), strict=True
    ))  # fmt: skip
    most = 0.0
    for at in begins_s:
        held = (begins_s <= at) & (at < served.last_s)
        done = np.clip((at - served.first_s) / np.maximum(served.last_s - served.first_s, 1e-9), 0.0, 1.0)
        most = max(most, float(np.sum(np.ceil((prompts + outputs * done) / BLOCK)[held])))
    return round(most)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """Observed requests: their indices, arrivals, first and last tokens, further tokens, seconds for each of these."""

    places: NDArray[np.int64]
    arrived: Array
    first: Array
    last: Array
    further: Array
    pace: Array

    @classmethod
    def of(cls, requests: Sequence[Request], observed: Served) -> "_Known":
        places = np.flatnonzero(~np.isnan(observed.last_s))
        first, last = observed.first_s[places], observed.last_s[places]
        further = np.array([float(max(1, each.output - 1)) for each in requests])[places]
        arrived = np.array([each.arrived_s for each in requests])[places]
        pace = (last - first) / further
        return cls(places=places, arrived=arrived, first=first, last=last, further=further, pace=pace)

    @property
    def until(self) -> int:
        """Return how many requests have to be simulated to cover all observed ones."""
        return int(self.places[-1]) + 1

    def error(self, served: Served) -> float:
        """Return the error of means and single requests, relative to the means."""
        first, last = served.first_s[self.places], served.last_s[self.places]
        paces = (last - first) / self.further
        pairs = (
            (first - self.first, self.first - self.arrived),
            (paces - self.pace, self.pace),
            (last - self.last, self.last - self.arrived),
        )
        # The mean is the target; the other terms prevent a mean that is right by chance. Requests that ran beside few
        # others are the most informative, so each pace is weighted by its own size.
        of_means = sum(
            float((np.mean(np.abs(off)) + abs(np.mean(off))) / np.mean(size))
            + abs(float(np.median(size + off) / np.median(size)) - 1.0)
            for off, size in pairs
        )
        return (of_means + 2.0 * float(np.mean(np.abs(paces / self.pace - 1.0)))) / (3 * len(pairs) + 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """The requests, the observed ones among them, and lower bounds of the coefficients."""

    requests: Sequence[Request]
    known: _Known
    floor: Array

    def judge(self, times: StepTimes, engine: Engine) -> Calibration:
        """Return the coefficients with their error."""
        try:
            served = simulate(self.requests, times, engine, until=self.known.until)
        except ValueError:
            return Calibration(times=times, engine=engine, error=math.inf)
        return Calibration(times=times, engine=engine, error=self.known.error(served))

    def solve(self, begin: Calibration, ridge: float) -> Calibration:
        """Return the best of several rounds of least squares."""
        best, times = begin, begin.times
        for _ in range(ROUNDS):
            try:
                served, steps = simulate_steps(self.requests, times, begin.engine, until=self.known.until)
            except ValueError:
                break
            error = self.known.error(served)
            if error < best.error:
                best = replace(begin, times=times, error=error)
            times = self._solved(served, steps, times, begin.times, ridge)
        return best

    def _solved(self, served: Served, steps: Steps, times: StepTimes, begin: StepTimes, ridge: float) -> StepTimes:
        """Return the coefficients with which the steps add up to the observed waits."""
        known = self.known
        table = _columns(steps.parts, times)
        sums = np.vstack([np.zeros(table.shape[1]), np.cumsum(table, axis=0)])
        elapsed = np.concatenate([[0.0], np.cumsum(table @ np.array(times.values()))])
        first, last = steps.first[known.places] + 1, steps.last[known.places] + 1
        # Seconds without any step, which no coefficient explains.
        idle = served.first_s[known.places] - elapsed[first]
        pace, wait = float(np.mean(known.pace)), float(np.mean(known.first - known.arrived))
        rows = np.vstack([(sums[last] - sums[first]) / known.further[:, None] / pace, sums[first] / wait])
        wanted = np.concatenate([known.pace / pace, (known.first - idle) / wait])
        size = np.maximum(np.array(begin.values()), self.floor)
        held = ridge * math.sqrt(len(known.places)) * np.eye(len(size))
        weights = np.ones(len(wanted))
        found = size
        # Least absolute deviations, because a request may have been served a step sooner or later.
        for _ in range(3):
            scaled = np.vstack([rows * size * weights[:, None], held])
            found = size * _non_negative(scaled, np.concatenate([wanted * weights, held @ np.ones(len(size))]))
            off = np.abs(rows @ found - wanted)
            weights = 1.0 / np.sqrt(np.maximum(off, 1e-3 + float(np.median(off))))
        return _times_of(found)

    def search(self, begin: Calibration, width: float, most: int, number: int) -> Calibration:
        """Return the best within factors of ``e ** width`` of the initial values."""
        engine = begin.engine
        blocks = [float(engine.blocks)] if engine.blocks is not None else []
        centre = np.log(np.concatenate([np.maximum(begin.times.values(), self.floor), blocks]))
        widths = np.array([width] * len(self.floor) + [BLOCKS_WIDTH] * len(blocks))

        def at(place: Sequence[float]) -> Calibration:
            off = 2.0 * np.array(place) - 1.0
            *values, last = (float(each) for each in np.exp(centre + widths * off))
            times = _times_of([*values, last][: len(self.floor)])
            judged = self.judge(times, replace(engine, blocks=round(last)) if blocks else engine)
            return replace(judged, error=judged.error + FAR * float(np.mean(off[: len(self.floor)] ** 2)))

        return _minimise(at, len(centre), most, number)


def _error(each: Calibration) -> float:
    return each.error


def _times_of(values: Sequence[float] | Array) -> StepTimes:
    return StepTimes(**dict(zip(StepTimes.__dataclass_fields__, (float(each) for each in values), strict=True)))


def _columns(parts: Array, times: StepTimes) -> Array:
    """Return the factors of the coefficients for each step, in the order of ``StepTimes``."""
    mixed = parts[:, MIXED] > 0
    decoding = times.base + times.sequence * parts[:, DECODING]
    computes = mixed & (times.prompt_base + times.prompt * parts[:, TOKENS] > decoding)
    return np.column_stack(
        (
            ~computes,
            np.where(mixed, parts[:, DECODING], parts[:, PADDED]) * ~computes,
            parts[:, CONTEXT] * ~mixed,
            parts[:, TOKENS] * computes,
            computes,
            parts[:, CONTEXT] * mixed,
            parts[:, ATTENTION] * mixed,
            parts[:, DECODING] * mixed,
        )
    )


def _non_negative(rows: Array, wanted: Array) -> Array:
    """Return the non-negative least squares: negative coefficients are set to 0, and the rest solved again."""
    kept = np.ones(rows.shape[1], dtype=bool)
    while True:
        found = np.zeros(rows.shape[1])
        found[kept] = np.linalg.lstsq(rows[:, kept], wanted, rcond=None)[0]
        if (found >= 0).all():
            return found
        kept &= found > 0


def _minimise(at: Callable[[Sequence[float]], Calibration], num_dims: int, most: int, number: int) -> Calibration:
    """Return the best of a search in the unit cube that starts at its centre."""
    state, best, used, generation = State.at_the_beginning(num_dims), at([0.5] * num_dims), 1, 0
    while used + state.constants.population <= most and state.step_size > 2e-4:
        places = [state.distribution.draw(number, generation, place) for place in range(state.constants.population)]
        judged = [at(place) for place in places]
        order = sorted(range(len(places)), key=lambda place: judged[place].error)
        best = min(best, judged[order[0]], key=_error)
        state = state.after([places[place] for place in order])
        used, generation = used + len(places), generation + 1
    return best
