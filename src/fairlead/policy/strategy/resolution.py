"""Completes the model and split of a Training: divides the ranks, and chooses or defaults open values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairlead.errors import CannotFit, Conflict, UnknownModel
from fairlead.frozen import dataclass
from fairlead.policy.strategy.corrections import MeasuredStep, factors
from fairlead.policy.strategy.gpus import GPUS, GpuModel, MeasuredGpu, as_gpu, find, find_measured
from fairlead.policy.strategy.memory import GIB
from fairlead.policy.strategy.search import EstimatedSplit, StepHardware, Wanted, assess, does_not_fit, search
from fairlead.policy.strategy.split import Recompute, Split
from fairlead.policy.strategy.transformer import WIDTH_FACTOR, Transformer, hugging_face
from fairlead.specs.parallel import Choose, ModelShape, Parallel, Recomputed, Shard, SplitCandidate
from fairlead.specs.resources import Resources
from fairlead.specs.training import Training
from fairlead.state.split_probing import PARTS, order, split_of_candidate
from fairlead.text.quantities import plural

ZERO = {Shard.NONE: 0, Shard.GRADIENTS: 2, Shard.PARAMETERS: 3}
SHARDS = {stage: shard for shard, stage in ZERO.items()}
# Used only to order splits over ranks without GPUs before they are measured.
CPU = GpuModel(names=("CPU",), memory_bytes=0.0, peak_tflops=0.2, memory_gb_s=20.0, link_gb_s=2.0, processors=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A split without open values, and a note for the plan."""

    parallel: Parallel
    note: str


def transformer_of(shape: ModelShape, config: Mapping[str, Any] | None) -> Transformer:
    """Return the model of a spec; ``config`` is the content of its file, None without one.

    Raises:
        UnknownModel: Both together are insufficient.
    """
    fields = {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.width,
        "vocab_size": shape.vocabulary,
    }
    own = {name: value for name, value in fields.items() if value is not None}
    if config is not None:
        return hugging_face({**config, **own}, shape.sequence)
    required = ("layers", "hidden", "heads", "vocabulary", "sequence")
    missing = [name for name in required if getattr(shape, name) is None]
    if missing:
        raise UnknownModel(f"model: {', '.join(missing)} missing; give them, or `config` with a config.json")
    if shape.hidden is not None and shape.width is None:
        own["intermediate_size"] = WIDTH_FACTOR * shape.hidden
    return hugging_face(own, shape.sequence)


def hardware_of(
    spec: Training,
    price_per_hour: float | None = None,
    measured: Sequence[MeasuredGpu] = (),
    steps: Sequence[MeasuredStep] = (),
) -> StepHardware:
    """Return the hardware that a run requests; ``price_per_hour`` in dollars for one node.

    Args:
        steps: Earlier measured steps.

    Raises:
        Conflict: It names no known GPU, or not one GPU per rank.
    """
    if spec.resources.gpu is None and spec.parallel is not None and spec.parallel.probe is not None:
        node, memory = spec.ranks_on_each_node, spec.resources.memory_bytes
        of_each = math.inf if memory is None else memory / node
        return StepHardware(gpu=replace(CPU, memory_bytes=of_each), gpus=spec.world_size, node=node)
    gpu, measured_gpu = gpu_of(spec.resources, measured)
    request = spec.resources.gpu
    if request is None or request.milli % 1000 or spec.ranks_on_each_node != request.num_devices:
        raise Conflict("model: estimates are for one rank on each GPU; ask for whole GPUs and leave out ranks_per_node")
    return StepHardware(
        gpu=gpu,
        gpus=spec.world_size,
        node=spec.ranks_on_each_node,
        price_per_hour=None if price_per_hour is None else price_per_hour * spec.nodes,
        measured=measured_gpu,
        factors=factors(steps, gpu.names[0]),
    )


def gpu_of(resources: Resources, measured: Sequence[MeasuredGpu] = ()) -> tuple[GpuModel, MeasuredGpu | None]:
    """Return the requested GPU and its measurement.

    Raises:
        Conflict: It names no known GPU.
    """
    request = resources.gpu
    known = ", ".join((*(gpu.names[0] for gpu in GPUS), *(figures.name for figures in measured)))
    if request is None or request.model is None:
        raise Conflict(f"model: estimates depend on the model of GPU; name one, such as `gpu: A100:8`. Known: {known}.")
    matching = find(request.model)
    if request.min_memory_bytes is not None and (
        matching is None or matching.memory_bytes < 0.9 * request.min_memory_bytes
    ):
        matching = find(f"{request.model}-{request.min_memory_bytes / 1e9:.0f}GB")
    own = find_measured(request.model, matching, measured)
    if matching is None and own is None:
        raise Conflict(
            f"model: nothing is known of the GPU {request.model}; `fairlead doctor --gpu` on a machine that has it "
            f"measures it. Known: {known}."
        )
    return matching or as_gpu(own), own  # type: ignore[arg-type] # one of the two is there


