"""Corrects estimated step times by measured steps of the same layer shape.

Most of the error of an estimate lies in the layer: hidden size, heads, sequence, tensor parts and micro-batch on a GPU.
So the ratio of measured to estimated time carries over to other numbers of layers, replicas and stages.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.policy.strategy.split import Split
from fairlead.policy.strategy.step_time import StepTime
from fairlead.policy.strategy.transformer import Transformer

# The weight of the estimate, in measured steps of one layer shape (`benchmarks.step_time`).
SHRINKAGE = 0.1
# A measured step beyond this factor is ignored: it waited for data, or shared its GPU.
MOST_FACTOR = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """All that the time of a layer depends on, except the GPU."""

    hidden: int
    heads: int
    sequence: int
    tensor: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A measured step of a run.

    Attributes:
        run: Its uid.
        split: The name of the candidate split; empty for the split that it trained with.
        gpu: The model of its GPUs.
        measured_s: Measured seconds per step.
        estimated_s: Seconds by the formulas, without correction.
        at: When it was recorded, in seconds since 1970.
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
        """Return the shape of its layers."""
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
    """Return the ratio of measured to estimated times of steps of one layer shape: (measured, estimated) in any unit.

    The geometric mean of ratios, shrunken towards 1 as if ``SHRINKAGE`` steps had confirmed the estimate.
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
    """Return the time of a step with each part multiplied by the same factor."""
    return replace(
        time, layers=time.layers * by, bubble=time.bubble * by, data=time.data * by, optimizer=time.optimizer * by
    )
