"""A Gaussian process: draws the next trial where the expected improvement is greatest.

The objective is modelled as a draw of a Gaussian process with a Matern 5/2 kernel, a length for each coordinate (Snoek
et al., NeurIPS 2012, equations 4 and 5). Lengths and noise are those most likely given the trials and a prior
(Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, equations 2.30 and 5.9). The next trial is
where the expected improvement is greatest (Jones et al., J. Global Optimization 13, 1998, equation 15). Running trials
are assumed to have their predicted results (the Kriging believer of Ginsbourger et al., 2010), so that several at once
go to several places.

Everything follows from the trials and the key: no state is kept, and another process draws the same.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairlead.frozen import dataclass

Array = np.ndarray[Any, np.dtype[np.float64]]

# The number of finished trials used, limited by the time for a decision: the best ones and the newest others.
MOST_TRIALS = 100
MOST_BEST = 50
NUM_STEPS = 30
NUM_EVEN = 1_024
NUM_NEAR = 128
NUM_ROUNDS = 6
# A prior: most parameters change the objective over about half of their range, and noise is a small part of it.
LENGTH = (math.log(0.5), 0.8)
NOISE = (math.log(1e-3), 1.5)
# Steps of the logarithms of fitted values: the first, and bounds of all (Rprop, Riedmiller and Braun, 1993).
STEP, LEAST_STEP, MOST_STEP = 0.2, 1e-3, 0.5
LOWEST, HIGHEST = math.log(1e-6), math.log(20.0)
JITTER = 1e-8
ROOT5 = math.sqrt(5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """One coordinate of a place between 0 and 1: a range, or one value of a categorical parameter.

    Attributes:
        group: The index of its parameter; of the coordinates of a categorical one exactly one is 1.
        num_values: The number of integers of a range; None for any number.
        is_word: Whether it is one value of a categorical parameter.
        when: Earlier coordinates with values, one of which has to be met for the parameter to be active.
    """

    group: int
    num_values: int | None = None
    is_word: bool = False
    when: tuple[tuple[int, float], ...] = ()

    @property
    def absent(self) -> float:
        """Return the coordinate of a place whose parameter is inactive."""
        return 0.0 if self.is_word else 0.5


def next_place(
    axes: Sequence[Coordinate], places: Sequence[Sequence[float]], losses: Sequence[float],
    running: Sequence[Sequence[float]], key: tuple[object, ...],
) -> list[float]:  # fmt: skip
    """Return the place of the next trial.

    Args:
        axes: The coordinates.
        places: The places of finished trials, in order of their numbers.
        losses: Their objectives; lower is better.
        running: The places of running trials.
        key: The seed of the draw.
    """
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256("/".join(map(str, key)).encode()).digest()[:8]))
    chosen = _chosen(losses)
    x, y = np.array([places[index] for index in chosen]), _scaled(np.array([losses[index] for index in chosen]))
    process = Process.fitted(x, y)
    for place in running:
        process = process.believing(np.array([place]))
    # Noise of the objective counts for no improvement: the best is that of the process, not of the observations.
    best = float(process.predict(process.x)[0].min())
    candidates = _even(axes, rng, NUM_EVEN)
    top = np.argsort(process.mean_of_known)[:5]
    near = [_moved(axes, rng, process.x[index], 0.1, NUM_NEAR // 5) for index in top]
    candidates = np.concatenate([candidates, *near])
    worth = process.expected_improvement(candidates, best)
    width = 0.1
    for _ in range(NUM_ROUNDS):
        width /= 2
        around = np.concatenate([_moved(axes, rng, candidates[index], width, NUM_NEAR // 4)
                                 for index in np.argsort(-worth)[:4]])  # fmt: skip
        candidates = np.concatenate([candidates, around])
        worth = np.concatenate([worth, process.expected_improvement(around, best)])
    next_one: list[float] = candidates[int(np.argmax(worth))].tolist()
    return next_one


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A fitted process.

    Attributes:
        x: The known places.
        y: The objectives there, less their mean and divided by their standard deviation.
        logs: The logarithms of the length of each coordinate, and of the variance of noise.
        factor: The lower Cholesky factor of the covariance of the places, noise included.
    """

    x: Array
    y: Array
    logs: Array
    factor: Array

    @classmethod
    def fitted(cls, x: Array, y: Array) -> "Process":
        """Return the process with the highest posterior probability, by steps along the gradient's signs."""
        num_dims = x.shape[1]
        differences = (x[:, None, :] - x[None, :, :]) ** 2
        logs = np.array([LENGTH[0]] * num_dims + [NOISE[0]])
        steps, before = np.full(num_dims + 1, STEP), np.zeros(num_dims + 1)
        best: tuple[float, Array] = math.inf, logs
        for _ in range(NUM_STEPS):
            fit = _likelihood(differences, y, logs)
            if fit is None:
                logs = best[1] + 0.1
                continue
            cost, slope = fit
            if cost < best[0]:
                best = cost, logs
            turned = np.sign(slope) * np.sign(before)
            steps = np.clip(np.where(turned > 0, 1.2, np.where(turned < 0, 0.5, 1.0)) * steps, LEAST_STEP, MOST_STEP)
            before = np.where(turned < 0, 0.0, slope)
            logs = np.clip(logs - np.sign(before) * steps, LOWEST, HIGHEST)
        return cls.of(x, y, best[1])

    @classmethod
    def of(cls, x: Array, y: Array, logs: Array) -> "Process":
        """Return the process with these lengths and this noise."""
        covariance = _kernel(x, x, np.exp(logs[:-1])) + np.eye(len(x)) * (math.exp(logs[-1]) + JITTER)
        return cls(x=x, y=y, logs=logs, factor=np.asarray(np.linalg.cholesky(covariance), dtype=np.float64))

    @property
    def mean_of_known(self) -> Array:
        """Return the mean at the known places."""
        return self.predict(self.x)[0]

    def predict(self, places: Array) -> tuple[Array, Array]:
        """Return the mean and the variance of the objective at places (equations 2.23 and 2.24), without noise."""
        across = _kernel(self.x, places, np.exp(self.logs[:-1]))
        both = np.linalg.solve(self.factor, np.concatenate([across, self.y[:, None]], axis=1))
        weights, known = both[:, :-1], both[:, -1]
        mean: Array = weights.T @ known
        return mean, np.maximum(1.0 - (weights**2).sum(0), 1e-12)

    def believing(self, place: Array) -> "Process":
        """Return the process assuming that a trial at that place has its predicted result."""
        y = np.concatenate([self.y, self.predict(place)[0]])
        return Process.of(np.concatenate([self.x, place]), y, self.logs)

    def expected_improvement(self, places: Array, best: float) -> Array:
        """Return the expected improvement over the best at places."""
        mean, variance = self.predict(places)
        deviation = np.sqrt(variance)
        far = (best - mean) / deviation
        density = np.exp(-0.5 * far**2) / math.sqrt(2 * math.pi)
        below = 0.5 * (1.0 + np.vectorize(math.erf)(far / math.sqrt(2.0)))
        worth: Array = deviation * (far * below + density)
        return worth


