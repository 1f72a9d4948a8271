"""Ranks under each split see the losses that one process sees."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.errors import Misuse
from fairlead.runtime.parallelism.split import ParallelSplit
from tests.late import torch_or_skip
from tests.runtime.gang import Gang

pytestmark = pytest.mark.torch
torch: Any = torch_or_skip()

TWO: list[dict[str, Any]] = [
    {"data": 2, "micro_batch": 2},
    {"data": 2, "shard": "parameters", "micro_batch": 4, "recompute": "full"},
    {"tensor": 2, "micro_batch": 8, "recompute": "selective"},
    {"pipeline": 2, "micro_batch": 2},
]
FOUR: list[dict[str, Any]] = [
    {"data": 2, "tensor": 2, "shard": "parameters", "micro_batch": 2},
    {"data": 2, "pipeline": 2, "micro_batch": 1},
    {"data": 2, "pipeline": 2, "shard": "gradients", "micro_batch": 2},
    {"tensor": 2, "pipeline": 2, "micro_batch": 2},
    {"data": 4, "shard": "gradients", "micro_batch": 1},
    {"data": 2, "pipeline": 2, "micro_batch": 4, "recompute": "full"},
]
EIGHT: list[dict[str, Any]] = [
    {"data": 2, "tensor": 2, "pipeline": 2, "shard": "gradients", "micro_batch": 2},
    {"data": 2, "tensor": 2, "pipeline": 2, "shard": "parameters", "micro_batch": 1, "recompute": "full"},
    {"data": 2, "tensor": 4, "shard": "gradients", "micro_batch": 2},
    {"data": 8, "micro_batch": 1},
]
# Once for all ranks of all tests here, rather than in each.
IMPORTED = (
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint.state_dict",
)
SIZES = {2: TWO, 4: FOUR, 8: EIGHT}


def seen_by(ranks: int, tmp_path: Path, program: Any, *args: Any, to: Path | None = None) -> list[Any]:
    """What each rank of a gang wrote."""
    result, pod = tmp_path / f"result-{ranks}", tmp_path / f"pod-{ranks}"
    with Gang(program, str(result), *args, pod_dir=pod, to=to, world_size=ranks, preload=IMPORTED) as gang:
        deadline = time.monotonic() + 500
        # One that fails leaves the others waiting for it.
        while any(one.is_alive() for one in gang.processes) and not any(one.exitcode for one in gang.processes):
            assert time.monotonic() < deadline, gang.logs()
            time.sleep(0.05)
        assert [one.exitcode for one in gang.processes] == [0] * ranks, gang.logs()
    return [json.loads(Path(f"{result}.{rank}").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long), pytest.param(8, marks=pytest.mark.long)])
def test_ranks_see_the_losses_and_gradients_of_one_process(ranks: int, tmp_path: Path) -> None:
    from tests.runtime.parallel_programs import MODELS, alone, train

    tried = [(split, model) for split in SIZES[ranks] for model in MODELS]
    if ranks == 2:  # half of them: the tied one by what is hard for it
        tried = [(split, "tied" if split in (TWO[1], TWO[3]) else "llama") for split in TWO]
    seen = seen_by(ranks, tmp_path, train, tried)
    expected = {model: alone(model) for model in MODELS}
    for number, (split, model) in enumerate(tried):
        for of_rank in seen:
            found = of_rank[number]
            assert found["losses"] == pytest.approx(expected[model]["losses"], rel=1e-4), (model, split)
            assert found["norms"] == pytest.approx(expected[model]["norms"], rel=1e-3), (model, split)
        assert sorted({name for of_rank in seen for name in of_rank[number]["names"]}) == expected[model]["names"]


Chain = list[tuple[int, dict[str, Any]]]
SHORT: dict[str, Chain] = {
    "a pipeline, then FSDP": [
        (2, {"pipeline": 2, "micro_batch": 2}),
        (2, {"data": 2, "shard": "parameters", "micro_batch": 4}),
    ],
}
CHAINS: dict[str, Chain] = {
    "one process, a 3-D mesh, DDP, a tensor parallel pipeline, one process": [
        (1, {"micro_batch": 8}),
        (8, {"data": 2, "tensor": 2, "pipeline": 2, "shard": "gradients", "micro_batch": 2}),
        (2, {"data": 2, "micro_batch": 4}),
        (4, {"tensor": 2, "pipeline": 2, "micro_batch": 2}),
        (1, {"micro_batch": 8}),
    ],
}


@pytest.mark.parametrize("model", ["tied", pytest.param("llama", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [*SHORT, *(pytest.param(name, marks=pytest.mark.long) for name in CHAINS)])
def test_a_run_goes_on_under_another_split_and_number_of_ranks(name: str, model: str, tmp_path: Path) -> None:
    from tests.runtime.parallel_programs import alone, resume

    chain = {**SHORT, **CHAINS}[name]
    seen: list[float] = []
    for turn, (ranks, split) in enumerate(chain, 1):
        own = tmp_path / str(turn)
        own.mkdir()
        found = seen_by(ranks, own, resume, split, model, 2 * turn, to=tmp_path / "checkpoints")
        seen += found[0]["losses"]
    assert seen == pytest.approx(alone(model, len(seen))["losses"], rel=1e-4)
    assert len(seen) == 2 * len(chain)


def test_what_cannot_be_split_so_is_refused() -> None:
    from fairlead.runtime.parallelism.parallelize import parallelize

    with pytest.raises(Misuse, match="init_process_group"):
        parallelize(torch.nn.Linear(2, 2), ParallelSplit(data=2, batch=2), "cpu")
    with pytest.raises(Misuse, match="copies no tensor parallel layers"):
        parallelize(torch.nn.Linear(2, 2), ParallelSplit(data=2, tensor=2, batch=2), "cpu")
    with pytest.raises(Misuse, match="give 'fp32' or 'bf16'"):
        parallelize(torch.nn.Linear(2, 2), ParallelSplit(data=1, batch=2), "cpu", precision="fp8")  # type: ignore[arg-type] # the point


def test_a_model_that_cannot_be_cut_is_refused_with_what_would_help() -> None:
    from fairlead.runtime.parallelism.blocks import find_blocks
    from fairlead.runtime.parallelism.plan import ParallelPlan
    from fairlead.runtime.parallelism.stages import cut
    from tests.runtime.parallel_programs import Llama

    def stage(model: Any, plan: ParallelPlan | None = None, count: int = 2) -> None:
        cut(model, find_blocks(model, plan.blocks if plan else None), 0, count, plan)

    with pytest.raises(Misuse, match="found 3 blocks for 4 stages"):
        stage(Llama(), count=4)
    with pytest.raises(Misuse, match="are a Linear; give the path of a ModuleList"):
        stage(Llama(), ParallelPlan(blocks="output"))
    with pytest.raises(Misuse, match="it can be one of embedding"):
        stage(Llama(), ParallelPlan(after=("nowhere",)))
    model = Llama()
    model.place = torch.nn.Parameter(torch.zeros(4))
    with pytest.raises(Misuse, match="place is a parameter beside the blocks"):
        stage(model)
    model = Llama()
    model.layers[2] = model.layers[0]
    with pytest.raises(Misuse, match="block 2 shares parameters"):
        stage(model)
    model = Llama()
    stage(model)
    with pytest.raises(Misuse, match=r"run.forward_backward\(\) computes its steps"):
        model(torch.zeros(2, 6, dtype=torch.long))


def test_modules_that_are_registered_in_another_order_are_named_by_a_plan() -> None:
    from fairlead.runtime.parallelism.blocks import find_blocks
    from fairlead.runtime.parallelism.plan import ParallelPlan
    from fairlead.runtime.parallelism.stages import cut
    from tests.runtime.parallel_programs import Llama

    class Late(Llama):
        def __init__(self) -> None:
            super().__init__()
            embedding = self.embedding
            del self.embedding
            self.embedding = embedding

    tokens = torch.zeros(2, 6, dtype=torch.long)
    model: Any = Late()
    cut(model, find_blocks(model, None), 0, 2, None)
    with pytest.raises(Misuse, match="name it in `before`"):
        model(inputs=tokens)
    torch.manual_seed(1)
    whole: Any = Late()
    expected = whole(tokens)
    plan = ParallelPlan(before=("embedding",))
    hidden = None
    for index in range(3):
        torch.manual_seed(1)
        part: Any = Late()
        cut(part, find_blocks(part, None), index, 3, plan)
        hidden = part(inputs=tokens) if hidden is None else part(hidden, inputs=tokens)
    assert torch.equal(hidden, expected)


def test_a_step_of_other_samples_than_the_split_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import fairlead
    from tests.runtime.parallel_programs import Llama, cross_entropy

    monkeypatch.setenv("FAIRLEAD_PARALLEL", json.dumps({"batch": 4, "micro_batch": 2}))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with fairlead.run() as run:
        model = run.parallelize(Llama(), device="cpu")
        tokens = torch.zeros(6, 6, dtype=torch.long)
        with pytest.raises(Misuse, match=r"given 6 samples; the split has 2 x 2 = 4 on each replica"):
            run.forward_backward(model, tokens, tokens, loss=cross_entropy)
        with pytest.raises(Misuse, match=r"is not from run\.parallelize"):
            run.forward_backward(Llama(), tokens, tokens, loss=cross_entropy)


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_computing_again_changes_neither_losses_nor_names(recompute: str) -> None:
    from fairlead.runtime.parallelism.parallelize import parallelize
    from tests.runtime.parallel_programs import Llama

    torch.manual_seed(3)
    model: Any = Llama()
    tokens = torch.zeros(2, 6, dtype=torch.long)
    expected, names = model(tokens), list(model.state_dict())
    again = parallelize(model, ParallelSplit(data=1, batch=4, recompute=recompute), "cpu").module
    assert torch.equal(again(tokens), expected)
    assert list(again.state_dict()) == names


def test_in_bf16_a_step_computes_in_halves_and_keeps_parameters_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    import fairlead
    from tests.runtime.parallel_programs import Llama

    monkeypatch.delenv("FAIRLEAD_PARALLEL", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    seen = []

    def loss(logits: Any, targets: Any) -> Any:
        seen.append(logits.dtype)
        return logits.float().square().mean()

    tokens = torch.zeros(2, 6, dtype=torch.long)
    with fairlead.run() as run:
        model: Any = run.parallelize(Llama(), device="cpu", precision="bf16")
        run.forward_backward(model, tokens, tokens, loss=loss)
    assert seen == [torch.bfloat16]
    assert {item.grad.dtype for item in model.parameters()} == {torch.float32}
