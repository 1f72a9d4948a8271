"""Stores measured step times of runs in the state directory, to correct later estimates.

They are read from the runs of any cluster: the splits that they tried, and the throughput that they report.
"""

import time
from collections.abc import Iterable, Iterator

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.json_records import read_records, write_records
from fairlead.control.model_config import read_config
from fairlead.errors import Conflict, UnknownModel
from fairlead.policy.strategy.corrections import MeasuredStep, shape_of
from fairlead.policy.strategy.gpus import MeasuredGpu
from fairlead.policy.strategy.resolution import hardware_of, split_of, transformer_of
from fairlead.policy.strategy.search import assess
from fairlead.specs.parallel import Parallel
from fairlead.specs.training import Training
from fairlead.state.snapshot import Progress, Workload, is_leaf
from fairlead.state.split_probing import found_of, split_of_candidate, untried

KEPT = 1000
# Earlier throughput is not yet stable.
LEAST_STEPS = 20


def known_steps(
    cluster: ClusterClient, measured: Iterable[MeasuredGpu], home: Home | None = None
) -> tuple[MeasuredStep, ...]:
    """Return measured steps of a cluster's runs and those stored earlier; store the new ones.

    Raises:
        ClusterError: The file of stored steps cannot be read.
    """
    path = (Home.at() if home is None else home).steps
    records = {(record.run, record.split): record for record in read_records(path, "steps", MeasuredStep, "Remove it.")}
    before, now, measured = dict(records), time.time(), tuple(measured)
    for workload in cluster.workloads():
        if is_leaf(workload) and workload.spec.model is not None and workload.spec.parallel is not None:
            for split, parallel, measured_s in _measured(workload):
                known = records.get((workload.uid, split))
                if known is not None and known.measured_s == measured_s:
                    continue
                step = _step(workload, split, parallel, measured_s, measured, now)
                if step is not None:
                    records[workload.uid, split] = step
    if records != before and path.parent.is_dir():
        newest = sorted(records.values(), key=lambda record: record.at)[-KEPT:]
        write_records(path, "steps", newest)
    return tuple(records.values())


def _measured(workload: Workload) -> Iterator[tuple[str, Parallel, float]]:
    """Yield the name, the split and the step time in seconds of each split that a run has measured."""
    spec, probing = workload.spec, workload.status.measured.probing
    assert spec.parallel is not None
    findings = found_of(spec, probing) if spec.parallel.candidates else None
    for candidate in () if findings is None else findings.tried:
        if candidate.step_s is not None:
            yield candidate.name, split_of_candidate(spec.parallel, candidate.name), candidate.step_s
    parallel, progress = workload.gang.parallel, workload.progress
    if parallel is None or progress is None or parallel.choose is not None or untried(spec, probing):
        return
    step_s = _step_s(spec, parallel, progress)
    if step_s is not None:
        yield "", parallel, step_s


def _step_s(spec: Training, parallel: Parallel, progress: Progress) -> float | None:
    """Return the seconds per step from a run's reported throughput; None without one, or too early in the run."""
    begun = progress.resumed_step or 0
    if not progress.throughput or progress.step is None or progress.step - begun < LEAST_STEPS:
        return None
    if progress.throughput_unit == "steps/s":
        return 1 / progress.throughput
    if progress.throughput_unit == "samples/s" and parallel.batch is not None:
        return parallel.batch / progress.throughput
    if progress.throughput_unit == "tokens/s" and parallel.batch is not None and spec.model is not None:
        return None if spec.model.sequence is None else parallel.batch * spec.model.sequence / progress.throughput
    return None


def _step(
    workload: Workload, split: str, parallel: Parallel, measured_s: float, measured: tuple[MeasuredGpu, ...], now: float
) -> MeasuredStep | None:
    """Return a measured step with its estimate; None if it cannot be estimated."""
    spec = workload.spec
    assert spec.model is not None
    try:
        model = transformer_of(spec.model, read_config(spec, None))
        on = hardware_of(spec, measured=measured)
        own = split_of(parallel)
        estimated = assess(model, own, on).time.total
    except (Conflict, UnknownModel):
        return None
    shape = shape_of(model, own)
    return MeasuredStep(
        run=workload.uid, split=split, gpu=on.gpu.names[0], hidden=shape.hidden, heads=shape.heads,
        sequence=shape.sequence, tensor=shape.tensor, micro_batch=shape.micro_batch,
        measured_s=measured_s, estimated_s=estimated / 1000, at=now,
    )  # fmt: skip