def _likelihood(differences: Array, y: Array, logs: Array) -> tuple[float, Array] | None:
    """Return the negative log posterior, less a constant, and its gradient; None if rounding makes it undefined."""
    lengths, noise = np.exp(logs[:-1]), math.exp(logs[-1])
    scaled = differences / lengths**2
    distance = np.sqrt(scaled.sum(2))
    decay = np.exp(-ROOT5 * distance)
    kernel = (1.0 + ROOT5 * distance + 5.0 / 3.0 * distance**2) * decay
    size = len(y)
    covariance = kernel + np.eye(size) * (noise + JITTER)
    try:
        factor = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return None
    inverse = np.linalg.inv(covariance)
    known = inverse @ y
    prior = np.concatenate([(logs[:-1] - LENGTH[0]) / LENGTH[1], [(logs[-1] - NOISE[0]) / NOISE[1]]])
    cost = 0.5 * float(y @ known) + float(np.log(np.diag(factor)).sum()) + 0.5 * float((prior**2).sum())
    # d kernel / d log length = 5/3 (1 + root5 r) exp(-root5 r) times the coordinate's part of r squared.
    outer = np.outer(known, known) - inverse
    common = outer * (5.0 / 3.0 * (1.0 + ROOT5 * distance) * decay)
    slope = np.concatenate([
        -0.5 * np.einsum("ij,ijd->d", common, scaled) + prior[:-1] / LENGTH[1],
        [-0.5 * float(np.trace(outer)) * noise + prior[-1] / NOISE[1]],
    ])  # fmt: skip
    return cost, slope


