"""Runs on this machine that try several splits, each for a few steps, and then train with the fastest."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.records import dump, load
from fairlead.control.step_times import known_steps
from fairlead.policy.strategy.corrections import factors
from fairlead.policy.strategy.probing import describe_probing
from fairlead.policy.strategy.resolution import resolve
from fairlead.specs.parallel import Choose, ModelShape, Parallel, Recomputed, Shard, SplitCandidate
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Checkpoint
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Status, Workload
from fairlead.state.split_probing import Probed, Probing, subject
from tests.builders import change, training
from tests.cluster.test_local_supervisor import Desk, script
from tests.late import torch_or_skip
from tests.waiting import until

ROOT = Path(__file__).parents[2]
# A step takes what its split says; one split kills a rank the first time, one needs too much.
PROGRAM = """
import os, signal, time
import fairlead

with fairlead.run() as run:
    split = run.parallel
    print(f"attempt {run.attempt} has {split.shard} {split.micro_batch}", flush=True)
    state = {"count": 0}
    start = run.resume(state=state)
    if split.recompute == "full":
        raise MemoryError("CUDA out of memory. Tried to allocate 1 GiB")
    for step in range(start, 12):
        time.sleep({"none": 0.06, "gradients": 0.01, "parameters": 0.03}[split.shard])
        if split.shard == "parameters" and step == 3 and run.rank == 0 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        state["count"] += 1
        run.progress(step + 1, total=12)
        run.checkpoint(step + 1)
    print("ends with", state["count"], "steps", flush=True)
"""
CANDIDATES = {
    "whole": SplitCandidate(shard=Shard.NONE, estimate_s=0.01),
    "sharded": SplitCandidate(shard=Shard.PARAMETERS, estimate_s=0.02),
    "gradients": SplitCandidate(shard=Shard.GRADIENTS, estimate_s=0.03),
    "again": SplitCandidate(recompute=Recomputed.FULL, estimate_s=0.04),
}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "home", tmp_path)
    yield desk
    for workload in desk.cluster.workloads():
        if not workload.status.phase.is_final:
            desk.want(workload, Intent.STOP)
            desk.ended(workload)
    pid = desk.cluster.supervisor_pid()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
    desk.cluster.close()


def probing_run(desk: Desk, program: str, **changes: Any) -> Workload:
    parallel = Parallel(batch=2, data=2, micro_batch=1, candidates=CANDIDATES)
    given = {"ranks_per_node": 2, "parallel": parallel, "checkpoint": Checkpoint(to="saved"), **changes}
    return desk.submit(script(desk, program), **given)


@pytest.mark.slow
def test_splits_are_tried_and_the_run_trains_with_the_fastest(desk: Desk) -> None:
    run = desk.until(probing_run(desk, PROGRAM), lambda w: w.status.phase.is_final, 120.0)
    assert run.status.phase is Phase.SUCCEEDED, run.status
    found = run.status.measured.probing
    assert found is not None
    assert found.chosen == "gradients"
    assert [each.name for each in found.tried] == ["whole", "sharded", "gradients", "again"]
    assert [each.step_s is not None and each.step_s > 0.005 for each in found.tried] == [True, True, True, False]
    assert found.tried[3].problem == "rank 0 of 2 ran out of GPU memory" or "rank 1" in (found.tried[3].problem or "")
    # A rank was killed while the second one was tried, which counts as no failure.
    assert (run.status.attempt, run.status.failures.program, run.status.failures.disruptions) == (5, 0, 0)
    said = desk.output(run)
    assert {line for line in said if line.startswith("ends")} == {"ends with 12 steps"}
    assert said.count("ends with 12 steps") == 2, "a start that measures a split ends after a few steps"
    assert run.progress is not None
    assert (run.progress.step, run.progress.checkpoint_step) == (12, 12)
    told = [each.type for each in desk.cluster.events(run.uid)]
    assert (told.count("SplitProbed"), told.count("SplitChosen")) == (4, 1)
    assert "kept and takes" in describe_probing(run.spec, found)[0]
    assert load(Status, dump(run.status)) == run.status


@pytest.mark.long
def test_a_run_that_is_stopped_and_resumed_tries_no_split_again(desk: Desk) -> None:
    program = PROGRAM.replace("range(start, 12)", "range(start, 10_000)").replace("total=12", "total=10_000")
    (desk.workdir / "killed").touch()
    run = probing_run(desk, program)
    desk.until(run, lambda w: w.status.measured.probing is not None and bool(w.status.measured.probing.tried), 60.0)
    desk.want(run, Intent.SUSPEND)
    suspended = desk.until(run, lambda w: w.status.phase is Phase.SUSPENDED, 30.0)
    assert suspended.status.measured.probing is not None
    tried = suspended.status.measured.probing.tried
    desk.want(run, Intent.RUN)
    running = desk.until(
        run, lambda w: w.progress is not None and (w.progress.step or 0) > 5 and w.status.phase is Phase.RUNNING, 90.0
    )
    assert running.status.measured.probing is not None
    assert running.status.measured.probing.tried[: len(tried)] == tried
    chosen = running.status.measured.probing
    desk.want(run, Intent.SUSPEND)
    desk.until(run, lambda w: w.status.phase is Phase.SUSPENDED, 30.0)
    desk.want(run, Intent.RUN)
    again = desk.until(run, lambda w: w.progress is not None and w.progress.resumed_step is not None, 60.0)
    assert again.status.measured.probing == chosen
    assert "has gradients" in desk.output(run)[-1]


def test_a_run_of_which_no_split_works_fails_with_what_each_said(desk: Desk) -> None:
    run = desk.ended(probing_run(desk, "import sys; sys.exit('no data here')"))
    assert (run.status.phase, run.status.reason.code) == (Phase.FAILED, Code.PROGRAM_FAILED)
    assert run.status.reason.message.startswith("none of 4 splits could be run: again (data 2 with whole copies, ")
    assert run.status.reason.message.count("no data here") == 4


TRANSFORMER = """
import torch
import torch.distributed as dist
from torch.nn import functional

