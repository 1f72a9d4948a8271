"""Estimates the step times of a text server, and its memory, from the times of requests that it served.

A simulation with roughly right coefficients yields the steps of which each wait consisted; the time of a step is linear
in the coefficients given which of its two bounds is active. So non-negative least squares over those waits gives better
coefficients, with which the simulation is repeated. Coefficients that the waits do not determine stay near their
initial values (a ridge). CMA-ES (``fairlead.policy.search.covariance_adaptation``) then minimises the error of the
means and of each request.

Some coefficients cannot be separated from requests under a single load. So several searches are made, and all with a
similar fit are kept: their mean is the estimate, and their spread its uncertainty.

Of a server about which not all is known, several engines are tried: with and without short memory, with and without
experts. A more complicated one is searched only if it fits clearly better after least squares. A limit that no request
met has no effect on the fit: memory that was never short is left without a limit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fairlead.frozen import dataclass
from fairlead.policy.search.covariance_adaptation import SearchState
from fairlead.policy.serving.text_engine import (
    ATTENTION,
    BLOCK,
    CONTEXT,
    DECODING,
    EXPERTS,
    MIXED,
    PADDED,
    TOKENS,
    EngineLimits,
    EngineRequest,
    EngineSteps,
    Served,
    StepTimes,
    simulate,
    simulate_steps,
)

Array = NDArray[np.float64]

# How strongly an undetermined coefficient is held at its initial value.
RIDGES = (0.05, 1.0)
ROUNDS = 5
# With waits alone the solutions alternate, so that from a round on the geometric mean of two is taken.
ROUNDS_OF_WAITS, DAMPED_FROM = 12, 3
# The factors by which a server may differ from others at the same pace.
SCALES = tuple(math.exp(0.2 * step) for step in range(-6, 3))
# The widths of searches, as powers of e, and the number of searches for each.
WIDTHS = (2.0, 1.0)
SEARCHES = 2
BLOCKS_WIDTH = 0.12
# A server is saturated if the first token usually takes this many times a further one.
SATURATED = 15.0
# An engine with more limits or coefficients is preferred if its error is less than this part of a simpler one's.
CLEARLY = 0.85
# The weight in the error of a coefficient's distance from where a search began.
FAR = 0.003
# Searches whose error is within this factor of the best are kept.
AS_GOOD = 2.5


# The place of the coefficient of experts among those of a step, which is the last one.
EXPERTS_COEFFICIENT = len(StepTimes.__dataclass_fields__) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Estimated coefficients and limits.

    Attributes:
        error: The error of means and single requests under them, relative to the means.
    """

    times: StepTimes
    engine: EngineLimits
    error: float


def calibrate(
    requests: Sequence[EngineRequest],
    observed: Served,
    engine: EngineLimits | Sequence[EngineLimits],
    *,
    prior: StepTimes | None = None,
    simulations: int = 400,
    blocks_width: float = BLOCKS_WIDTH,
) -> list[Calibration]:
    """Estimate the coefficients from served requests; the best first.

    Args:
        requests: In order of arrival; those without times in ``observed`` only add load.
        observed: Times of some of them, at least two with two tokens each.
        engine: Its limits, or several possible ones, the simplest first; the number of blocks is the initial value,
            None if memory does not bound it.
        prior: Step times by the data sheet; otherwise those of a typical server on one GPU.
        simulations: The maximum for each search.
        blocks_width: The power of e by which the number of blocks may differ; 0 if it is known.
    """
    known = _Known.of(requests, observed)
    pace_s = float(np.median(known.pace))
    floor = 0.01 * np.array(replace(typical(pace_s), experts=typical(pace_s, 1.0).experts).values())
    task = _Task(requests=requests, known=known, floor=floor)
    engines = [engine] if isinstance(engine, EngineLimits) else engine
    pairs = [task.begin(candidate, prior, pace_s) for candidate in engines]
    begin, solved = pairs[0]
    for pair in pairs[1:]:
        if pair[1].error < CLEARLY * solved.error:
            begin, solved = pair
    calibrations = [
        task.search(where, width, simulations, number, blocks_width)
        for where, width in zip((begin, solved), WIDTHS, strict=True)
        for number in range(SEARCHES)
    ]
    calibrations.sort(key=_error)
    return [calibration for calibration in calibrations if calibration.error <= AS_GOOD * calibrations[0].error]