def wanted_of(spec: Training, *, pipelines: bool = True) -> Wanted:
    """Return the given parts of a spec's split."""
    parallel = spec.parallel or Parallel()
    return Wanted(
        batch=parallel.batch or spec.world_size,
        data=parallel.data,
        zero=tuple(ZERO.values()) if parallel.shard is None else (ZERO[parallel.shard],),
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        micro_batch=parallel.micro_batch,
        recompute=None if parallel.recompute is None else Recompute(parallel.recompute),
        pipelines=pipelines,
    )


def resolve(
    spec: Training,
    config: Mapping[str, Any] | None,
    measured: Sequence[MeasuredGpu] = (),
    steps: Sequence[MeasuredStep] = (),
) -> Resolved:
    """Fill in the open values of ``spec.parallel``, using measurements of GPUs and of steps if available.

    Raises:
        Conflict: The parts do not multiply to the ranks, or the basis for a choice is missing.
        CannotFit: ``auto`` finds no split that fits.
        UnknownModel: ``auto`` has no formula for the model.
    """
    parallel = spec.parallel or Parallel()
    if spec.most_nodes is not None:
        raise Conflict("parallel: a split is of a fixed number of ranks; give `nodes` one number")
    if parallel.candidates:
        return _with_candidates(spec, parallel)
    if parallel.choose is Choose.AUTO:
        return _chosen(spec, config, measured, steps)
    if parallel.probe is not None:
        raise Conflict(
            "parallel.probe: it tries the best of what `choose: auto` finds; add that, or name splits in `candidates`"
        )
    tensor, pipeline = parallel.tensor or 1, parallel.pipeline or 1
    data = parallel.data or max(1, spec.world_size // (tensor * pipeline))
    if data * tensor * pipeline != spec.world_size:
        product = f"data {data} x tensor {tensor} x pipeline {pipeline} is {data * tensor * pipeline}"
        raise Conflict(f"parallel: {product}, but the run has {plural(spec.world_size, 'rank')}; make them equal")
    micro = parallel.micro_batch or (max(1, parallel.batch // data) if parallel.batch else 1)
    batch = parallel.batch or data * micro
    if batch % (data * micro):
        raise Conflict(
            f"parallel: a batch of {batch} cannot be dealt out to {data} replicas in micro-batches of {micro}; "
            f"give a multiple of {data * micro}"
        )
    whole = Parallel(
        data=data,
        shard=parallel.shard or Shard.NONE,
        tensor=tensor,
        pipeline=pipeline,
        micro_batch=micro,
        recompute=parallel.recompute or Recomputed.NONE,
        batch=batch,
    )
    return Resolved(parallel=whole, note=f"parallel: {describe(split_of(whole))}")


def _with_candidates(spec: Training, parallel: Parallel) -> Resolved:
    """Fill in the open values of named candidate splits."""
    if parallel.choose is not None or parallel.probe is not None:
        raise Conflict("parallel.candidates: these are the splits to try; leave out `choose` and `probe`")
    if parallel.batch is None:
        raise Conflict("parallel.candidates: give `batch` too, so that a step of each has as many samples")
    whole = {}
    for name in order(parallel):
        try:
            parts = resolve(replace(spec, parallel=split_of_candidate(parallel, name)), None).parallel
        except Conflict as error:
            raise Conflict(f"parallel.candidates.{name}: {str(error).removeprefix('parallel: ')}") from error
        own = {part: getattr(parts, part) for part in PARTS}
        whole[name] = SplitCandidate(**own, estimate_s=parallel.candidates[name].estimate_s)
    note = f"parallel: tries {plural(len(whole), 'split')} for a few steps each, and keeps the fastest"
    return Resolved(parallel=replace(parallel, candidates=whole), note=note)


def _chosen(
    spec: Training,
    config: Mapping[str, Any] | None,
    measured: Sequence[MeasuredGpu],
    steps: Sequence[MeasuredStep],
) -> Resolved:
    if spec.model is None:
        raise Conflict("parallel: auto chooses by the model; describe it with `model`, such as `model: config.json`")
    model, on = transformer_of(spec.model, config), hardware_of(spec, measured=measured, steps=steps)
    # Splits that `run.parallelize` cannot apply are never chosen by default.
    wanted = wanted_of(spec, pipelines=False)
    applied = [candidate for candidate in search(model, on, wanted) if _is_applied(candidate.split)]
    if not applied:
        raise Conflict(
            f"parallel: a batch of {wanted.batch} cannot be dealt out to {plural(spec.world_size, 'rank')} "
            f"as asked for; give `batch` a multiple of {spec.world_size}"
        )
    best = applied[0]
    if not best.fits:
        raise CannotFit(f"parallel: the smallest split, {describe(best.split)}, {does_not_fit(model, best, on)}")
    fitting = [candidate for candidate in applied if candidate.fits]
    probe = 1 if spec.parallel is None else spec.parallel.probe or 1
    if probe > 1 and len(fitting) > 1:
        # Without GPUs only the order is known.
        is_known = on.gpu.names != CPU.names
        candidates = {
            name_of(candidate.split): _candidate(candidate, is_known=is_known) for candidate in fitting[:probe]
        }
        tried = " and ".join(describe(candidate.split) for candidate in fitting[:probe])
        why = f"parallel: tries {tried} for a few steps each, and keeps the fastest"
        return Resolved(parallel=Parallel(batch=wanted.batch, candidates=candidates), note=why)
    whole = _parallel(best.split, wanted.batch)
    needed = f", {best.memory.needed / GIB:.0f} GiB on each GPU"
    why = f"the fastest of {len(applied)} by estimate{needed}" if probe == 1 else f"the only one that fits{needed}"
    return Resolved(parallel=whole, note=f"parallel: {describe(best.split)} ({why})")


def _parallel(split: Split, batch: int | None) -> Parallel:
    return Parallel(
        data=split.data,
        shard=SHARDS[split.zero],
        tensor=split.tensor,
        pipeline=split.pipeline,
        micro_batch=split.micro_batch,
        recompute=Recomputed(split.recompute),
        batch=batch,
    )


def _candidate(candidate: EstimatedSplit, *, is_known: bool) -> SplitCandidate:
    whole = _parallel(candidate.split, None)
    seconds = float(f"{candidate.time.total / 1000:.4g}") if is_known else None
    return SplitCandidate(**{part: getattr(whole, part) for part in PARTS}, estimate_s=seconds)


def name_of(split: Split) -> str:
    """Return a name for a split, unique among those of a search, which differ in how they divide GPUs."""
    parts = [f"data{split.data}"]
    parts += [f"tensor{split.tensor}"] if split.tensor > 1 else []
    parts += [f"pipeline{split.pipeline}"] if split.pipeline > 1 else []
    parts += [f"shard-{SHARDS[split.zero]}"] if split.zero else []
    return "-".join(parts)


def _is_applied(split: Split) -> bool:
    """Return whether ``run.parallelize`` can apply it; it does not replicate tensor parallel layers."""
    return split.tensor == 1 or split.data == 1 or split.zero > 0


def split_of(parallel: Parallel) -> Split:
    """Return the split of a resolved spec."""
    data, micro = parallel.data or 1, parallel.micro_batch or 1
    return Split(
        data=data,
        zero=ZERO[parallel.shard or Shard.NONE],
        tensor=parallel.tensor or 1,
        pipeline=parallel.pipeline or 1,
        micro_batch=micro,
        micro_batches=max(1, (parallel.batch or data * micro) // (data * micro)),
        recompute=Recompute(parallel.recompute or Recomputed.NONE),
    )


def describe(split: Split) -> str:
    """Describe a split briefly."""
    shards = {0: "whole copies", 2: "gradients sharded", 3: "parameters sharded"}
    parts = [f"data {split.data}" + (f" with {shards[split.zero]}" if split.data > 1 else "")]
    parts += [f"tensor {split.tensor}"] if split.tensor > 1 else []
    parts += [f"pipeline {split.pipeline}"] if split.pipeline > 1 else []
    times = f"{split.micro_batches} x " if split.micro_batches > 1 else ""
    parts.append(f"micro-batch {times}{split.micro_batch}")
    parts += [f"{split.recompute} recomputation"] if split.recompute is not Recompute.NONE else []
    return ", ".join(parts)


def ranked(
    spec: Training,
    config: Mapping[str, Any] | None,
    price_per_hour: float | None,
    measured: Sequence[MeasuredGpu] = (),
    steps: Sequence[MeasuredStep] = (),
) -> "SplitRanking":
    """Return every split of a run's GPUs, and the estimate for its own.

    Raises:
        Conflict: It names no known GPU.
        UnknownModel: No formula covers the model.
    """
    model = transformer_of(spec.model or ModelShape(), config)
    on = hardware_of(spec, price_per_hour, measured, steps)
    batch = replace(Wanted(batch=spec.world_size), batch=wanted_of(spec).batch)
    own = None
    if spec.parallel is not None and spec.parallel.choose is None and not spec.parallel.candidates:
        own = assess(model, split_of(resolve(spec, config).parallel), on)
    lack = None if own is None or own.fits else does_not_fit(model, own, on)
    return SplitRanking(
        model=model, on=on, batch=batch.batch, splits=tuple(search(model, on, batch)), own=own, lack=lack
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRanking:
    """Every split of a run's GPUs, the best first.

    Attributes:
        batch: Samples per step.
        own: The estimate for the run's own split; None without one.
        lack: A sentence if that does not fit; None if it does.
    """

    model: Transformer
    on: StepHardware
    batch: int
    splits: tuple[EstimatedSplit, ...]
    own: EstimatedSplit | None
    lack: str | None
