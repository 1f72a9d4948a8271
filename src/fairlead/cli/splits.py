"""Formats estimated parallel splits of a model as text and JSON."""

import contextlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fairlead.cluster.client import ClusterClient
from fairlead.control.gpu_measurement import read_measured
from fairlead.control.model_config import read_config
from fairlead.control.step_times import known_steps
from fairlead.control.step_tracing import TracedStage, trace
from fairlead.errors import Conflict, UnknownModel
from fairlead.policy.strategy import torch_memory
from fairlead.policy.strategy.memory import GIB, StageMemory
from fairlead.policy.strategy.resolution import (
    SHARDS,
    SplitRanking,
    describe,
    ranked,
    resolve,
    split_of,
    transformer_of,
)
from fairlead.policy.strategy.search import EstimatedSplit
from fairlead.policy.strategy.step_time import UNSEEN
from fairlead.specs.parallel import Parallel
from fairlead.specs.training import Training
from fairlead.state.snapshot import Node
from fairlead.state.split_probing import order, split_of_candidate
from fairlead.text.quantities import plural

MOST_ROWS = 12
HEADERS = ("DATA", "SHARD", "TENSOR", "PIPELINE", "MICRO-BATCH", "RECOMPUTE", "GIB", "STEP", "$/1000 STEPS", "WHY")


def describe_splits(cluster: ClusterClient, spec: Training, directory: Path | None) -> list[str]:
    """Return a table of splits, best first, and the deficiency of the run's own split; or why there is no estimate.

    Args:
        directory: Directory of the spec file.
    """
    try:
        ranking = _ranking(cluster, spec, directory)
    except (Conflict, UnknownModel) as error:
        return [f"{spec.name}: no estimate: {error}"]
    return _described(spec.name, ranking)


def describe_traces(spec: Training, directory: Path) -> list[str]:
    """Describe the allocations of the run's own program, counted with fake tensors, beside the estimate.

    Raises:
        Conflict: The program cannot be traced.
    """
    lines = []
    for stage, estimated in _traces(spec, directory):
        what = f"stage {stage.stage} of its pipeline, " if spec.parallel and (spec.parallel.pipeline or 1) > 1 else ""
        line = (
            f"{spec.name}: two steps of its program on {what}rank {stage.rank} of {spec.world_size}: "
            f"{stage.peak_bytes / GIB:.3g} GiB at the peak"
        )
        if estimated is not None:
            line += f", {estimated / GIB:.3g} by estimate ({100 * (estimated / stage.peak_bytes - 1):+.1f} %)"
        parts = f"parameters {stage.parameters_bytes / GIB:.3g}, optimizer {stage.optimizer_bytes / GIB:.3g}"
        lines.append(f"{line}; {parts}")
    return lines


def traces_json(spec: Training, directory: Path) -> list[dict[str, Any]]:
    """Return the traces as JSON objects."""
    return [{**asdict(stage), "estimated_bytes": estimated} for stage, estimated in _traces(spec, directory)]


def _traces(spec: Training, directory: Path) -> list[tuple[TracedStage, float | None]]:
    """Return each traced stage with its estimated bytes; None without an estimate."""
    estimates: tuple[StageMemory, ...] = ()
    config = read_config(spec, directory)
    if spec.parallel is not None:
        parallel = resolve(spec, config, read_measured()).parallel
        if parallel.candidates:  # the candidate that is tried first
            parallel = split_of_candidate(parallel, order(parallel)[0])
        spec = replace(spec, parallel=parallel)
    with contextlib.suppress(UnknownModel):  # then there is no estimate to compare with
        if spec.model is not None:
            split = split_of(spec.parallel or Parallel(data=spec.world_size))
            estimates = torch_memory.stages(transformer_of(spec.model, config), split)
    return [(stage, estimates[stage.stage].allocated if estimates else None) for stage in trace(spec, directory)]


def splits_json(cluster: ClusterClient, spec: Training, directory: Path | None) -> dict[str, Any]:
    """Return every split as a JSON object, and the run's own; None without an estimate."""
    try:
        ranking = _ranking(cluster, spec, directory)
    except (Conflict, UnknownModel):
        return {"splits": None, "split": None}
    price = ranking.on.price_per_hour
    own = None if ranking.own is None else {**_json(ranking.own, price), "reason": ranking.lack or ""}
    return {"splits": [_json(candidate, price) for candidate in ranking.splits], "split": own}


def _ranking(cluster: ClusterClient, spec: Training, directory: Path | None) -> SplitRanking:
    price = None if cluster.has_containers else _price_of(spec, cluster.nodes())
    measured = read_measured()
    return ranked(spec, read_config(spec, directory), price, measured, known_steps(cluster, measured))


def _price_of(spec: Training, nodes: tuple[Node, ...]) -> float | None:
    """Return the hourly price in dollars of the cheapest node with enough GPUs; None if unknown."""
    gpu = spec.resources.gpu
    fitting = [node for node in nodes if gpu is not None and len(node.gpus) >= gpu.num_devices]
    return min((node.price_per_hour for node in fitting if node.price_per_hour is not None), default=None)


def _described(name: str, ranking: SplitRanking) -> list[str]:
    on, model = ranking.on, ranking.model
    gpus = f"{on.gpus} x {on.gpu.names[0]} of {on.gpu.memory_bytes / GIB:.0f} GiB"
    size = f"{model.parameters / 1e9:.3g} billion parameters"
    lines = [f"{name}: {size}, {model.sequence} tokens a sample, {ranking.batch} samples a step, on {gpus}"]
    rows = [_cells(candidate, on.price_per_hour) for candidate in ranking.splits[:MOST_ROWS]]
    if on.price_per_hour is None:
        rows = [(*row[:-2], row[-1]) for row in rows]
    headers = HEADERS if on.price_per_hour is not None else (*HEADERS[:-2], HEADERS[-1])
    table = [headers, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(headers))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    more = len(ranking.splits) - len(rows)
    if more > 0:
        lines.append(f"and {more} more")
    low, high = UNSEEN
    source = on.coefficients.source
    if on.factors:
        source += f", corrected for {plural(len(on.factors), 'layer shape')} by steps that were measured"
    lines.append(f"{name}: nine in ten steps take {low:g} to {high:g} times their estimate, by {source}")
    if ranking.own is not None:
        text = ranking.lack or f"needs {ranking.own.memory.needed / GIB:.0f} GiB, {ranking.own.time.total / 1000:.3g} s"
        lines.append(f"{name}: its split, {describe(ranking.own.split)}: {text}")
    return lines


def _json(candidate: EstimatedSplit, price: float | None) -> dict[str, Any]:
    return {
        **asdict(candidate.split),
        "shard": SHARDS[candidate.split.zero].value,
        "needed_gib": round(candidate.memory.needed / GIB, 3),
        "fits": candidate.fits,
        "step_ms": round(candidate.time.total, 3),
        "dollars_per_1000_steps": None if price is None else round(candidate.time.total / 3600 * price, 4),
        "reason": candidate.reason,
    }


def _cells(candidate: EstimatedSplit, price: float | None) -> tuple[str, ...]:
    split, seconds = candidate.split, candidate.time.total / 1000
    return (
        str(split.data),
        SHARDS[split.zero].value,
        str(split.tensor),
        str(split.pipeline),
        f"{split.micro_batches} x {split.micro_batch}",
        str(split.recompute),
        f"{candidate.memory.needed / GIB:.1f}",
        f"{seconds:.3g} s",
        "" if price is None else f"{seconds * price / 3.6:.2f}",
        candidate.reason,
    )
