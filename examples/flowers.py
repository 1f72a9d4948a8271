"""Steps of the pipelines in pipeline.yaml and cluster_pipeline.yaml: data, a search, a classifier, a test of it.

    python flowers.py prepare      where the variables of a step say what it reads and writes

The flowers are made up: three kinds, each a cloud of points in four measures, which overlap. The model is softmax
regression by gradient descent, in pure Python, so that no step takes more than a second or two.
"""

import csv
import json
import math
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

KINDS = ((1.0, 4.0, 2.0, 0.5), (2.5, 3.0, 4.0, 1.5), (3.5, 3.6, 5.0, 2.6))  # centimetres, on average
SPREADS = (0.5, 0.4, 0.5, 0.3)
FLOWERS = 300
Flower = tuple[list[float], int]
Model = list[list[float]]


def place(name: str) -> Path:
    """The file of an input or an output of this step, by the name of its variable."""
    return Path(os.environ[f"FAIRLEAD_{name}"])


def prepare() -> None:
    """Write flowers to train with, and a third as many to test with."""
    rng = random.Random(os.environ.get("SEED", "0"))
    for name, count in (("TRAINING", FLOWERS), ("TEST", FLOWERS // 3)):
        with place(f"OUTPUT_{name}").open("w", newline="") as file:
            for number in range(count):
                kind = number % len(KINDS)
                sizes = [rng.gauss(mean, spread) for mean, spread in zip(KINDS[kind], SPREADS, strict=True)]
                csv.writer(file).writerow([*(round(size, 2) for size in sizes), kind])


def read(name: str) -> list[Flower]:
    """The flowers that `prepare` wrote: measures in centimetres, and the kind."""
    with place(f"INPUT_PREPARE_{name}").open(newline="") as file:
        return [([float(size) for size in row[:-1]], int(row[-1])) for row in csv.reader(file)]


def chances(model: Model, sizes: list[float]) -> list[float]:
    """The probability of each kind: softmax of a linear function of the measures."""
    scores = [sum(w * x for w, x in zip(weights, [*sizes, 1.0], strict=True)) for weights in model]
    exponentials = [math.exp(score - max(scores)) for score in scores]
    return [each / sum(exponentials) for each in exponentials]


def fit(flowers: list[Flower], *, rate: float, epochs: int) -> Model:
    """Descend the gradient of the cross-entropy, a flower at a time."""
    model: Model = [[0.0] * 5 for _ in KINDS]
    rng = random.Random(0)
    for _ in range(epochs):
        for sizes, kind in rng.sample(flowers, len(flowers)):
            for which, chance in enumerate(chances(model, sizes)):
                error = chance - (which == kind)
                model[which] = [w - rate * error * x for w, x in zip(model[which], [*sizes, 1.0], strict=True)]
    return model


def accuracy(model: Model, flowers: list[Flower]) -> float:
    """The part of the flowers whose likeliest kind is the right one."""
    told = [max(range(len(KINDS)), key=chances(model, sizes).__getitem__) for sizes, _ in flowers]
    return sum(guess == kind for guess, (_, kind) in zip(told, flowers, strict=True)) / len(flowers)


def held_out(flowers: list[Flower], *, rate: float, epochs: int) -> Iterator[float]:
    """The accuracy on each third of the flowers of a model that has seen the other two."""
    for start in range(0, FLOWERS, FLOWERS // 3):
        stop = start + FLOWERS // 3
        model = fit(flowers[:start] + flowers[stop:], rate=rate, epochs=epochs)
        yield accuracy(model, flowers[start:stop])


def tune() -> None:
    """Try rates and lengths, each three times with another third held out, and write the best."""
    flowers = read("TRAINING")
    scores: dict[tuple[float, int], float] = {}
    for rate in (0.003, 0.01, 0.03):
        for epochs in (3, 30):
            scores[rate, epochs] = sum(held_out(flowers, rate=rate, epochs=epochs)) / 3
            print(f"rate={rate} epochs={epochs} accuracy={scores[rate, epochs]:.3f}", flush=True)
    rate, epochs = max(scores, key=scores.__getitem__)
    place("OUTPUT_PARAMETERS").write_text(json.dumps({"rate": rate, "epochs": epochs}))


def trial() -> None:
    """Try one rate and one length, as a run of its own: a trial of the sweep in cluster_pipeline.yaml."""
    rate, epochs = float(os.environ["FAIRLEAD_PARAM_RATE"]), int(os.environ["FAIRLEAD_PARAM_EPOCHS"])
    right = 0.0
    for step, each in enumerate(held_out(read("TRAINING"), rate=rate, epochs=epochs), start=1):
        right += each
        print(f"step={step} accuracy={right / step:.3f}", flush=True)


def train() -> None:
    """Train with the parameters that were found."""
    parameters = json.loads(place("INPUT_TUNE_PARAMETERS").read_text())
    place("OUTPUT_MODEL").write_text(json.dumps(fit(read("TRAINING"), **parameters)))


def evaluate() -> None:
    """Test the model with flowers that it has not seen."""
    model = json.loads(place("INPUT_TRAIN_MODEL").read_text())
    place("OUTPUT_ACCURACY").write_text(f"{accuracy(model, read('TEST')):.3f}")


if __name__ == "__main__":
    {"prepare": prepare, "tune": tune, "trial": trial, "train": train, "evaluate": evaluate}[sys.argv[1]]()
