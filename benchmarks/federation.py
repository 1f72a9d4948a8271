"""Federations of unlike sites: the choice of `sample` and `deadline` beside a grid of both.

    python -m benchmarks.federation [--seeds 42-53] [--worlds links,windows] [--json]

The digits of scikit-learn, divided among 100 sites by a Dirichlet distribution of 0.1, train a softmax regression in
NumPy by FedAvg, FedProx and FedAdam as Flower computes them. Sites differ in speed, link, number of digits and
availability; in the world `windows` half of them are open at night alone. Clocks are simulated, training is not. Each
cell of the grid, and the choice of `sample: auto` and `deadline: auto`, trains until it has the accuracy
TARGET on digits that no site has; times are means over the seeds, of which the rule knows what `expect` says.
"""

import argparse
import json
import math
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fairlead.frozen import dataclass
from fairlead.policy.kinds.federated_rounds import FLOWER_TIMEOUT_S, choose
from fairlead.specs.federation import Federation, Site, SiteExpectation
from tests.frameworks.environments import find_interpreter

Array = np.ndarray
SITES, ALPHA, CLASSES = 100, 0.1, 10
TARGET = 0.88
TEST_SHARE = 0.2
LOCAL_STEPS, RATE = 5, 0.2
MODEL_BYTES = 2 << 20
START_EVERY_S = 6 * 3600.0
"""Worlds of seeds that follow each other begin at times of day this far apart."""
MOST_S = 14 * 86400.0
MOST_ROUNDS = 250
SAMPLES = (10, 20, 40, 100)
QUANTILES = (0.2, 0.3, 0.5, 0.7, 0.9)
MINUTES = (10, 30, 90)
PROXIMAL, SERVER_RATE, TAU, BETA_1, BETA_2 = 0.1, 0.03, 1e-3, 0.9, 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A federation with its data.

    Attributes:
        parts: Images (n, 64) and digits (n,) of each site.
        test: Images and digits that no site has.
    """

    spec: Federation
    parts: tuple[tuple[Array, Array], ...]
    test: tuple[Array, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Accuracies of a model over simulated time: seconds and accuracy of each round."""

    seconds: Array
    accuracy: Array

    def reaches(self, accuracy: float) -> float:
        """Return the seconds until the mean accuracy of five rounds is reached; infinite if never."""
        smooth = np.convolve(self.accuracy, np.ones(5) / 5, mode="valid")
        reached = np.flatnonzero(smooth >= accuracy)
        return float(self.seconds[reached[0] + 4]) if len(reached) else math.inf

    def at(self, seconds: float) -> float:
        """Return the accuracy at a time."""
        index = int(np.searchsorted(self.seconds, seconds, side="right")) - 1
        return float(self.accuracy[max(0, index)])


def digits() -> tuple[Array, Array]:
    """Return the images (1797, 64) from 0 to 1 and the digits (1797,), read by the Python that has scikit-learn."""
    python = find_interpreter("flower")
    if isinstance(python, str):
        raise SystemExit(python)
    program = (
        "import io, sys, numpy; from sklearn.datasets import load_digits; x, y = load_digits(return_X_y=True);"
        "out = io.BytesIO(); numpy.savez(out, x=x / 16, y=y); sys.stdout.buffer.write(out.getvalue())"
    )
    import io

    stored = np.load(io.BytesIO(subprocess.run([python, "-c", program], check=True, capture_output=True).stdout))
    return stored["x"], stored["y"]


