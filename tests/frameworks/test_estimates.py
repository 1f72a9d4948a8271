"""The memory of Hugging Face's models is estimated as a trace of their steps counts it, under every split."""

import json
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fairlead.control.step_tracing import trace
from fairlead.policy.strategy import torch_memory
from fairlead.policy.strategy.resolution import resolve, split_of
from fairlead.policy.strategy.transformer import hugging_face
from fairlead.specs.parallel import Parallel, Recomputed, Shard
from tests.builders import training
from tests.frameworks.environments import interpreter_with

pytestmark = [pytest.mark.slow, pytest.mark.frameworks, pytest.mark.torch]
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("traced_models.py")
SEQUENCE = 512
SPLITS = {
    "plain": (1, Parallel(batch=8, micro_batch=4)),
    "recomputed": (1, Parallel(batch=8, micro_batch=8, recompute=Recomputed.FULL)),
    "replicas": (4, Parallel(data=4, batch=32, micro_batch=8)),
    "parameters": (4, Parallel(data=4, shard=Shard.PARAMETERS, batch=32, micro_batch=8)),
    "gradients": (4, Parallel(data=4, shard=Shard.GRADIENTS, batch=64, micro_batch=8)),
    "tensor": (2, Parallel(tensor=2, batch=8, micro_batch=8)),
    "pipeline": (2, Parallel(pipeline=2, batch=16, micro_batch=4)),
}


@cache
def config_of(model: str) -> dict[str, Any]:
    """The ``config.json`` of a model, as `transformers` makes it."""
    command = [str(interpreter_with("huggingface")), str(PROGRAM), "config", model]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    config: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return config


# One a test: a trace takes a few seconds on a machine at rest, and a minute on a busy one.
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("model", ["llama", "gpt2", "bert", "vit"])
def test_the_estimate_is_what_is_counted(model: str, split: str) -> None:
    python, (nodes, asked) = interpreter_with("huggingface"), SPLITS[split]
    transformer = hugging_face(config_of(model), None if model == "vit" else SEQUENCE)
    spec = training(run=f"{python} {PROGRAM} {model}", env={"PYTHONPATH": str(ROOT)}, nodes=nodes, parallel=asked)
    parallel = resolve(spec, None).parallel
    estimates = torch_memory.stages(transformer, split_of(parallel))
    for found in trace(replace(spec, parallel=parallel), ROOT):
        assert estimates[found.stage].allocated == pytest.approx(found.peak_bytes, rel=0.01), found
