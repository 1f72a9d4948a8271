"""Models of Hugging Face under each split see the losses that one process sees."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.environments import interpreter_with
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.frameworks, pytest.mark.torch]
PROGRAM = Path(__file__).with_name("parallel_models.py")
TIMEOUT_S = 900.0
SPLITS: dict[int, list[dict[str, Any]]] = {
    1: [{}],
    2: [
        {"data": 2, "micro_batch": 2},
        {"data": 2, "shard": "parameters", "micro_batch": 4, "recompute": "full"},
        {"tensor": 2, "micro_batch": 8},
        {"pipeline": 2, "micro_batch": 2},
    ],
    8: [{"data": 2, "tensor": 2, "pipeline": 2, "shard": "gradients", "micro_batch": 2}],
}


def losses(python: Path, ranks: int, model: str) -> list[list[float]]:
    """The losses that rank 0 saw under each split."""
    common = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    command = [str(python), str(PROGRAM), json.dumps(SPLITS[ranks]), model]
    processes = [
        subprocess.Popen(
            command,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * ranks, outputs
    said = (line.removeprefix("SAW ") for line in outputs[0].splitlines() if line.startswith("SAW "))
    return [json.loads(line)["losses"] for line in said]


@pytest.mark.parametrize("model", ["llama", "gpt2", "bert", "vit"])
def test_ranks_see_the_losses_of_one_process(model: str) -> None:
    python = interpreter_with("huggingface")
    (alone,) = losses(python, 1, model)
    for ranks in (2, 8):
        for split, seen in zip(SPLITS[ranks], losses(python, ranks, model), strict=True):
            assert seen == pytest.approx(alone, rel=1e-4), split