def a_world(kind: str, seed: int, number: int = SITES) -> World:
    """Draw the data and the expectations of sites."""
    images, labels = digits()
    draws = np.random.default_rng(seed)
    order = draws.permutation(len(images))
    held = order[: int(TEST_SHARE * len(order))]
    rest = order[len(held) :]
    owners: list[list[int]] = [[] for _ in range(number)]
    for digit in range(CLASSES):
        own = rest[labels[rest] == digit]
        edges = (np.cumsum(draws.dirichlet(np.full(number, ALPHA))) * len(own)).astype(int)
        for site, piece in enumerate(np.split(own, edges[:-1])):
            owners[site].extend(piece)
    spare = iter(draws.permutation(rest))
    for part in owners:  # Flower's partitioner too gives each client some example
        if not part:
            part.append(next(spare))
    speed, link = np.exp(draws.normal(0.0, 0.8, number)), np.exp(draws.normal(0.0, 1.0, number))
    available = draws.uniform(0.8, 1.0, number)
    sites = {
        f"s{site}": Site(
            expect=SiteExpectation(
                train_s=float(speed[site] * (5.0 + 0.5 * len(owners[site]))),
                spread=0.3,
                link=int(link[site] * (256 << 10)),
                available=float(available[site]),
                examples=len(owners[site]),
            ),
            window="20:00-08:00" if kind == "windows" and site % 2 else None,
        )
        for site in range(number)
    }
    spec = Federation(
        name="digits", app="app", sites=sites, rounds=100, min_sites=1, model_size=MODEL_BYTES,
        sample_auto=True, deadline_auto=True,
    )  # fmt: skip
    return World(
        spec=spec, parts=tuple((images[part], labels[part]) for part in owners), test=(images[held], labels[held])
    )


def train(
    world: World, sample: int, deadline_s: float | None, strategy: str, seed: int, target: float, most_s: float = MOST_S
) -> Trained:
    """Train on a simulated clock, until the target is reached or a time has passed."""
    draws = np.random.default_rng([seed, 1])
    sites = list(world.spec.sites.values())
    expected = [site.expect for site in sites if site.expect is not None]
    size = world.spec.model_size or 0
    transfer_s = np.array([2 * size / (site.link or math.inf) for site in expected])
    train_s, spread = np.array([site.train_s for site in expected]), np.array([site.spread for site in expected])
    available = np.array([site.available for site in expected])
    model, first, second = np.zeros((65, CLASSES)), np.zeros((65, CLASSES)), np.zeros((65, CLASSES))
    parts = [(with_ones(images), labels) for images, labels in world.parts]
    images, labels = with_ones(world.test[0]), world.test[1]
    begins = seed * START_EVERY_S
    limit_s, clock = deadline_s or FLOWER_TIMEOUT_S, begins
    seconds: list[float] = []
    accuracy: list[float] = []
    while clock < begins + most_s and len(seconds) < MOST_ROUNDS:
        is_open = np.array([site.is_open(clock) for site in sites])
        closes_s = np.array([(site.changes_at(clock) or math.inf) - clock for site in sites])
        times = train_s * np.exp(spread * draws.standard_normal(len(sites))) + transfer_s
        answers = draws.random(len(sites)) < available
        order = draws.permutation(len(sites))
        chosen = order[is_open[order]][:sample]
        in_time = answers[chosen] & (times[chosen] <= np.minimum(limit_s, closes_s[chosen]))
        clock += float(times[chosen].max()) if in_time.all() else limit_s
        if in_time.any():
            model, first, second = next_model(model, first, second, [parts[site] for site in chosen[in_time]], strategy)
        seconds.append(clock - begins)
        accuracy.append(float(((images @ model).argmax(axis=1) == labels).mean()))
        if len(accuracy) >= 5 and np.mean(accuracy[-5:]) >= target:
            break
    return Trained(seconds=np.array(seconds), accuracy=np.array(accuracy))


def next_model(
    model: Array, first: Array, second: Array, parts: Sequence[tuple[Array, Array]], strategy: str
) -> tuple[Array, Array, Array]:
    """Return model and moments after a round; models are (65, 10), the last row the bias."""
    weights = np.array([len(labels) for _, labels in parts], dtype=float)
    proximal = PROXIMAL if strategy == "fedprox" else 0.0
    updates = [local_model(model, images, labels, proximal) for images, labels in parts]
    mean = sum(weight * update for weight, update in zip(weights / weights.sum(), updates, strict=True))
    if strategy != "fedadam":
        return np.asarray(mean), first, second
    # Reddi et al., arXiv:2003.00295, algorithm 2, without correction of the bias of moments, as in Flower.
    delta = mean - model
    first = BETA_1 * first + (1 - BETA_1) * delta
    second = BETA_2 * second + (1 - BETA_2) * delta**2
    return model + SERVER_RATE * first / (np.sqrt(second) + TAU), first, second


