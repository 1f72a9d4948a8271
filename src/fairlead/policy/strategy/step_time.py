"""Estimates the time of a training step of a dense transformer.

The time of a layer consists of its matrix products, rounded up to whole waves of tiles over the GPU's processors;
passes over memory; and the collectives of tensor parallelism; it is never less than the launches of its kernels. A
pipeline's micro-batches follow each other on the slowest stage (arXiv 2104.04473, sec. 2.2); gradients are reduced over
a ring (2 (d - 1) / d of their bytes through each link, Patarasuk and Yuan, 2009).
"""

import math

from fairlead.errors import UnknownModel
from fairlead.frozen import dataclass
from fairlead.policy.strategy.gpus import Coefficients
from fairlead.policy.strategy.split import Recompute, Split
from fairlead.policy.strategy.transformer import Transformer

# One thread block of cuBLAS computes a tile of this many rows and columns.
TILE_ROWS, TILE_COLUMNS = 128, 256
VOCABULARY_MULTIPLE = 128
# Actual over estimated time for sizes outside the fit: nine in ten lie within these bounds (`benchmarks.step_time`).
UNSEEN = (0.93, 1.32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The properties of a software stack that affect time.

    Attributes:
        fused_attention: Whether scores stay in the processors (arXiv 2205.14135).
        overlaps: Whether communication of gradients and parameters overlaps with computing.
        gradient_bytes: Bytes per parameter when gradients are reduced.
    """

    fused_attention: bool
    overlaps: bool
    gradient_bytes: int


MEGATRON_2021 = Software(fused_attention=False, overlaps=False, gradient_bytes=2)
TORCH = Software(fused_attention=True, overlaps=True, gradient_bytes=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Milliseconds of a step by part.

    Attributes:
        layers: Computing, with collectives of tensor parallelism, on the slowest stage.
        bubble: Waiting for the pipeline to fill and drain.
        data: Reducing gradients and gathering parameters, as far as it is not hidden.
        optimizer: The update.
    """

    layers: float
    bubble: float
    data: float
    optimizer: float

    @property
    def total(self) -> float:
        """Return the time of the whole step."""
        return self.layers + self.bubble + self.data + self.optimizer


def step_time(
    model: Transformer,
    split: Split,
    on: Coefficients,
    *,
    software: Software = TORCH,
    processors: int = 108,
    node: int = 8,
) -> StepTime:
    """Estimate a step.

    Args:
        on: Coefficients of the GPU.
        processors: Streaming multiprocessors of a GPU.
        node: GPUs of a node.

    Raises:
        UnknownModel: Experts or context parallelism, whose time is not modelled.
    """
    if model.experts is not None or split.context > 1 or split.expert > 1:
        raise UnknownModel("the time of a step with experts or context parallelism is not known")
    return _Step(model, split, on, software, processors, node).time()


def waves_of(rows: float, columns: float, processors: int, count: float = 1.0) -> int:
    """Return the whole waves of tiles in which so many products are computed."""
    tiles = math.ceil(rows / TILE_ROWS) * math.ceil(columns / TILE_COLUMNS)
    return math.ceil(tiles * count / processors)


class _Step:
    def __init__(
        self, model: Transformer, split: Split, on: Coefficients, software: Software, processors: int, node: int
    ) -> None:
        self.model, self.split, self.on, self.software = model, split, on, software
        self.processors, self.node = processors, node
        self.tokens = model.sequence * split.micro_batch
        # The part of forward that is recomputed: all of it, or every second product.
        self.again = {Recompute.NONE: 0.0, Recompute.SELECTIVE: 0.5, Recompute.FULL: 1.0}[split.recompute]

    def time(self) -> StepTime:
        model, split, on = self.model, self.split, self.on
        m, p, t, h = split.micro_batches, split.pipeline, split.tensor, model.hidden
        stage = self._layer() * model.layers / p + on.slot_ms + self._between_stages()
        embedding = 20 * self.tokens * h / (on.memory_gb_s * 1e6)
        output = self._output()
        if p == 1:
            layers, bubble = m * (stage + embedding + output), 0.0
        else:
            first, last = stage + embedding, stage + output
            layers = m * max(first, last)
            # Interleaving divides the time to fill and drain the pipeline (arXiv 2104.04473, sec. 2.2.2).
            bubble = (first + last - max(first, last) + (p - 2) * stage) / split.virtual
        parameters = (
            model.layers / p * (model.attention + model.mlp(model.width)) + model.vocabulary * h * (2 if p == 1 else 1)
        ) / t
        sharded = parameters / split.data if split.zero > 0 else parameters
        return StepTime(
            layers=layers,
            bubble=bubble,
            data=self._data(parameters, layers),
            optimizer=on.optimizer_bytes * sharded / (on.memory_gb_s * 1e6),
        )

    def _product(self, rows: float, columns: float, depth: float, count: float = 1.0) -> float:
        """Return milliseconds of ``count`` products: whole waves of tiles, each with a start of length ``on.depth``."""
        waves = waves_of(rows, columns, self.processors, count)
        rate = 2 * self.processors * TILE_ROWS * TILE_COLUMNS * (depth + self.on.depth)
        return waves * rate / (self.on.tflops * 1e9)

    def _both_ways(self, rows: float, columns: float, depth: float, count: float = 1.0) -> float:
        """Return the time of a product forward, again if recomputed, and of its two gradients."""
        forward = self._product(rows, columns, depth, count)
        gradients = self._product(rows, depth, columns, count) + self._product(columns, depth, rows, count)
        return (1 + self.again) * forward + gradients

    def _layer(self) -> float:
        model, split, on, t = self.model, self.split, self.on, self.split.tensor
        h, tokens = model.hidden, self.tokens
        inner = model.heads * model.head
        products = self._both_ways(tokens, (inner + 2 * model.key_value_width) / t, h)
        products += self._both_ways(tokens, h, inner / t)
        products += self._both_ways(tokens, model.width * (2 if model.gated else 1) / t, h)
        products += self._both_ways(tokens, h, model.width / t)
        heads = split.micro_batch * model.heads / t
        passes = (3 + self.again) / 3 * 2
        moved = on.hidden_passes * tokens * h * (on.whole + (1 - on.whole) / t)
        floor = on.launch_ms + on.launch_tensor_ms * math.log2(t)
        if self.software.fused_attention:
            # Half of it is masked; backward has five products for two in forward (arXiv 2307.08691, sec. 3.1).
            flops = 4 * model.sequence**2 * model.head * heads / 2
            attention = flops * (1 + 2.5 + self.again) * 1.4 / (on.tflops * 1e9)
        else:
            attention = self._both_ways(model.sequence, model.sequence, model.head, heads)
            attention += self._both_ways(model.sequence, model.head, model.sequence, heads)
            moved += on.attention_passes * heads * model.sequence**2
            floor += on.fallback_ms * (heads % 4 != 0)
        busy = products + attention + passes * moved / (on.memory_gb_s * 1e6) + self._tensor_collectives()
        # The CPU launches while the GPU computes: a smooth maximum of the two.
        return float((busy**4 + floor**4) ** 0.25)

    def _tensor_collectives(self) -> float:
        """Return the time of two all-reduces forward (again if recomputed) and two backward (arXiv 1909.08053)."""
        t, on = self.split.tensor, self.on
        if t == 1:
            return 0.0
        speed = on.link_gb_s if t <= self.node else on.network_gb_s
        seconds = 2 * (t - 1) / t * 2 * self.tokens * self.model.hidden / (speed * 1e6)
        return (4 + 2 * self.again) * (on.latency_ms * (1 + math.log2(t) / 2) + seconds)

    def _output(self) -> float:
        """Return the time of logits, the loss and their gradients."""
        model, on, t = self.model, self.on, self.split.tensor
        padding = VOCABULARY_MULTIPLE * t
        share = math.ceil(model.vocabulary / padding) * padding / t
        products = self._product(self.tokens, share, model.hidden) + self._product(self.tokens, model.hidden, share)
        products += self._product(share, model.hidden, self.tokens)
        return products + 2 * on.logits_passes * self.tokens * share / (on.memory_gb_s * 1e6)

    def _between_stages(self) -> float:
        """Return the time of hidden states forward and gradients backward; a node's GPUs share its network equally."""
        split, on = self.split, self.on
        if split.pipeline == 1:
            return 0.0
        inside = split.gpus <= self.node
        speed = on.link_gb_s if inside else on.network_gb_s / self.node
        return 4 * self.tokens * self.model.hidden / split.tensor / (speed * 1e6)

    def _data(self, parameters: float, layers: float) -> float:
        """Return the milliseconds of communication of gradients and parameters that is not hidden."""
        split, on = self.split, self.on
        d, t = split.data, split.tensor
        if d == 1:
            return 0.0
        speed = on.link_gb_s if t * d <= self.node else on.network_gb_s / min(t, self.node)
        around = (d - 1) / d * parameters / (speed * 1e6)
        if split.zero < 3:
            moved = 2 * self.software.gradient_bytes * around
            hidden_by = layers / split.micro_batches * 2 / 3
        else:
            # Parameters twice in bf16 and gradients once, for each micro-batch (arXiv 2304.11277, sec. 3.2).
            moved = (2 * 2 + self.software.gradient_bytes) * around * split.micro_batches
            hidden_by = layers
        if not self.software.overlaps:
            return moved
        return float((moved**4 + hidden_by**4) ** 0.25 - hidden_by)
