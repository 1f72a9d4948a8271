"""Steps of a program are counted with fake tensors, as any of its ranks."""

import sys
from pathlib import Path

import pytest

from fairlead.control.step_tracing import trace
from fairlead.errors import Conflict
from fairlead.specs.parallel import Parallel, Shard
from tests.builders import training

pytestmark = [pytest.mark.torch, pytest.mark.slow]
pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[torch]'")

ROOT = Path(__file__).parents[2]
PROGRAM = f"{sys.executable} {ROOT / 'tests' / 'runtime' / 'tracing_program.py'}"
# Three blocks of 4 x 256 x 256 and 3 x 256 x 1024 with two norms; embedding and output of 24 tokens.
BLOCK, ROOTS = 4 * 256 * 256 + 3 * 256 * 1024 + 4 * 256, 24 * 256
ENV = {"PYTHONPATH": str(ROOT)}


def test_one_rank_has_all_parameters_and_their_moments() -> None:
    (found,) = trace(training(run=PROGRAM, env=ENV, parallel=Parallel(batch=2, micro_batch=1)), ROOT)
    parameters = 3 * BLOCK + 2 * ROOTS
    assert found.parameters_bytes == 4 * parameters
    # AdamW: two moments and a number of steps for each tensor.
    assert found.optimizer_bytes == pytest.approx(8 * parameters, rel=0.01)
    assert found.peak_bytes > 16 * parameters


@pytest.mark.long
def test_each_rank_has_its_shard_or_part() -> None:
    sharded = Parallel(data=4, shard=Shard.PARAMETERS, batch=4, micro_batch=1)
    (found,) = trace(training(run=PROGRAM, env=ENV, nodes=4, parallel=sharded), ROOT)
    assert found.parameters_bytes == pytest.approx(3 * BLOCK + 2 * ROOTS, rel=0.01)
    (found,) = trace(training(run=PROGRAM, env=ENV, nodes=2, parallel=Parallel(tensor=2, batch=1)), ROOT)
    assert found.parameters_bytes == pytest.approx(2 * 3 * BLOCK + 8 * ROOTS, rel=0.01)


def test_a_pipeline_is_refused() -> None:
    with pytest.raises(Conflict, match="a pipeline cannot be traced"):
        trace(training(run=PROGRAM, nodes=2, parallel=Parallel(pipeline=2, batch=2)), ROOT)


def test_a_program_that_looks_at_values_is_refused_with_the_line() -> None:
    with pytest.raises(Conflict, match=r"cannot be traced: .*DataDependentOutputException.*tracing_program.py"):
        trace(training(run=f"{PROGRAM} --look", env=ENV, parallel=Parallel(batch=1)), ROOT)


@pytest.mark.parametrize("command", ["./train.sh", "python -m train", "python a.py && python b.py"])
def test_what_is_no_python_program_is_refused(command: str) -> None:
    with pytest.raises(Conflict, match=r"it traces `python program\.py"):
        trace(training(run=command), ROOT)