import fairlead
from tests.runtime.parallel_programs import VOCABULARY, Llama

def loss_of(given, wanted):
    return functional.cross_entropy(given.flatten(0, 1), wanted.flatten())

with fairlead.run() as run:
    split = run.parallel
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = run.parallelize(Llama(), device="cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    start = run.resume(model=model, optimizer=optimizer)
    for step in range(start, 30):
        torch.manual_seed(1000 * step + split.replica_of(run.rank))
        tokens = torch.randint(0, VOCABULARY, (split.samples, 6))
        loss = run.forward_backward(model, tokens, tokens, loss=loss_of)
        optimizer.step()
        optimizer.zero_grad()
        run.progress(step + 1, total=30, loss=loss)
        run.checkpoint(step + 1)
"""


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_transformer_on_four_ranks_tries_the_best_splits_by_estimate_and_keeps_one(desk: Desk) -> None:
    torch_or_skip()
    shape = ModelShape(layers=3, hidden=16, heads=4, width=32, vocabulary=24, sequence=6)
    auto = Parallel(choose=Choose.AUTO, probe=3, batch=8)
    parallel = resolve(training(model=shape, ranks_per_node=4, parallel=auto), None).parallel
    assert len(parallel.candidates) == 3
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run = probing_run(desk, TRANSFORMER, ranks_per_node=4, parallel=parallel, model=shape, env=env)
    ended = desk.until(run, lambda w: w.status.phase.is_final, 1400.0)
    assert ended.status.phase is Phase.SUCCEEDED, ended.status
    found = ended.status.measured.probing
    assert found is not None
    assert found.chosen is not None
    assert all(each.step_s is not None for each in found.tried), found
    assert ended.progress is not None
    assert ended.progress.checkpoint_step == 30


def test_steps_that_runs_took_are_kept_for_the_next_estimate(desk: Desk) -> None:
    shape = ModelShape(layers=2, hidden=1024, heads=8, vocabulary=1000, sequence=512)
    spec = training(
        model=shape, ranks_per_node=2, resources=Resources(gpu=GpuRequest(milli=2000, model="A100")),
        parallel=Parallel(batch=2, data=2, micro_batch=1, candidates=CANDIDATES),
    )  # fmt: skip
    run = desk.cluster.submit(spec)
    tried = (Probed(name="whole", step_s=0.02), Probed(name="sharded", problem="too large"))
    status = replace(run.status, measured=replace(run.status.measured, probing=Probing(of=subject(spec), tried=tried)))
    assert desk.cluster.store.apply(change(run, status=status), 1.0)
    (step,) = known_steps(desk.cluster, (), desk.cluster.home)
    assert (step.run, step.split, step.gpu, step.hidden, step.micro_batch) == (run.uid, "whole", "A100", 1024, 1)
    assert step.measured_s == 0.02
    by = factors([step], "A100")
    assert by == {step.shape: pytest.approx((0.02 / step.estimated_s) ** (1 / 1.1))}
    # They outlive the run, and are not counted twice.
    desk.want(run, Intent.DELETE)
    until(lambda: not desk.cluster.workloads(), "end of the run")
    assert known_steps(desk.cluster, (), desk.cluster.home) == (step,)
