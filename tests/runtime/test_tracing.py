"""Steps of a program are counted with fake tensors, as any of its ranks."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairlead.control import step_tracing
from fairlead.control.step_tracing import trace
from fairlead.errors import Conflict
from fairlead.policy.strategy import torch_memory
from fairlead.policy.strategy.resolution import resolve, split_of
from fairlead.policy.strategy.transformer import Transformer
from fairlead.specs.parallel import Parallel, Recomputed, Shard
from tests.builders import training
from tests.late import torch_or_skip

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch_or_skip()

ROOT = Path(__file__).parents[2]
PROGRAM = f"{sys.executable} {ROOT / 'tests' / 'runtime' / 'tracing_program.py'}"
# Three blocks of 4 x 256 x 256 and 3 x 256 x 1024 with two norms; embedding and output of 8,192 tokens.
BLOCK, ROOTS, NORM = 4 * 256 * 256 + 3 * 256 * 1024 + 4 * 256, 8192 * 256, 2 * 256
ENV = {"PYTHONPATH": str(ROOT)}


LLAMA = Transformer(
    layers=3, hidden=256, heads=4, key_value_heads=4, head=64, width=1024, vocabulary=8192, sequence=512
)


def test_one_rank_has_all_parameters_and_their_moments() -> None:
    spec = training(run=PROGRAM, env=ENV, parallel=Parallel(batch=8, micro_batch=4))
    (found,) = trace(spec, ROOT)
    parameters = 3 * BLOCK + 2 * ROOTS + NORM
    assert found.parameters_bytes == 4 * parameters
    # AdamW: two moments and a number of steps for each tensor.
    assert found.optimizer_bytes == pytest.approx(8 * parameters, rel=0.01)
    (estimated,) = torch_memory.stages(LLAMA, split_of(resolve(spec, None).parallel))
    assert estimated.allocated == pytest.approx(found.peak_bytes, rel=0.01)


def test_transformers_makes_no_mask_for_packed_sequences_while_it_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = SimpleNamespace(find_packed_sequence_indices=lambda positions: positions)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", masks)
    tracing = importlib.import_module("fairlead.runtime.parallelism.tracing")  # which needs torch
    tracing._positions_are_the_models_own()
    assert masks.find_packed_sequence_indices([0, 1, 0, 1]) is None


@pytest.mark.long
def test_each_rank_has_its_shard_or_part() -> None:
    sharded = Parallel(data=4, shard=Shard.PARAMETERS, batch=4, micro_batch=1)
    (found,) = trace(training(run=PROGRAM, env=ENV, nodes=4, parallel=sharded), ROOT)
    assert found.parameters_bytes == pytest.approx(3 * BLOCK + 2 * ROOTS, rel=0.01)
    (found,) = trace(training(run=PROGRAM, env=ENV, nodes=2, parallel=Parallel(tensor=2, batch=1)), ROOT)
    assert found.parameters_bytes == pytest.approx(2 * 3 * BLOCK + 8 * ROOTS, rel=0.01)


def within_a_percent(nodes: int, asked: Parallel) -> None:
    spec = training(run=PROGRAM, env=ENV, nodes=nodes, parallel=asked)
    parallel = resolve(spec, None).parallel
    estimates = torch_memory.stages(LLAMA, split_of(parallel))
    for found in trace(replace(spec, parallel=parallel), ROOT):
        assert estimates[found.stage].allocated == pytest.approx(found.peak_bytes, rel=0.01), (asked, found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("nodes", "asked"),
    [
        (1, Parallel(batch=8, micro_batch=8, recompute=Recomputed.FULL)),
        (4, Parallel(data=4, shard=Shard.PARAMETERS, batch=32, micro_batch=8)),
        (2, Parallel(tensor=2, batch=8, micro_batch=8)),
        (2, Parallel(pipeline=2, batch=16, micro_batch=4)),
    ],
)
def test_the_estimate_is_what_is_counted_under_every_split(nodes: int, asked: Parallel) -> None:
    within_a_percent(nodes, asked)


@pytest.mark.long
def test_each_stage_of_a_pipeline_is_traced() -> None:
    first, last = trace(training(run=PROGRAM, env=ENV, nodes=2, parallel=Parallel(pipeline=2, batch=2)), ROOT)
    assert (first.stage, first.rank, last.stage, last.rank) == (0, 0, 1, 1)
    assert first.parameters_bytes == 4 * (2 * BLOCK + ROOTS)
    assert last.parameters_bytes == 4 * (BLOCK + ROOTS + NORM)


def test_a_program_that_waits_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(step_tracing, "STUCK_S", 2.0)
    with pytest.raises(Conflict, match=r"sleeper.py did not come to its third step, and has done nothing for 2 s"):
        trace(training(run=f"{sys.executable} sleeper.py"), tmp_path)


def test_a_program_that_computes_for_ever_is_given_up_by_the_processor_it_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text("while True:\n    pass\n")
    monkeypatch.setattr(step_tracing, "PATIENCE_S", 0.5)
    with pytest.raises(Conflict, match=r"loop.py did not come to its third step in 0.5 s of the processor"):
        trace(training(run=f"{sys.executable} loop.py"), tmp_path)


def test_a_program_that_looks_at_values_is_refused_with_the_line() -> None:
    with pytest.raises(Conflict, match=r"cannot be traced: .*DataDependentOutputException.*tracing_program.py"):
        trace(training(run=f"{PROGRAM} --look", env=ENV, parallel=Parallel(batch=1)), ROOT)


@pytest.mark.parametrize("command", ["./train.sh", "python -m train", "python a.py && python b.py"])
def test_what_is_no_python_program_is_refused(command: str) -> None:
    with pytest.raises(Conflict, match=r"it traces `python program\.py"):
        trace(training(run=command), ROOT)
