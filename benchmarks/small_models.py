"""Two small models that learn a step at a time on a processor, for the benchmark of searches.

They learn differently: of spirals what is learned fastest is worst at first, of a text the first lead to the end.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from fairlead.specs.search_space import Value

TEXT = Path(__file__).resolve().parent.parent / "LICENSE"
CONTEXT = 4
Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
Numbers: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"


class Model(Protocol):
    """A model in training."""

    def step(self) -> float:
        """Train a little; the loss on other data."""


class Spirals:
    """A network of one hidden layer that learns to tell two noisy spirals apart by gradient descent."""

    PARAMETERS = "lr: log 1e-3..1e1, width: 4..64, decay: log 1e-6..1e-2"

    def __init__(self, values: Mapping[str, Value], seed: int) -> None:
        rng = np.random.default_rng(seed)
        turn = rng.uniform(0.2, 1.0, 600) * 2 * np.pi
        side = rng.integers(0, 2, 600)
        arms = np.stack([turn * np.cos(turn + side * np.pi), turn * np.sin(turn + side * np.pi)], 1) / 5
        places = arms + rng.normal(0, 0.12, (600, 2))
        self.x, self.y = places[:200], side[:200].astype(float)
        self.others_x, self.others_y = places[200:], side[200:]
        width, self.rate, self.decay = int(values["width"]), float(values["lr"]), float(values["decay"])
        self.first = rng.normal(0, 1.5, (2, width))
        self.bias = rng.normal(0, 1.0, width)
        self.last = rng.normal(0, 0.1, width)

    def step(self) -> float:
        """Take three steps of gradient descent; the loss on other data."""
        for _ in range(3):
            hidden = np.tanh(self.x @ self.first + self.bias)
            error = _share(hidden @ self.last) - self.y
            back = np.outer(error, self.last) * (1.0 - hidden**2) / len(self.y)
            self.last -= self.rate * (hidden.T @ error / len(self.y) + self.decay * self.last)
            self.first -= self.rate * (self.x.T @ back + self.decay * self.first)
            self.bias -= self.rate * back.sum(0)
        out = np.tanh(self.others_x @ self.first + self.bias) @ self.last
        return _finite(float(np.mean(np.logaddexp(0.0, out) - self.others_y * out)))


class Letters:
    """A network that learns the next letter of the licence from the four before it, by batches, with momentum."""

    PARAMETERS = "lr: log 1e-3..1e1, width: 8..128, momentum: 0.0..0.99, batch: 16 | 32 | 64 | 128"

    def __init__(self, values: Mapping[str, Value], seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        text = TEXT.read_text(encoding="utf-8").lower()
        letters = sorted(set(text))
        codes = np.array([letters.index(each) for each in text])
        windows = np.lib.stride_tricks.sliding_window_view(codes, CONTEXT + 1)
        order = self.rng.permutation(len(windows))
        self.windows, self.others = windows[order[:8_000]], windows[order[8_000:8_300]]
        width, number, size = int(values["width"]), len(letters), 8
        self.rate, self.momentum, self.batch = float(values["lr"]), float(values["momentum"]), int(values["batch"])
        self.weights: list[Array] = [
            self.rng.normal(0, 1, (number, size)),
            self.rng.normal(0, (CONTEXT * size) ** -0.5, (CONTEXT * size, width)),
            np.zeros(width),
            self.rng.normal(0, 0.1, (width, number)),
        ]
        self.moves = [np.zeros_like(each) for each in self.weights]

    def step(self) -> float:
        """Learn from four batches; the loss on other places of the text."""
        # Rates that are too high diverge, which a search has to find out.
        with np.errstate(all="ignore"):
            for _ in range(4):
                batch = self.windows[self.rng.integers(0, len(self.windows), self.batch)]
                for weight, move, slope in zip(self.weights, self.moves, self._slopes(batch), strict=True):
                    move *= self.momentum
                    move -= self.rate * slope
                    weight += move
            _, _, told = self._forward(self.others)
            return _finite(float(-told[np.arange(len(self.others)), self.others[:, -1]].mean()))

    def _forward(self, windows: Numbers) -> tuple[Array, Array, Array]:
        """Return the inputs, the hidden layer, and the logarithms of probabilities of each letter."""
        known, first, bias, last = self.weights
        x = known[windows[:, :CONTEXT]].reshape(len(windows), -1)
        hidden = np.tanh(x @ first + bias)
        out = hidden @ last
        out -= out.max(1, keepdims=True)
        return x, hidden, out - np.log(np.exp(out).sum(1, keepdims=True))

    def _slopes(self, batch: Numbers) -> tuple[Array, ...]:
        known, first, _, last = self.weights
        x, hidden, told = self._forward(batch)
        error = np.exp(told)
        error[np.arange(len(batch)), batch[:, -1]] -= 1
        error /= len(batch)
        back = (error @ last.T) * (1.0 - hidden**2)
        of_known = np.zeros_like(known)
        np.add.at(of_known, batch[:, :CONTEXT], (back @ first.T).reshape(len(batch), CONTEXT, -1))
        return of_known, x.T @ back, back.sum(0), hidden.T @ error


def _share(out: Array) -> Array:
    found: Array = 1.0 / (1.0 + np.exp(-np.clip(out, -60, 60)))
    return found


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else 1e9