def local_model(model: Array, images: Array, labels: Array, proximal: float) -> Array:
    """Return the model after LOCAL_STEPS of gradient descent on a site's own digits."""
    own, wanted = model, np.eye(CLASSES)[labels]
    for _ in range(LOCAL_STEPS):
        error = np.exp(images @ own)  # pixels and weights are too small to overflow
        error /= error.sum(axis=1, keepdims=True)
        error -= wanted
        own = own - (RATE / len(labels)) * (images.T @ error)
        if proximal:
            own -= RATE * proximal * (own - model)
    return own


def with_ones(images: Array) -> Array:
    """Return the images with a column of ones for the bias."""
    return np.hstack([images, np.ones((len(images), 1))])


def typical_s(world: World) -> Array:
    """Return the typical time in which each site answers."""
    expected = [site.expect for site in world.spec.sites.values() if site.expect is not None]
    size = world.spec.model_size or 0
    return np.array([site.train_s + 2 * size / (site.link or math.inf) for site in expected])


def rule_rows(kinds: Sequence[str], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield for each world the choice and the best of the grid, and the strategies under the choice."""
    for kind in kinds:
        worlds = {seed: a_world(kind, seed) for seed in seeds}
        lengths = {seed: 1.3 * np.quantile(typical_s(worlds[seed]), QUANTILES) for seed in seeds}
        chosen = {seed: choose(worlds[seed].spec)[0] for seed in seeds}

        grid = {
            (sample, share): mean_s(worlds, {seed: (sample, float(lengths[seed][number])) for seed in seeds})
            for sample in SAMPLES
            for number, share in enumerate(QUANTILES)
        }
        best = min(grid, key=lambda cell: grid[cell])
        by_rule = {seed: (chosen[seed].sample, chosen[seed].deadline_s) for seed in seeds}
        by_default: dict[int, tuple[int, float | None]] = dict.fromkeys(seeds, (SITES, None))
        time_s = mean_s(worlds, by_rule)
        yield {
            "world": kind, "strategy": "fedavg", "chosen_s": round(time_s), "best_s": round(grid[best]),
            "best_sample": best[0], "best_share_in_time": best[1], "behind": round(time_s / grid[best] - 1, 3),
            "all_sites_s": round(mean_s(worlds, by_default)), "chosen": [list(by_rule[seed]) for seed in seeds],
            "grid": {f"{sample}/{share}": _rounded(seconds) for (sample, share), seconds in grid.items()},
        }  # fmt: skip
        for strategy in ("fedavg", "fedprox", "fedadam"):
            for name, cells in (("all sites", by_default), ("chosen", by_rule)):
                results = [train(worlds[seed], *cells[seed], strategy, seed, 1.0, 60.0 * MINUTES[-1]) for seed in seeds]
                yield {
                    "world": kind, "strategy": strategy, "rounds": name,
                    "reaches_s": _rounded(float(np.mean([result.reaches(TARGET) for result in results]))),
                    **{
                        f"at_{minutes}_min": round(float(np.mean([result.at(60 * minutes) for result in results])), 3)
                        for minutes in MINUTES
                    },
                }  # fmt: skip


def mean_s(worlds: Mapping[int, World], cells: Mapping[int, tuple[int, float | None]]) -> float:
    """Return the mean time of FedAvg to the target over worlds by seed, with the sample and deadline of each."""
    return float(
        np.mean([train(world, *cells[seed], "fedavg", seed, TARGET).reaches(TARGET) for seed, world in worlds.items()])
    )


def _rounded(seconds: float) -> int | None:
    return None if math.isinf(seconds) else round(seconds)


def main(given: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="42-53", help="first and last seed (default 42-53)")
    parser.add_argument("--worlds", default="links,windows", help="worlds (default links,windows)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args(given)
    first, _, last = arguments.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    for row in rule_rows(arguments.worlds.split(","), seeds):
        print(
            json.dumps(row) if arguments.json else "  ".join(f"{key} {value}" for key, value in row.items()), flush=True
        )


if __name__ == "__main__":
    main()