def predict(requests: Sequence[EngineRequest], calibrations: Sequence[Calibration]) -> list[Served]:
    """Return the times of requests under each of the calibrations."""
    return [simulate(requests, calibration.times, calibration.engine) for calibration in calibrations]


def typical(pace_s: float, expert_share: float = 0.0) -> StepTimes:
    """Return typical step times of a server on one GPU: a prompt token takes 1/300 of a decoding step.

    In a mixture of experts the experts are most of the weights.
    """
    experts = 0.4 * pace_s if expert_share else 0.0
    return StepTimes(
        base=0.6 * pace_s - experts, sequence=1e-3 * pace_s, context=4e-6 * pace_s, prompt=3e-3 * pace_s,
        prompt_base=0.3 * pace_s, mixed_context=4e-6 * pace_s, attention=2e-7 * pace_s, mixed=6e-4 * pace_s,
        experts=experts,
    )  # fmt: skip


def blocks_at_once(requests: Sequence[EngineRequest], served: Served, begins_s: Array) -> int:
    """Return the maximum number of blocks held at once: all of a request's prompt, and its output so far.

    Args:
        begins_s: When the computation of each begins.
    """
    prompts, outputs = (np.array([float(value) for value in column]) for column in zip(
        *((request.prompt, request.output) for request in requests), strict=True
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
    def of(cls, requests: Sequence[EngineRequest], observed: Served) -> "_Known":
        places = np.flatnonzero(~np.isnan(observed.last_s))
        first, last = observed.first_s[places], observed.last_s[places]
        further = np.array([float(max(1, request.output - 1)) for request in requests])[places]
        arrived = np.array([request.arrived_s for request in requests])[places]
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

    requests: Sequence[EngineRequest]
    known: _Known
    floor: Array

    def begin(self, engine: EngineLimits, prior: StepTimes | None, pace_s: float) -> tuple[Calibration, Calibration]:
        """Return the best of the initial coefficients for an engine, and the best after least squares."""
        begins = [prior] if prior is not None else [typical(pace_s * scale, engine.expert_share) for scale in SCALES]
        begin = min((self.judge(times, engine) for times in begins), key=_error)
        is_saturated = float(np.median(self.known.first - self.known.arrived)) > SATURATED * pace_s
        forms = (False,) if is_saturated else (False, True)
        return begin, min((self.solve(begin, ridge, waits=waits) for waits in forms for ridge in RIDGES), key=_error)

    def judge(self, times: StepTimes, engine: EngineLimits) -> Calibration:
        """Return the coefficients with their error."""
        try:
            served = simulate(self.requests, times, engine, until=self.known.until)
        except ValueError:
            return Calibration(times=times, engine=engine, error=math.inf)
        return Calibration(times=times, engine=engine, error=self.known.error(served))

    def solve(self, begin: Calibration, ridge: float, *, waits: bool) -> Calibration:
        """Return the best of several rounds of least squares.

        Args:
            waits: Whether the steps from a request's arrival to its first token add up to its wait, which suits a
                server with idle times; otherwise all steps until the first token add up to its time.
        """
        best, times = begin, begin.times
        for number in range(ROUNDS_OF_WAITS if waits else ROUNDS):
            try:
                served, steps = simulate_steps(self.requests, times, begin.engine, until=self.known.until)
            except ValueError:
                break
            error = self.known.error(served)
            if error < best.error:
                best = replace(begin, times=times, error=error)
            solved = self._solved(served, steps, times, begin.times, ridge, waits=waits)
            if waits and number >= DAMPED_FROM:
                solved = _times_of(np.sqrt(np.array(times.values()) * np.array(solved.values())))
            times = solved
        return best

    def _solved(
        self, served: Served, steps: EngineSteps, times: StepTimes, begin: StepTimes, ridge: float, *, waits: bool
    ) -> StepTimes:
        """Return the coefficients with which the steps add up to the observed waits."""
        known = self.known
        table = _columns(steps.parts, times)
        sums = np.vstack([np.zeros(table.shape[1]), np.cumsum(table, axis=0)])
        elapsed = np.concatenate([[0.0], np.cumsum(table @ np.array(times.values()))])
        first, last = steps.first[known.places] + 1, steps.last[known.places] + 1
        since = (steps.arrival if waits else steps.begin)[known.places]
        counted_from = known.arrived if waits else np.zeros(len(since))
        # Seconds without any step, or of the step during which a request arrived, which no coefficient explains.
        idle = served.first_s[known.places] - counted_from - (elapsed[first] - elapsed[since])
        pace, wait = float(np.mean(known.pace)), float(np.mean(known.first - known.arrived))
        rows = np.vstack(
            [(sums[last] - sums[first]) / known.further[:, None] / pace, (sums[first] - sums[since]) / wait]
        )
        wanted = np.concatenate([known.pace / pace, (known.first - counted_from - idle) / wait])
        size = np.maximum(np.array(begin.values()), self.floor)
        size[EXPERTS_COEFFICIENT] *= begin.experts > 0.0
        held = ridge * math.sqrt(len(known.places)) * np.eye(len(size))
        weights = np.ones(len(wanted))
        solved = size
        # Least absolute deviations, because a request may have been served a step sooner or later.
        for _ in range(3):
            scaled = np.vstack([rows * size * weights[:, None], held])
            solved = size * _non_negative(scaled, np.concatenate([wanted * weights, held @ np.ones(len(size))]))
            off = np.abs(rows @ solved - wanted)
            weights = 1.0 / np.sqrt(np.maximum(off, 1e-3 + float(np.median(off))))
        return _times_of(solved)

    def search(self, begin: Calibration, width: float, most: int, number: int, blocks_width: float) -> Calibration:
        """Return the best within factors of ``e ** width`` of the initial values."""
        engine = begin.engine
        blocks = [float(engine.blocks)] if engine.blocks is not None and blocks_width else []
        num = len(self.floor) if engine.expert_share else EXPERTS_COEFFICIENT
        centre = np.log(np.concatenate([np.maximum(begin.times.values(), self.floor)[:num], blocks]))
        widths = np.array([width] * num + [blocks_width] * len(blocks))

        def at(place: Sequence[float]) -> Calibration:
            off = 2.0 * np.array(place) - 1.0
            *values, last = (float(value) for value in np.exp(centre + widths * off))
            times = _times_of([*values, last][:num])
            judged = self.judge(times, replace(engine, blocks=round(last)) if blocks else engine)
            return replace(judged, error=judged.error + FAR * float(np.mean(off[:num] ** 2)))

        return _minimise(at, len(centre), most, number)


def _error(calibration: Calibration) -> float:
    return calibration.error


def _times_of(values: Sequence[float] | Array) -> StepTimes:
    return StepTimes(**dict(zip(StepTimes.__dataclass_fields__, (float(value) for value in values), strict=False)))


def _columns(parts: Array, times: StepTimes) -> Array:
    """Return the factors of the coefficients for each step, in the order of ``StepTimes``."""
    mixed = parts[:, MIXED] > 0
    decoding = times.base + times.sequence * parts[:, DECODING] + times.experts * parts[:, EXPERTS]
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
            parts[:, EXPERTS] * ~computes,
        )
    )


def _non_negative(rows: Array, wanted: Array) -> Array:
    """Return the non-negative least squares: negative coefficients are set to 0, and the rest solved again."""
    positive = np.ones(rows.shape[1], dtype=bool)
    while True:
        solution = np.zeros(rows.shape[1])
        solution[positive] = np.linalg.lstsq(rows[:, positive], wanted, rcond=None)[0]
        if (solution >= 0).all():
            return solution
        positive &= solution > 0


def _minimise(at: Callable[[Sequence[float]], Calibration], num_dims: int, most: int, number: int) -> Calibration:
    """Return the best of a search in the unit cube that starts at its centre."""
    state, best, used, generation = SearchState.at_the_beginning(num_dims), at([0.5] * num_dims), 1, 0
    while used + state.constants.population <= most and state.step_size > 2e-4:
        places = [state.distribution.draw(number, generation, place) for place in range(state.constants.population)]
        judged = [at(place) for place in places]
        order = sorted(range(len(places)), key=lambda place: judged[place].error)
        best = min(best, judged[order[0]], key=_error)
        state = state.after([places[place] for place in order])
        used, generation = used + len(places), generation + 1
    return best