def _kernel(one: Array, other: Array, lengths: Array) -> Array:
    """Return the Matern 5/2 kernel with a length for each coordinate."""
    a, b = one / lengths, other / lengths
    squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2.0 * a @ b.T
    distance = np.sqrt(np.maximum(squared, 0.0))
    covariance: Array = (1.0 + ROOT5 * distance + 5.0 / 3.0 * distance**2) * np.exp(-ROOT5 * distance)
    return covariance


def _chosen(losses: Sequence[float]) -> list[int]:
    """Return the indices of the trials used, in order."""
    if len(losses) <= MOST_TRIALS:
        return list(range(len(losses)))
    best = set(sorted(range(len(losses)), key=lambda index: losses[index])[:MOST_BEST])
    others = [index for index in range(len(losses)) if index not in best]
    return sorted(best | set(others[len(best) - MOST_TRIALS :]))


def _scaled(losses: Array) -> Array:
    """Standardise objectives after capping bad ones, whose degree is irrelevant for good ones."""
    middle, least = float(np.median(losses)), float(losses.min())
    cut = np.minimum(losses, middle + 2.0 * (middle - least)) if middle > least else losses
    spread = float(cut.std())
    scaled: Array = (cut - cut.mean()) / spread if spread > 0 else np.zeros(len(cut))
    return scaled


def _even(axes: Sequence[Coordinate], rng: np.random.Generator, number: int) -> Array:
    return _rounded(axes, rng.random((number, len(axes))))


def _moved(axes: Sequence[Coordinate], rng: np.random.Generator, place: Array, width: float, number: int) -> Array:
    """Return places around one: each coordinate is moved half of the time, a categorical one seldom."""
    is_word = np.array([axis.is_word for axis in axes])
    moves = rng.normal(0.0, width, (number, len(axes))) * (rng.random((number, len(axes))) < 0.5)
    words = np.where(rng.random((number, len(axes))) < 0.1, 2.0, 0.0)  # more than any other of its parameter's values
    return _rounded(axes, np.clip(place + np.where(is_word, words * is_word, moves), 0.0, np.where(is_word, 3.0, 1.0)))


def _rounded(axes: Sequence[Coordinate], places: Array) -> Array:
    """Round places to valid ones: integers, one value per categorical parameter, inactive parameters absent."""
    places = places.copy()
    groups: dict[int, list[int]] = {}
    for column, axis in enumerate(axes):
        if axis.is_word:
            groups.setdefault(axis.group, []).append(column)
        elif axis.num_values is not None:
            most = max(1, axis.num_values - 1)
            places[:, column] = np.round(places[:, column] * most) / most
    for columns in groups.values():
        largest = np.argmax(places[:, columns], axis=1)
        places[:, columns] = 0.0
        places[np.arange(len(places)), np.array(columns)[largest]] = 1.0
    for column, axis in enumerate(axes):
        if axis.when:
            is_met = np.any([np.abs(places[:, at] - value) < 1e-6 for at, value in axis.when], axis=0)
            places[~is_met, column] = axis.absent
    return places
