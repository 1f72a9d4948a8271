"""Corrects estimated times of a step by steps of the same layer shape that were measured.

Most of what an estimate has wrong is the layer: hidden size, heads, sequence, tensor parts and micro-batch on a GPU. So
the ratio of measured to estimated carries over to other numbers of layers, replicas and stages.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.policy.strategy.split import Split
from fairlead.policy.strategy.step_time import StepTime
from fairlead.policy.strategy.transformer import Transformer

# As how many measured steps of one layer shape the estimate itself counts (`benchmarks.step_time`).
SHRINKAGE = 0.1
# Beyond this a measured step says nothing of its layers: it waited for data, or its GPU was somebody else's too.
MOST_FACTOR = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """All that the time of a layer depends on, but for the GPU."""

    hidden: int
    heads: int
    sequence: int
    tensor: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A step that a run has really taken.

    Attributes:
        run: Its uid.
        split: The name of the split that was tried; empty for the split that it trained with.
        gpu: The model of its GPUs.
        measured_s: Seconds that a step took.
        estimated_s: Seconds by the formulas, not corrected.
        at: When it was read, in seconds since 1970.
    """

    run: str
    split: str
    gpu: str
    hidden: int
    heads: int
    sequence: int
    tensor: int
    micro_batch: int
    measured_s: float
    estimated_s: float
    at: float

    @property
    def shape(self) -> LayerShape:
        """The shape of its layers."""
        return LayerShape(
            hidden=self.hidden, heads=self.heads, sequence=self.sequence, tensor=self.tensor,
            micro_batch=self.micro_batch,
        )  # fmt: skip


def shape_of(model: Transformer, split: Split) -> LayerShape:
    """Return the shape of a model's layers under a split."""
    return LayerShape(
        hidden=model.hidden, heads=model.heads, sequence=model.sequence, tensor=split.tensor,
        micro_batch=split.micro_batch,
    )  # fmt: skip


def factor(seen: Iterable[tuple[float, float]]) -> float:
    """Return how much longer steps of one layer shape take than their estimate: (measured, estimated) in any unit.

    Their mean ratio, shrunken towards 1 as if ``SHRINKAGE`` steps had confirmed the estimate.
    """
    logarithms = [math.log(measured / guess) for measured, guess in seen]
    return math.exp(sum(logarithms) / (len(logarithms) + SHRINKAGE))


def factors(steps: Iterable[MeasuredStep], gpu: str) -> Mapping[LayerShape, float]:
    """Return the factor of each layer shape that was measured on a GPU."""
    seen: dict[LayerShape, list[tuple[float, float]]] = {}
    for step in steps:
        if step.gpu == gpu and 1 / MOST_FACTOR <= step.measured_s / step.estimated_s <= MOST_FACTOR:
            seen.setdefault(step.shape, []).append((step.measured_s, step.estimated_s))
    return {shape: factor(pairs) for shape, pairs in seen.items()}


def corrected(time: StepTime, by: float) -> StepTime:
    """The time of a step, each part by the same factor."""
    return replace(
        time, layers=time.layers * by, bubble=time.bubble * by, data=time.data * by, optimizer=time.optimizer * by
    )
