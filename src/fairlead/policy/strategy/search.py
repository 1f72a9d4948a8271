"""Searches every split of a step over a number of GPUs: its memory, its time, and why it loses to the best one."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from fairlead.frozen import dataclass
from fairlead.policy.strategy import torch_memory
from fairlead.policy.strategy.corrections import LayerShape, corrected, shape_of
from fairlead.policy.strategy.gpus import Coefficients, GpuModel, MeasuredGpu, coefficients
from fairlead.policy.strategy.memory import GIB, StageMemory, worst
from fairlead.policy.strategy.split import Recompute, Split
from fairlead.policy.strategy.step_time import StepTime, step_time
from fairlead.policy.strategy.transformer import Transformer

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
# Those that keep more are faster, so the first that fits is taken.
RECOMPUTES = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
# Estimates closer than this count as equal.
ALIKE = 0.01
USUAL_SEQUENCE = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHardware:
    """The hardware that a step runs on.

    Attributes:
        gpu: The model of the GPUs.
        gpus: The total number of GPUs.
        node: The number of GPUs per node.
        price_per_hour: Dollars for all of them; None if unknown.
        measured: Their measurement; None without one.
        factors: The ratio of measured to estimated time there, for measured layer shapes.
    """

    gpu: GpuModel
    gpus: int
    node: int
    price_per_hour: float | None = None
    measured: MeasuredGpu | None = None
    factors: Mapping[LayerShape, float] = field(default_factory=dict)

    @property
    def coefficients(self) -> Coefficients:
        """Return the costs of a step on them."""
        return coefficients(self.gpu, self.measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The given parts of a split; None is open.

    Attributes:
        batch: Samples of a step over all GPUs.
        zero: The allowed ZeRO stages.
        pipelines: Whether pipelines of more than one stage are allowed if ``pipeline`` is open.
    """

    batch: int
    data: int | None = None
    zero: tuple[int, ...] = (0, 2, 3)
    tensor: int | None = None
    pipeline: int | None = None
    micro_batch: int | None = None
    recompute: Recompute | None = None
    pipelines: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedSplit:
    """A split with its estimates.

    Attributes:
        memory: The memory of a GPU of the stage with the highest need.
        time: The time of a step.
        fits: Whether each GPU has that memory.
        reason: Why it loses to the first of its list, or that it is the fastest.
    """

    split: Split
    memory: StageMemory
    time: StepTime
    fits: bool
    reason: str = ""


def search(model: Transformer, on: StepHardware, wanted: Wanted) -> list[EstimatedSplit]:
    """Return the best candidate of each way to divide the GPUs: those that fit by time, then the others by need.

    Raises:
        UnknownModel: No formula covers the model.
    """
    candidates = [
        candidate
        for split in _divisions(model, on, wanted)
        if (candidate := _best(model, split, on, wanted)) is not None
    ]
    candidates.sort(
        key=lambda candidate: (not candidate.fits, candidate.time.total if candidate.fits else candidate.memory.needed)
    )
    return [
        replace(candidate, reason=_reason(candidate, candidates[0], on, place))
        for place, candidate in enumerate(candidates)
    ]


def assess(model: Transformer, split: Split, on: StepHardware) -> EstimatedSplit:
    """Estimate one split."""
    memory = worst(torch_memory.stages(model, split))
    gpu = on.gpu
    time = step_time(model, split, on.coefficients, processors=gpu.processors, node=on.node)
    by = on.factors.get(shape_of(model, split)) if on.factors else None
    if by is not None:
        time = corrected(time, by)
    return EstimatedSplit(split=split, memory=memory, time=time, fits=memory.needed <= gpu.memory_bytes)


def does_not_fit(model: Transformer, candidate: EstimatedSplit, on: StepHardware) -> str:
    """Explain what a split lacks, and what would help."""
    split = candidate.split
    remedies = []
    if split.data > 1 and split.zero < 3 and split.pipeline == 1:
        remedies.append((f"FSDP over {split.data}", replace(split, zero=3)))
    if split.recompute is not Recompute.FULL:
        remedies.append(("recomputation", replace(split, recompute=Recompute.FULL)))
    if split.micro_batch > 1:
        remedies.append(("a micro-batch of 1", replace(split, micro_batch=1)))
    more = [split.data * 2**power for power in range(1, 8)] if split.pipeline == 1 else []
    remedies += [(f"FSDP over {data}", replace(split, zero=3, data=data)) for data in more]
    last = replace(split, zero=3, recompute=Recompute.FULL, micro_batch=1)
    remedies += [
        (f"FSDP over {data} with recomputation and a micro-batch of 1", replace(last, data=data))
        for data in (split.data, *more)
        if split.pipeline == 1
    ]
    helpful = [name for name, other in remedies if assess(model, other, on).fits][:2]
    sentence = f"does not fit: needs {_need(candidate, on)} on each GPU{_of_length(model)}"
    return f"{sentence}; {' or '.join(helpful)} would" if helpful else sentence


