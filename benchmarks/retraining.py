"""The cost of staleness and of trainings together, by the rule that decides when to train, beside the optimum.

    python -m benchmarks.retraining [--seeds 2] [--json]

Five streams of 20,000 labelled rows, checked after every 100: a rotating hyperplane (Hulten et al., KDD 2001), SEA
(Street and Kim, KDD 2001), circles and two Gaussians that change places (Gama et al., SBIA 2004), and the Shuttle
data set of the package river, which hardly drifts. The model is a logistic regression on products of two features,
trained on the newest 500 rows. A mistake costs 1 and a training 10, 50, 200 or 500. The oracle knows the mistakes of
every model on all later rows, and finds the cheapest times to train exactly (dynamic programming). The other rules see
only the mistakes of the model in use: Fairlead as in a pipeline with `on: {drift: {cost: ...}}`, each detector of
`on: {drift: {detector: ...}}` by itself, and neither.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from fairlead.control.pipelines.drift import first_drift
from fairlead.policy.kinds.staleness import staleness
from fairlead.specs.pipeline import FRESH_WINDOW, Detector

LOOKS, ROWS, TRAINED_ON = 200, 100, 5
COSTS = (10, 50, 200, 500)
Floats = NDArray[np.float64]
# Features (rows x features) and classes 0 and 1 (rows), in the order they come.
Stream = tuple[Floats, NDArray[np.int64]]


def main(given: Sequence[str] | None = None) -> None:
    """Parse, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="streams of each made kind (default 2)")
    parser.add_argument("--looks", type=int, default=LOOKS, help=f"hundreds of rows in each (default {LOOKS})")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args(given)
    if arguments.seeds < 1 or arguments.looks <= TRAINED_ON:
        parser.error(f"--seeds is at least 1 and --looks at least {TRAINED_ON + 1}")
    found: dict[tuple[int, str, str], list[float]] = {}
    for stream, seed, rows in streams(arguments.seeds, arguments.looks):
        history = replayed(rows)
        for cost in COSTS:
            best = oracle(history, cost)
            for policy, decide in POLICIES.items():
                total, trainings = spent(history, cost, decide)
                if not arguments.json:
                    found.setdefault((cost, policy, stream), []).append(total / best)
                else:
                    row = {"stream": stream, "seed": seed, "training_cost": cost, "policy": policy}
                    print(json.dumps({**row, "cost": total, "trainings": trainings, "oracle": best}), flush=True)
    if not arguments.json:
        show(found)


def show(found: dict[tuple[int, str, str], list[float]]) -> None:
    """Print the mean cost of each policy as a multiple of the oracle's."""
    names = list(dict.fromkeys(stream for _, _, stream in found))
    for cost in COSTS:
        print(f"a training costs {cost} mistakes; cost as a multiple of the oracle's")
        print(f"  {'':<14}" + "".join(f"{name:>12}" for name in names) + f"{'mean':>12}")
        for policy in POLICIES:
            means = [fmean(found[cost, policy, name]) for name in names]
            print(f"  {policy:<14}" + "".join(f"{mean:>12.3f}" for mean in (*means, fmean(means))))


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The mistakes that each model would have made.

    Attributes:
        mistakes: By the look before which a model was trained: 0 or 1 for each later row.
        first: The first look before which there is enough to train on.
        looks: The number of looks.
    """

    mistakes: dict[int, Floats]
    first: int
    looks: int

    def at(self, trained: int, look: int) -> Floats:
        """The mistakes of a model between one look and the next."""
        return self.mistakes[trained][(look - trained) * ROWS : (look - trained + 1) * ROWS]


def replayed(rows: Stream) -> History:
    """Train before every look, and see what becomes of the model."""
    features, classes = rows
    looks, mistakes = len(classes) // ROWS, {}
    for look in range(TRAINED_ON, looks):
        part = slice((look - TRAINED_ON) * ROWS, look * ROWS)
        model = train(features[part], classes[part])
        mistakes[look] = (model(features[look * ROWS :]) != classes[look * ROWS :]).astype(float)
    return History(mistakes=mistakes, first=TRAINED_ON, looks=looks)


def oracle(history: History, cost: float) -> float:
    """The least that could have been spent."""
    best = {history.looks: 0.0}
    for trained in reversed(range(history.first, history.looks)):
        lost = np.concatenate([[0.0], np.cumsum(history.mistakes[trained])])[::ROWS]
        ends = range(trained + 1, history.looks + 1)
        best[trained] = min(lost[end - trained] + best[end] + cost * (end < history.looks) for end in ends)
    return best[history.first]


# From the mistakes since the last training, the loss of a fresh model as known then, and what a training costs: whether
# to train, and that loss as known now.
Policy = Callable[[Sequence[float], float | None, float], tuple[bool, float | None]]


def spent(history: History, cost: float, decide: Policy) -> tuple[float, int]:
    """The cost of mistakes and trainings, and how many trainings, where a policy decides after each look."""
    trained, fresh, total, trainings = history.first, None, 0.0, 0
    seen: list[float] = []
    for look in range(history.first, history.looks):
        new = history.at(trained, look)
        total += float(new.sum())
        seen += new.tolist()
        is_due, known = decide(seen, fresh, cost)
        if is_due and look + 1 < history.looks:
            trained, fresh, seen = look + 1, known, []
            total, trainings = total + cost, trainings + 1
    return total, trainings


def by_cost(seen: Sequence[float], fresh: float | None, cost: float) -> tuple[bool, float | None]:
    """The rule of ``on: {drift: {cost: ...}}``."""
    now = staleness(seen, fresh=fresh, window=FRESH_WINDOW, is_new=True)
    return now.fresh is not None and now.excess >= cost, now.fresh


def by(detector: Detector) -> Policy:
    """The rule of ``on: {drift: {detector: ...}}``."""
    return lambda seen, fresh, cost: (first_drift(detector, seen) is not None, None)


POLICIES: dict[str, Policy] = {
    "fairlead": by_cost,
    **{str(detector): by(detector) for detector in Detector},
    "at every look": lambda seen, fresh, cost: (True, None),
    "never": lambda seen, fresh, cost: (False, None),
}


def train(features: Floats, classes: NDArray[np.int64]) -> Callable[[Floats], NDArray[np.int64]]:
    """Fit a logistic regression by Newton's method, with a quadratic penalty, on standardised products of features."""
    expanded = _products(features)
    mean, scale = expanded.mean(0), expanded.std(0) + 1e-9
    mean[0], scale[0] = 0.0, 1.0
    inputs, weights = (expanded - mean) / scale, np.zeros(expanded.shape[1])
    for _ in range(8):
        chance = 1.0 / (1.0 + np.exp(-np.clip(inputs @ weights, -30.0, 30.0)))
        spread = chance * (1.0 - chance) + 1e-6
        curvature = (inputs * spread[:, None]).T @ inputs + np.eye(len(weights))
        weights = weights + np.linalg.solve(curvature, inputs.T @ (classes - chance) - weights)
    return lambda rows: (((_products(rows) - mean) / scale) @ weights > 0.0).astype(np.int64)


