"""CMA-ES: draws trials from a normal distribution that adapts towards the best of each generation.

The distribution follows from the trials alone: finished ones, in order of their numbers, are taken one generation at a
time. So no state is kept, and another process draws the same. It covers unconditional ranges, each between 0 and 1;
other parameters are drawn at random.

Formulas and constants: Hansen, "The CMA Evolution Strategy: A Tutorial" (arXiv:1604.00772), with the Cholesky factor in
place of the square root of the covariance, as in Krause et al., "CMA-ES with Optimal Covariance Update and Storage
Complexity" (NeurIPS 2016), which needs no eigenvectors.
"""

import math
from collections.abc import Sequence
from functools import cached_property

from fairlead.frozen import dataclass
from fairlead.policy.search.trials import draw

START = 0.5
"""The initial mean of every coordinate."""
START_WIDTH = 0.3
"""The initial standard deviation: a third of the range, as in the tutorial."""
WIDTHS = (1e-4, 1.0)
"""Bounds of the step size: narrower than any relevant difference, wider than the range."""
MOST_TRIES = 20

Vector = list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A normal distribution of the next trials: mean, step size, and lower Cholesky factor of the covariance."""

    mean: Vector
    step_size: float
    factor: list[Vector]

    def draw(self, *key: object) -> Vector:
        """Return a place in the unit cube that follows from the key."""
        for attempt in range(MOST_TRIES):
            normal = [_normal(*key, place, attempt) for place in range(len(self.mean))]
            moved = _times(self.factor, normal)
            point = [mean + self.step_size * part for mean, part in zip(self.mean, moved, strict=True)]
            if all(0.0 <= coordinate <= 1.0 for coordinate in point):
                return point
        return [min(max(coordinate, 0.0), 1.0) for coordinate in point]


def distribution_after(num_dims: int, places: Sequence[Vector], order: Sequence[int]) -> Distribution:
    """Return the distribution after finished trials.

    Args:
        num_dims: Coordinates of a place.
        places: The place of each trial, in order of their numbers; those that do not fill a generation are ignored.
        order: The indices of trials in that list, best first.
    """
    state = SearchState.at_the_beginning(num_dims)
    size = state.constants.population
    rank = {place: number for number, place in enumerate(order)}
    for begin in range(0, len(places) - size + 1, size):
        generation = sorted(range(begin, begin + size), key=lambda place: rank[place])
        state = state.after([places[place] for place in generation])
    return state.distribution


@dataclass(frozen=True)
class _Constants:
    """The constants of a strategy, which follow from the number of dimensions (table 1 of the tutorial)."""

    num_dims: int

    @cached_property
    def population(self) -> int:
        return 4 + int(3 * math.log(self.num_dims))

    @cached_property
    def weights(self) -> Vector:
        """Return the weights of the better half; they sum to one."""
        half = self.population // 2
        raw = [math.log((self.population + 1) / 2) - math.log(place + 1) for place in range(half)]
        return [value / sum(raw) for value in raw]

    @cached_property
    def effective(self) -> float:
        """Return the variance effective selection mass."""
        return 1.0 / sum(value * value for value in self.weights)

    @cached_property
    def against(self) -> Vector:
        """Return negative weights of the worse half: the covariance shrinks in their direction (equations 49 to 53)."""
        begin = len(self.weights)
        raw = [math.log((self.population + 1) / 2) - math.log(place + 1) for place in range(begin, self.population)]
        total = -sum(raw)
        effective = total * total / sum(value * value for value in raw)
        bounds = (
            1 + self.rank_one / self.rank_mu,
            1 + 2 * effective / (self.effective + 2),
            (1 - self.rank_one - self.rank_mu) / (self.num_dims * self.rank_mu),
        )
        return [value * min(bounds) / total for value in raw]

    @cached_property
    def path_rate(self) -> float:
        return (self.effective + 2) / (self.num_dims + self.effective + 5)

    @cached_property
    def damping(self) -> float:
        return 1 + 2 * max(0.0, math.sqrt((self.effective - 1) / (self.num_dims + 1)) - 1) + self.path_rate

    @cached_property
    def covariance_path_rate(self) -> float:
        share = self.effective / self.num_dims
        return (4 + share) / (self.num_dims + 4 + 2 * share)

    @cached_property
    def rank_one(self) -> float:
        return 2 / ((self.num_dims + 1.3) ** 2 + self.effective)

    @cached_property
    def rank_mu(self) -> float:
        wanted = 2 * (self.effective - 2 + 1 / self.effective) / ((self.num_dims + 2) ** 2 + self.effective)
        return min(1 - self.rank_one, wanted)

    @cached_property
    def expected_length(self) -> float:
        """Return the expected length of a standard normal vector."""
        dims = self.num_dims
        return math.sqrt(dims) * (1 - 1 / (4 * dims) + 1 / (21 * dims * dims))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchState:
    """The state of the search after some generations.

    Attributes:
        path: Evolution path of the mean that controls the step size; whitened.
        covariance_path: Evolution path of the mean that controls the covariance.
        number: The number of generations so far.
    """

    constants: _Constants
    mean: Vector
    step_size: float
    covariance: list[Vector]
    factor: list[Vector]
    path: Vector
    covariance_path: Vector
    number: int

    @classmethod
    def at_the_beginning(cls, num_dims: int) -> "SearchState":
        one = [[float(row == column) for column in range(num_dims)] for row in range(num_dims)]
        nothing = [0.0] * num_dims
        return cls(
            constants=_Constants(num_dims), mean=[START] * num_dims, step_size=START_WIDTH, covariance=one, factor=one,
            path=nothing, covariance_path=nothing, number=0,
        )  # fmt: skip

    @property
    def distribution(self) -> Distribution:
        """Return the distribution of the next generation."""
        return Distribution(mean=self.mean, step_size=self.step_size, factor=self.factor)

    def after(self, generation: Sequence[Vector]) -> "SearchState":
        """Return the state after a generation, best first: equations 41 to 47 of the tutorial."""
        constants, dims = self.constants, range(len(self.mean))
        steps = [[(place[dim] - self.mean[dim]) / self.step_size for dim in dims] for place in generation]
        good, bad = steps[: len(constants.weights)], steps[len(constants.weights) :]
        step = [
            sum(weight * vector[dim] for weight, vector in zip(constants.weights, good, strict=True)) for dim in dims
        ]
        number = self.number + 1

        rate, effective = constants.path_rate, constants.effective
        whitened = _solve(self.factor, step)
        decay, gained = 1 - rate, math.sqrt(rate * (2 - rate) * effective)
        path = [decay * self.path[dim] + gained * whitened[dim] for dim in dims]
        length = math.sqrt(sum(value * value for value in path))
        step_size = self.step_size * math.exp(rate / constants.damping * (length / constants.expected_length - 1))

        # A path that is too long because of a large random step must not stretch the covariance.
        limit = (1.4 + 2 / (len(self.mean) + 1)) * constants.expected_length
        is_short = length / math.sqrt(1 - decay ** (2 * number)) < limit
        rate = constants.covariance_path_rate
        gained = math.sqrt(rate * (2 - rate) * effective) if is_short else 0.0
        covariance_path = [(1 - rate) * self.covariance_path[dim] + gained * step[dim] for dim in dims]
        one, mu = constants.rank_one, constants.rank_mu
        weighted = list(zip(constants.weights, good, strict=True))
        for weight, vector in zip(constants.against, bad, strict=True):
            # Normalised by distance, so that the covariance stays positive definite (equation 46).
            distance = sum(part * part for part in _solve(self.factor, vector))
            weighted.append((weight * len(self.mean) / max(distance, 1e-12), vector))
        left = 1 - one - mu * (1 + sum(constants.against)) + (0.0 if is_short else one * rate * (2 - rate))
        covariance = [
            [
                left * self.covariance[row][column]
                + one * covariance_path[row] * covariance_path[column]
                + mu * sum(weight * vector[row] * vector[column] for weight, vector in weighted)
                for column in dims
            ]
            for row in dims
        ]
        return SearchState(
            constants=constants,
            mean=[self.mean[dim] + self.step_size * step[dim] for dim in dims],
            step_size=min(max(step_size, WIDTHS[0]), WIDTHS[1]),
            covariance=covariance,
            factor=_cholesky(covariance),
            path=path,
            covariance_path=covariance_path,
            number=number,
        )


def _normal(*key: object) -> float:
    """Return a standard normal number that follows from its key (Box and Muller, 1958)."""
    return math.sqrt(-2.0 * math.log(1.0 - draw(*key, "distance"))) * math.cos(2.0 * math.pi * draw(*key, "turn"))


def _times(factor: Sequence[Vector], vector: Vector) -> Vector:
    return [sum(row[place] * vector[place] for place in range(number + 1)) for number, row in enumerate(factor)]


def _solve(factor: Sequence[Vector], vector: Vector) -> Vector:
    """Solve ``factor @ found = vector`` for a lower triangular factor."""
    solution: Vector = []
    for number, row in enumerate(factor):
        solution.append((vector[number] - sum(row[place] * solution[place] for place in range(number))) / row[number])
    return solution


def _cholesky(matrix: Sequence[Vector]) -> list[Vector]:
    """Return the lower factor; a diagonal element that rounding has made too small is kept positive."""
    size = len(matrix)
    factor = [[0.0] * size for _ in range(size)]
    for row in range(size):
        for column in range(row + 1):
            left = matrix[row][column] - sum(factor[row][place] * factor[column][place] for place in range(column))
            factor[row][column] = math.sqrt(max(left, 1e-12)) if row == column else left / factor[column][column]
    return factor