def _of_length(model: Transformer) -> str:
    """Say for which length the memory was counted if that is longer than usual, as a configuration has its maximum."""
    if model.sequence <= USUAL_SEQUENCE:
        return ""
    return f" for sequences of {model.sequence:,} tokens (`sequence` in `model` gives those of the training)"


def _need(candidate: EstimatedSplit, on: StepHardware) -> str:
    return f"{math.ceil(candidate.memory.needed / GIB)} GiB of {on.gpu.memory_bytes / GIB:.0f}"


def _divisions(model: Transformer, on: StepHardware, wanted: Wanted) -> Iterator[Split]:
    for tensor in [wanted.tensor] if wanted.tensor else _powers(min(on.node, on.gpus)):
        if on.gpus % tensor or (tensor > 1 and (model.heads % tensor or model.key_value_heads % tensor)):
            continue
        rest = on.gpus // tensor
        stages = [wanted.pipeline] if wanted.pipeline else _powers(rest) if wanted.pipelines else [1]
        for pipeline in stages:
            if rest % pipeline or pipeline > model.layers or wanted.data not in (None, rest // pipeline):
                continue
            data = rest // pipeline
            for zero in wanted.zero:
                # A single replica has nothing to shard; a pipeline gathers parameters once for all micro-batches.
                if (zero == 0 or data > 1) and not (zero == 3 and pipeline > 1 and 2 in wanted.zero):
                    yield Split(data=data, zero=zero, tensor=tensor, pipeline=pipeline)


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length())]


def _best(model: Transformer, division: Split, on: StepHardware, wanted: Wanted) -> EstimatedSplit | None:
    """Return the fastest micro-batch and recomputation that fit; the smallest if none fits; None without any."""
    best: EstimatedSplit | None = None
    for micro in [wanted.micro_batch] if wanted.micro_batch else MICRO_BATCHES:
        if wanted.batch % (division.data * micro):
            continue
        of_size = None
        for recompute in [wanted.recompute] if wanted.recompute else RECOMPUTES:
            split = replace(
                division,
                micro_batch=micro,
                micro_batches=wanted.batch // (division.data * micro),
                recompute=recompute,
            )
            of_size = assess(model, split, on)
            if of_size.fits:
                break
        if of_size is None or not of_size.fits:
            return best or of_size
        if best is None or of_size.time.total < best.time.total:
            best = of_size
    return best


def _reason(candidate: EstimatedSplit, best: EstimatedSplit, on: StepHardware, place: int) -> str:
    """Return one line on why it loses."""
    if not candidate.fits:
        return f"does not fit: needs {_need(candidate, on)}"
    if place == 0:
        return "the fastest"
    slower = candidate.time.total / best.time.total - 1
    if slower < ALIKE:
        return "as fast, within what the estimate can tell"
    mine, its = candidate.time, best.time
    parts = {
        "waits for the pipeline to fill and drain": mine.bubble - its.bubble,
        "gradients and parameters travel unhidden": mine.data - its.data,
        "updates more parameters on each GPU": mine.optimizer - its.optimizer,
        _of_layers(candidate.split, best.split): mine.layers - its.layers,
    }
    name, more = max(parts.items(), key=lambda part: part[1])
    return f"{100 * slower:.0f} % slower: {name} ({more:+.0f} ms)"


def _of_layers(mine: Split, its: Split) -> str:
    order = list(Recompute)
    if order.index(mine.recompute) > order.index(its.recompute):
        return "computes activations again"
    if mine.tensor > its.tensor:
        return "all-reduces within each layer"
    if mine.micro_batch < its.micro_batch:
        return "smaller micro-batches use the GPU less well"
    return "computes longer on the slowest stage"
