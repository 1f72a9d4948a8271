"""Weights are read from a run's checkpoints, and the example's predictor writes text with them."""

import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.errors import CheckpointMismatch
from fairlead.runtime.session import run as open_run
from tests.late import Late, torch_or_skip
from tests.serving.replica import Replica

torch: Any = torch_or_skip()
weights: Any = Late("fairlead.runtime.checkpoint.weights")
pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two checkpoints of the example's model, of steps 1 and 2."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    language_model: Any = importlib.import_module("language_model")

    model = language_model.LanguageModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with open_run(checkpoint_to=tmp_path / "checkpoints", checkpoint_every_steps=1) as run:
        run.resume(model=model, optimizer=optimizer)
        for step in (1, 2):
            with torch.no_grad():
                model.norm.bias.fill_(step)
            run.checkpoint(step)
    return tmp_path / "checkpoints"


def bias(state: dict[str, Any]) -> float:
    return float(state["norm.bias"][0])


def test_the_newest_checkpoint_is_read_or_the_one_that_is_named(checkpoints: Path) -> None:
    assert bias(weights.read_weights(checkpoints)) == 2.0
    assert bias(weights.read_weights(checkpoints / "step-000000000001")) == 1.0


def test_a_damaged_checkpoint_falls_back_to_the_one_before(checkpoints: Path) -> None:
    (newest,) = (checkpoints / "step-000000000002" / "tensors").glob("*.distcp")
    data = newest.read_bytes()
    newest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert bias(weights.read_weights(checkpoints)) == 1.0
    with pytest.raises(ValueError, match=r"is damaged: .* differs from what was written"):
        weights.read_weights(checkpoints / "step-000000000002")


def test_what_is_not_there_is_said(checkpoints: Path) -> None:
    with pytest.raises(CheckpointMismatch, match=r"holds no module 'net'; it holds model"):
        weights.read_weights(checkpoints, "net")
    shutil.rmtree(checkpoints)
    with pytest.raises(FileNotFoundError, match=r"holds no complete checkpoint"):
        weights.read_weights(checkpoints)


def test_the_example_writes_text_with_what_was_trained(checkpoints: Path) -> None:
    with Replica("language_model_predictor:Writer", model=str(checkpoints)) as replica:
        asked = {"model": "model", "prompt": "def ", "max_tokens": 5, "temperature": 0.7, "seed": 1}
        first, second = (replica.post("/v1/completions", asked).json() for _ in range(2))
        assert first["choices"] == second["choices"]
        assert first["usage"] == {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}
