"""Predictors for tests, found as ``tests.serving.predictors:NAME``."""

# ruff: noqa: RUF012 (as users write them)

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]


class Doubler:
    inputs = {"x": ("FP32", (-1, 2))}
    outputs = {"y": ("FP32", (-1, 2))}

    def predict(self, inputs: Arrays) -> Arrays:
        return {"y": inputs["x"] * 2}


class Echo:
    """Gives back what it is given, whatever that is."""

    def predict(self, inputs: Arrays) -> Arrays:
        return dict(inputs)


class Moody:
    """Refuses batches with a negative number, and fails at numbers above 100."""

    batches: list[list[float]] = []

    def predict(self, inputs: Arrays) -> Arrays:
        x = inputs["x"]
        Moody.batches.append([float(each) for each in x[:, 0]])
        if (x < 0).any():
            raise ValueError("negative")
        if (x > 100).any():
            raise RuntimeError("too hot")
        return {"y": x}


class Gate:
    """Predicts once it is let; counts how many calls there are at once."""

    opened = threading.Event()
    entered = threading.Semaphore(0)
    sizes: list[int] = []

    def predict(self, inputs: Arrays) -> Arrays:
        Gate.sizes.append(len(inputs["x"]))
        Gate.entered.release()
        assert Gate.opened.wait(60.0)
        return {"y": inputs["x"]}


class Odd:
    """Gives what the input asks for, none of it a result."""

    def predict(self, inputs: Arrays) -> Any:
        kind = inputs["kind"].reshape(-1)[0]
        rows = len(inputs["kind"])
        return {
            b"none": None, b"array": np.zeros(rows), b"empty": {}, b"short": {"y": np.zeros(rows + 1)},
            b"scalar": {"y": 1.0}, b"complex": {"y": np.zeros(rows, dtype=complex)},
            b"nan": {"y": np.full(rows, np.nan)},
            b"latin": {"y": np.array([b"\xff"] * rows, dtype=object)}, b"text": {"y": np.array(["\u00e9"] * rows)},
        }[kind]  # fmt: skip


class Words:
    """Says the words of its prompt again, one a piece."""

    def generate(self, prompt: str, *, max_tokens: int, temperature: float, seed: int | None = None) -> Iterator[str]:
        words = prompt.split()
        for number, word in enumerate(words):
            if word == "refuse":
                raise ValueError("no such word")
            if word == "fail":
                raise KeyError("fail")
            if word == "none":
                yield ""
                continue
            yield word + ("" if number + 1 == len(words) else " ")

    def count_tokens(self, text: str) -> int:
        return len(text.split())


class Endless:
    """Writes for ever; remembers that it was closed."""

    closed = threading.Event()

    def warm_up(self) -> None:
        """Nothing to warm."""

    def generate(self, prompt: str, *, max_tokens: int, temperature: float) -> Iterator[str]:
        try:
            while True:
                yield "x"
        finally:
            Endless.closed.set()


class Broken:
    def load(self, model: str) -> None:
        raise FileNotFoundError(f"no weights in {model!r}")

    def predict(self, inputs: Arrays) -> Arrays:
        return inputs


class SlowToLoad(Doubler):
    let = threading.Event()

    def load(self, model: str) -> None:
        assert SlowToLoad.let.wait(60.0)


class Neither:
    pass


class BadShape(Doubler):
    inputs = {"x": ("FP32", (4, 2))}
