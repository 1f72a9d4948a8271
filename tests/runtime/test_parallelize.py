"""Ranks under each split see the losses that one process sees."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.errors import Misuse
from fairlead.runtime.parallel import Split
from tests.runtime.gang import Gang

pytestmark = pytest.mark.torch
torch: Any = pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[torch]'")

SPLITS: dict[str, tuple[int, dict[str, object]]] = {
    "DDP": (2, {"data": 2}),
    "FSDP, computing again": (2, {"data": 2, "shard": "parameters", "recompute": "full"}),
    "tensor parallel, computing some again": (2, {"tensor": 2, "data": 1, "recompute": "selective"}),
}
LONG = {
    "ZeRO 2": (2, {"data": 2, "shard": "gradients"}),
    "2 x 2": (4, {"data": 2, "tensor": 2, "shard": "parameters"}),
    "2 x 4": (8, {"data": 2, "tensor": 4, "shard": "gradients"}),
}


@pytest.mark.parametrize("name", [*SPLITS, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
def test_ranks_see_the_losses_of_one_process(name: str, tmp_path: Path) -> None:
    from tests.runtime.parallel_programs import BATCH, alone, train

    ranks, parallel = {**SPLITS, **LONG}[name]
    text = json.dumps({**parallel, "batch": BATCH})
    result = tmp_path / "result"
    with Gang(
        train, str(result), pod_dir=tmp_path / "pod", to=None, world_size=ranks, env={"FAIRLEAD_PARALLEL": text}
    ) as gang:
        assert gang.wait(400) == [0] * ranks, (tmp_path / "pod" / "rank-0.log").read_text()
    seen = [json.loads(Path(f"{result}.{rank}").read_text())["losses"] for rank in range(ranks)]
    together = [sum(step) / ranks for step in zip(*seen, strict=True)]
    assert together == pytest.approx(alone(), rel=1e-4)


def test_a_model_without_layers_to_divide_and_pipelines_are_refused() -> None:
    from fairlead.runtime.parallelize import parallelize

    with pytest.raises(Misuse, match=r"builds no pipelines; give `parallel.pipeline: 1`"):
        parallelize(torch.nn.Linear(2, 2), Split(data=1, pipeline=2, batch=1), "cpu")
    with pytest.raises(Misuse, match="init_process_group"):
        parallelize(torch.nn.Linear(2, 2), Split(data=2, batch=2), "cpu")
    with pytest.raises(Misuse, match="copies no tensor parallel layers"):
        parallelize(torch.nn.Linear(2, 2), Split(data=2, tensor=2, batch=2), "cpu")


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_computing_again_changes_neither_losses_nor_names(recompute: str) -> None:
    from fairlead.runtime.parallelize import parallelize
    from tests.runtime.parallel_programs import Llama, alone, losses

    torch.manual_seed(3)
    model: Any = Llama()
    names = list(model.state_dict())
    model = parallelize(model, Split(data=1, batch=4, recompute=recompute), "cpu")
    assert list(model.state_dict()) == names
    assert losses(model, 0, 1) == pytest.approx(alone(), rel=1e-5)