def _products(features: Floats) -> Floats:
    one, other = np.triu_indices(features.shape[1])
    return np.column_stack([np.ones(len(features)), features, features[:, one] * features[:, other]])


def streams(seeds: int, looks: int) -> Iterator[tuple[str, int, Stream]]:
    """Each stream by its name and seed; what a package brings is there once."""
    made = {"hyperplane": hyperplane, "sea": sea, "circles": circles, "gauss": gauss}
    for name, make in made.items():
        for seed in range(seeds):
            yield name, seed, make(np.random.default_rng(seed), looks * ROWS)
    yield "shuttle", 0, shuttle(looks * ROWS)


def hyperplane(rng: np.random.Generator, number: int) -> Stream:
    """Ten features in a cube cut by a plane, five of whose weights wander; one class in 20 is wrong."""
    rows = rng.random((number, 10))
    weights, way = rng.random(10), rng.choice([-1.0, 1.0], 5)
    classes = np.zeros(number, dtype=np.int64)
    for begin in range(0, number, ROWS):
        part = slice(begin, begin + ROWS)
        classes[part] = rows[part] @ weights > 0.5 * weights.sum()
        weights[:5] += 0.03 * way
        way[rng.random(5) < 0.1] *= -1.0
    return rows, classes ^ (rng.random(number) < 0.05)


def sea(rng: np.random.Generator, number: int) -> Stream:
    """Three features of which two count, summed, against a bound that jumps three times; one class in ten is wrong."""
    rows = rng.random((number, 3)) * 10.0
    bound = np.repeat([8.0, 9.0, 7.0, 9.5], -(-number // 4))[:number]
    return rows, (rows[:, 0] + rows[:, 1] <= bound).astype(np.int64) ^ (rng.random(number) < 0.1)


def circles(rng: np.random.Generator, number: int) -> Stream:
    """Points of a square, inside a circle or not, which moves and grows three times."""
    rows = rng.random((number, 2))
    stage = np.arange(number) * 4 // number
    centre, radius = np.array([0.2, 0.4, 0.6, 0.8])[stage], np.array([0.15, 0.2, 0.25, 0.3])[stage]
    return rows, ((rows[:, 0] - centre) ** 2 + (rows[:, 1] - 0.5) ** 2 <= radius**2).astype(np.int64)


def gauss(rng: np.random.Generator, number: int) -> Stream:
    """Two Gaussians a class each, two standard deviations apart, which change places four times."""
    classes = rng.integers(0, 2, number)
    places = np.where((classes == 1) ^ (np.arange(number) * 5 // number % 2 == 1), 1.0, -1.0)
    return rng.normal(size=(number, 2)) + np.column_stack([places, np.zeros(number)]), classes


def shuttle(number: int) -> Stream:
    """Readings of sensors in the order of the file, and whether they are out of the ordinary."""
    from river.datasets import Shuttle

    pairs = [(list(row.values()), found) for row, found in Shuttle().take(number)]
    return np.array([row for row, _ in pairs], dtype=float), np.array([found for _, found in pairs], dtype=np.int64)


if __name__ == "__main__":
    main()
