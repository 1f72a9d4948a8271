"""Chooses the values of the next trial, as a function of the sweep, its number and earlier trials."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from fairlead.deferred import deferred
from fairlead.frozen import dataclass
from fairlead.policy.search.covariance_adaptation import distribution_after
from fairlead.policy.search.nondominated_sorting import POPULATION, breed
from fairlead.policy.search.pruning import RungReport
from fairlead.policy.search.trials import CUT_SHORT, TrialRecord, TrialState, draw, has_ended, ranked
from fairlead.specs.goal import Goal
from fairlead.specs.search_space import Parameter, Value, grid
from fairlead.specs.sweep import Sampler, Sweep

if TYPE_CHECKING:
    from fairlead.policy.search import gaussian_process
    from fairlead.policy.search.gaussian_process import Coordinate
else:
    gaussian_process = deferred("fairlead.policy.search.gaussian_process")

# As in Optuna's TPESampler: random trials at first, candidates for each parameter, and the number of good trials.
NUM_RANDOM = 10
NUM_CANDIDATES = 24
GOOD_PART = 0.1
MOST_GOOD = 25
# The newest of the others; more would cost time without new information.
MOST_OTHERS = 200
# Trials are compared where the furthest rung has the values of so many (decision 150).
LEAST_COMPARED = 8
# In widths of a distribution, none of which is below 0.01, so that its density is below 120: at this distance that is
# less than half the spacing of floats at 1.
NO_MORE = 9.5

Reports: TypeAlias = Sequence[RungReport]


def suggest(sweep: Sweep, number: int, history: Sequence[TrialRecord], reports: Reports = ()) -> dict[str, Value]:
    """Return the values of a trial.

    Args:
        number: The number of the trial, from 0.
        history: Earlier trials, in order of their numbers.
        reports: The values of trials at rungs.
    """
    return SAMPLERS[sweep.chosen_sampler](sweep, number, history, reports)


def best_first(sweep: Sweep, ended: Sequence[TrialRecord], reports: Reports) -> list[TrialRecord]:
    """Sort trials that ended with a value by their values after as many steps, as far as possible.

    They are compared at the end if enough came to it, or else at the furthest rung to which enough came, as in BOHB
    (Falkner et al., ICML 2018, section 3.2); those that were stopped before come after, compared where they were last.
    So the first few that were let go on are not taken for the best because of that.
    """
    sign = _goal_of(sweep).sign
    numbers = {trial.number for trial in ended}
    # By trial, its values at rungs, and as the last its value at the end.
    num_rungs = 1 + max((other.rung for other in reports), default=-1)
    places: list[dict[int, float]] = [{} for _ in range(num_rungs + 1)]
    for report in reports:
        if report.trial in numbers and not report.is_late:
            places[report.rung][report.trial] = sign * report.value
    for record in ended:
        if record.state is TrialState.SUCCEEDED:
            places[-1][record.number] = sign * (record.value or 0.0)
    enough = (at for at in reversed(range(len(places))) if len(places[at]) >= LEAST_COMPARED)
    furthest = next(enough, len(places) - 1)

    def rank(trial: TrialRecord) -> tuple[int, int, float, int]:
        for at in range(furthest, -1, -1):
            if trial.number in places[at]:
                return furthest - at, 0, places[at][trial.number], trial.number
        return furthest + 1, -(trial.step or 0), sign * (trial.value or 0.0), trial.number

    return sorted(ended, key=rank)


def _goal_of(sweep: Sweep) -> Goal:
    return Goal.MINIMIZE if sweep.objective is None else sweep.objective.goal


def _random(sweep: Sweep, number: int, _history: Sequence[TrialRecord], _reports: Reports) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for parameter in sweep.space:
        if parameter.is_active(values):
            values[parameter.name] = parameter.at(draw(sweep.seed, number, parameter.name))
    return values


def _grid(sweep: Sweep, number: int, _history: Sequence[TrialRecord], _reports: Reports) -> dict[str, Value]:
    return next(islice(grid(sweep.space), number, None))


def _tpe(sweep: Sweep, number: int, history: Sequence[TrialRecord], reports: Reports) -> dict[str, Value]:
    """Draw by a tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011), each parameter independently.

    Running trials count among the others, so that several at once do not all go to one place.
    """
    ended = [trial for trial in history if has_ended(trial)]
    if len(ended) < NUM_RANDOM:
        return _random(sweep, number, history, reports)
    good = best_first(sweep, ended, reports)[: min(math.ceil(GOOD_PART * len(ended)), MOST_GOOD)]
    is_good = {trial.number for trial in good}
    active = [trial for trial in history if trial.state is TrialState.ACTIVE]
    others = [*[trial for trial in ended if trial.number not in is_good][-MOST_OTHERS:], *active]
    values: dict[str, Value] = {}
    for parameter in sweep.space:
        if not parameter.is_active(values):
            continue
        near, far = (
            [trial.values[parameter.name] for trial in group if parameter.name in trial.values]
            for group in (good, others)
        )
        key = (sweep.seed, number, parameter.name)
        choose = _best_choice if parameter.choices else _best_part
        values[parameter.name] = choose(parameter, near, far, key)
    return values


def _cma_es(sweep: Sweep, number: int, history: Sequence[TrialRecord], reports: Reports) -> dict[str, Value]:
    """Draw unconditional ranges by CMA-ES, and the other parameters at random."""
    adapted = sweep.adapted
    ordered = ranked(list(history), _goal_of(sweep))
    ended = sorted(ordered, key=lambda trial: trial.number)
    index = {trial.number: at for at, trial in enumerate(ended)}
    places = [[parameter.part(trial.values[parameter.name]) for parameter in adapted] for trial in ended]
    distribution = distribution_after(len(adapted), places, [index[trial.number] for trial in ordered])
    parts = distribution.draw(sweep.seed, number, "cma-es")
    drawn = {parameter.name: min(part, 1 - 1e-12) for parameter, part in zip(adapted, parts, strict=True)}
    values: dict[str, Value] = {}
    for parameter in sweep.space:
        if parameter.name in drawn:
            values[parameter.name] = parameter.at(drawn[parameter.name])
        elif parameter.is_active(values):
            values[parameter.name] = parameter.at(draw(sweep.seed, number, parameter.name))
    return values


def _gp(sweep: Sweep, number: int, history: Sequence[TrialRecord], reports: Reports) -> dict[str, Value]:
    """Draw where a Gaussian process has the greatest expected improvement; at random until there are a few trials.

    If trials were pruned, it learns from the order of all finished ones, as values at different steps are not
    comparable.
    """
    goal = _goal_of(sweep)
    ordered = ranked(list(history), goal)
    if len(ordered) < min(NUM_RANDOM, max(3, 2 * len(sweep.space))):
        return _random(sweep, number, history, reports)

    axes = _axes(sweep.space)
    is_by_rank = any(trial.state in CUT_SHORT for trial in ordered)
    loss = {
        trial.number: float(rank) if is_by_rank else goal.sign * (trial.value or 0.0)
        for rank, trial in enumerate(ordered)
    }
    known = sorted(ordered, key=lambda trial: trial.number)
    losses = [loss[trial.number] for trial in known]
    running = [_place(sweep.space, trial.values) for trial in history if trial.state is TrialState.ACTIVE]
    places = [_place(sweep.space, trial.values) for trial in known]
    return _at_place(
        sweep.space, gaussian_process.next_place(axes, places, losses, running, (sweep.seed, number, "gp"))
    )


def _nsga_ii(sweep: Sweep, number: int, history: Sequence[TrialRecord], reports: Reports) -> dict[str, Value]:
    """Cross two of the best trials and mutate the child; at random until there are enough."""
    ended = [trial for trial in history if trial.scores and trial.state is TrialState.SUCCEEDED]
    if len(ended) < POPULATION:
        return _random(sweep, number, history, reports)
    return breed(sweep, number, ended)


def _axes(space: Sequence[Parameter]) -> "list[Coordinate]":
    """Return the coordinates of a place: one per range, and one per value of a categorical parameter."""
    axes: list[gaussian_process.Coordinate] = []
    first: dict[str, int] = {}
    for group, parameter in enumerate(space):
        first[parameter.name] = len(axes)
        when: tuple[tuple[int, float], ...] = ()
        if parameter.when is not None:
            other = next(parent for parent in space if parent.name == parameter.when[0])
            at = first[other.name]
            if other.choices:
                when = tuple((at + other.choices.index(value), 1.0) for value in parameter.when[1])
            else:
                when = tuple((at, other.part(value)) for value in parameter.when[1])
        if parameter.choices:
            axes.extend(gaussian_process.Coordinate(group=group, is_word=True, when=when) for _ in parameter.choices)
        else:
            # Integers on a logarithmic scale are not evenly spaced.
            is_even = parameter.is_whole and not parameter.is_log
            num_values = int(parameter.high - parameter.low) + 1 if is_even else None
            axes.append(gaussian_process.Coordinate(group=group, num_values=num_values, when=when))
    return axes


def _place(space: Sequence[Parameter], values: Mapping[str, Value]) -> list[float]:
    """Return the place of a trial in those coordinates."""
    place: list[float] = []
    for parameter in space:
        if parameter.choices:
            place.extend(float(values.get(parameter.name) == choice) for choice in parameter.choices)
        else:
            place.append(parameter.part(values[parameter.name]) if parameter.name in values else 0.5)
    return place


def _at_place(space: Sequence[Parameter], place: Sequence[float]) -> dict[str, Value]:
    """Return the values at a place."""
    values: dict[str, Value] = {}
    at = 0
    for parameter in space:
        parts = place[at : at + max(1, len(parameter.choices))]
        at += len(parts)
        if parameter.is_active(values):
            values[parameter.name] = (
                parameter.choices[max(range(len(parts)), key=parts.__getitem__)]
                if parameter.choices
                else parameter.nearest(parts[0])
            )
    return values


def _best_choice(parameter: Parameter, near: Sequence[Value], far: Sequence[Value], key: tuple[object, ...]) -> Value:
    """Return the value, of those drawn as often as among the good trials, that is rarest among the others."""
    choices = parameter.choices
    weights = [1.0 + near.count(choice) for choice in choices]
    ratios = [
        (1.0 + near.count(choice))
        / (len(near) + len(choices))
        / ((1.0 + far.count(choice)) / (len(far) + len(choices)))
        for choice in choices
    ]
    drawn = [_weighted(weights, draw(*key, place)) for place in range(NUM_CANDIDATES)]
    return choices[max(drawn, key=lambda place: ratios[place])]


def _best_part(parameter: Parameter, near: Sequence[Value], far: Sequence[Value], key: tuple[object, ...]) -> Value:
    """Return the number, of those drawn near the good trials, with the highest density ratio of good to others."""
    good, others = (tuple(sorted(parameter.part(value) for value in group)) for group in (near, far))
    return parameter.at(_best_place(good, others, key))


# A pure function, called twice if a trial is foreseen; a sweep's parameters are few.
@lru_cache(maxsize=256)
def _best_place(near: tuple[float, ...], far: tuple[float, ...], key: tuple[object, ...]) -> float:
    good, others = _Mixture.around(near), _Mixture.around(far)
    drawn = [good.draw((*key, place)) for place in range(NUM_CANDIDATES)]
    return min(max(drawn, key=lambda part: good.log_density(part) - others.log_density(part)), 1 - 1e-12)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixture:
    """Normal distributions around places between 0 and 1, truncated there, and a uniform one of the same weight.

    Attributes:
        places: Ascending.
        terms: For each its place, the factor of the squared distance in its exponent, and its density at its place.
        reach: Beyond this distance none of them contributes to a sum of 1 or more.
    """

    places: Sequence[float]
    widths: Sequence[float]
    terms: Sequence[tuple[float, float, float]]
    reach: float

    @classmethod
    def around(cls, ordered: Sequence[float]) -> "_Mixture":
        """Return a mixture in which each is as wide as its larger neighbouring gap, with a minimum width."""
        edges = [0.0, *ordered, 1.0]
        least = 1.0 / min(100, len(ordered) + 2)
        widths = [
            min(1.0, max(least, edges[index + 1] - edges[index], edges[index + 2] - edges[index + 1]))
            for index in range(len(ordered))
        ]
        root = math.sqrt(2.0)
        terms = []
        for place, width in zip(ordered, widths, strict=True):
            inside = 0.5 * (math.erf((1.0 - place) / (width * root)) + math.erf(place / (width * root)))
            terms.append((place, -0.5 / width**2, 1.0 / (width * math.sqrt(2.0 * math.pi) * inside)))
        return cls(places=ordered, widths=widths, terms=terms, reach=NO_MORE * max(widths, default=0.0))

    def draw(self, key: tuple[object, ...]) -> float:
        """Return a place that follows from the key."""
        which = int(draw(*key, "which") * (len(self.places) + 1))
        if which == len(self.places):
            return draw(*key, "even")
        for attempt in range(20):
            distance = math.sqrt(-2.0 * math.log(1.0 - draw(*key, "distance", attempt)))
            turn = math.cos(2.0 * math.pi * draw(*key, "turn", attempt))
            part = self.places[which] + self.widths[which] * distance * turn
            if 0.0 <= part <= 1.0:
                return part
        return self.places[which]

    def log_density(self, part: float) -> float:
        """Return the logarithm of the density at a place."""
        total, exp = 1.0, math.exp  # for 24 candidates, each with hundreds of trials: most of a sampler's time
        first, last = bisect_left(self.places, part - self.reach), bisect_right(self.places, part + self.reach)
        for place, scale, peak in self.terms[first:last]:
            distance = part - place
            total += peak * exp(scale * distance * distance)
        return math.log(total / (len(self.places) + 1))


def _weighted(weights: Sequence[float], part: float) -> int:
    left = part * sum(weights)
    for place, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return place
    return len(weights) - 1


SAMPLERS: dict[Sampler, Callable[[Sweep, int, Sequence[TrialRecord], Reports], dict[str, Value]]] = {
    Sampler.RANDOM: _random,
    Sampler.GRID: _grid,
    Sampler.TPE: _tpe,
    Sampler.CMA_ES: _cma_es,
    Sampler.GP: _gp,
    Sampler.NSGA_II: _nsga_ii,
}
