"""The run of one rank with torch: what of modules and optimizers is saved, and when."""

import copy
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.environment import Environment
from fairlead.runtime.errors import CheckpointMismatch
from fairlead.runtime.session import Run
from tests.late import Late, torch_or_skip

pytestmark = pytest.mark.torch
torch: Any = torch_or_skip()
distcp: Any = Late("fairlead.runtime.checkpoint.distcp")
whole_state: Any = Late("fairlead.runtime.checkpoint.whole_state")


@pytest.fixture
def open_run(tmp_path: Path) -> Callable[[], Run]:
    return lambda: Run(Environment(pod_dir=tmp_path, run_dir=tmp_path, checkpoint_to=str(tmp_path / "c")))


def network(seed: int, width: int = 16) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))


def train(model: Any, optimizer: Any, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


def copied(value: Any) -> Any:
    return copy.deepcopy(value.state_dict())


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return bool(torch.equal(left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def test_save_in_the_background_holds_the_state_of_its_step(
    open_run: Callable[[], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    save = distcp.write

    def late(*args: Any, **given: Any) -> Any:
        assert go.wait(20)
        return save(*args, **given)

    monkeypatch.setattr("fairlead.runtime.checkpoint.distcp.write", late)
    model = network(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    extra: dict[str, Any] = {"average": torch.zeros(3)}
    expected: list[Any] = []
    with open_run() as run:
        run.resume(model=model, optimizer=optimizer, extra=extra)
        for step in (10, 11):  # the second copy goes where the first one was
            train(model, optimizer)
            go.clear()
            run.checkpoint(step, force=True)
            expected = [copied(model), copied(optimizer), random.getstate(), extra["average"].clone()]
            train(model, optimizer)
            extra["average"] += 1
            random.random()
            go.set()
            assert run._saver is not None
            assert run._saver.wait(20)
    model, extra = network(2), {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    with open_run() as run:
        assert run.resume(model=model, optimizer=optimizer, extra=extra) == 11
        assert equal(model.state_dict(), expected[0])
        assert equal(optimizer.state_dict(), expected[1])
        assert random.getstate() == expected[2]
        assert equal(extra["average"], expected[3])


@pytest.mark.parametrize("trained", [0, 3])
@pytest.mark.parametrize("make", ["SGD", "momentum", "AdamW", "Adagrad"])
def test_optimizer_comes_back_as_it_was(open_run: Callable[[], Run], make: str, trained: int) -> None:
    makers = {
        "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.3),
        "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.9),
        "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.3),
        "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.3),
    }
    model = network(1)
    optimizer = makers[make](model.parameters())
    train(model, optimizer, trained)
    expected = copied(optimizer)
    with open_run() as run:
        run.resume(model=model, optimizer=optimizer)
        run.checkpoint(1)
    assert equal(optimizer.state_dict(), expected)
    model = network(2)
    optimizer = makers[make](model.parameters())
    optimizer.param_groups[0]["lr"] = 7.0
    with open_run() as run:
        assert run.resume(model=model, optimizer=optimizer) == 1
    assert equal(optimizer.state_dict(), expected)


def test_parameters_that_were_never_trained_have_no_state_afterwards_either(open_run: Callable[[], Run]) -> None:
    def make() -> tuple[Any, Any]:
        model = network(1)
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.5}]
        return model, torch.optim.AdamW(groups)

    model, optimizer = make()
    model[0].requires_grad_(False)
    train(model, optimizer)
    expected = copied(optimizer)
    assert len(expected["state"]) == 2
    with open_run() as run:
        run.resume(model=model, optimizer=optimizer)
        run.checkpoint(1)
    model, optimizer = make()
    with open_run() as run:
        assert run.resume(model=model, optimizer=optimizer) == 1
    assert equal(optimizer.state_dict(), expected)


def test_several_modules_and_optimizers_are_kept_apart(open_run: Callable[[], Run]) -> None:
    def make(seed: int) -> dict[str, Any]:
        first, second = network(seed), network(seed + 1)
        return {
            "first": first,
            "second": second,
            "type": torch.optim.AdamW(first.parameters(), lr=0.1 * seed),
            "b": torch.optim.SGD(second.parameters(), lr=0.2 * seed, momentum=0.9),
        }

    objects = make(1)
    train(objects["first"], objects["type"])
    train(objects["second"], objects["b"])
    expected = {name: copied(value) for name, value in objects.items()}
    with open_run() as run:
        run.resume(**objects)
        run.checkpoint(1)
    objects = make(5)
    with open_run() as run:
        assert run.resume(**objects) == 1
    assert equal({name: value.state_dict() for name, value in objects.items()}, expected)


def test_optimizer_without_its_module_saves_itself(open_run: Callable[[], Run]) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    weight.square().sum().backward()
    optimizer.step()
    expected = copied(optimizer)
    with open_run() as run:
        run.resume(optimizer=optimizer)
        run.checkpoint(1)
    optimizer = torch.optim.AdamW([weight])
    with open_run() as run:
        assert run.resume(optimizer=optimizer) == 1
    assert equal(optimizer.state_dict(), expected)


def test_generators_of_torch_and_numpy_go_on_where_they_were(open_run: Callable[[], Run]) -> None:
    import numpy as np

    with open_run() as run:
        run.resume(state={})
        run.checkpoint(1, force=True)
        expected = (torch.rand(3), np.random.rand(3).tolist())
    torch.manual_seed(0)
    np.random.seed(0)
    with open_run() as run:
        run.resume(state={})
        assert torch.equal(torch.rand(3), expected[0])
        assert np.random.rand(3).tolist() == expected[1]


@pytest.mark.parametrize(("width", "layers"), [(17, 3), (16, 4), (16, 2)])
def test_another_architecture_is_an_error_and_no_fresh_start(
    open_run: Callable[[], Run], width: int, layers: int
) -> None:
    with open_run() as run:
        run.resume(model=network(1))
        run.checkpoint(1)
    other = torch.nn.Sequential(*network(1, width)[:layers], *[torch.nn.Linear(1, 1) for _ in range(layers - 3)])
    with open_run() as run, pytest.raises(CheckpointMismatch, match="none can be loaded into this program"):
        run.resume(model=other)


def test_loss_tensor_is_kept_without_its_graph(open_run: Callable[[], Run]) -> None:
    loss = network(1)(torch.randn(4, 8)).mean()
    with open_run() as run:
        run.progress(1, loss=loss, seen=loss)
        kept: Any = run._reporter._loss
        assert kept is not None
        assert not kept.requires_grad


IMPORTS = """
import os, signal, sys
import torch
import fairlead
from fairlead.runtime.session import Stopped

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
{optimizer}
before = set(sys.modules)
def imported():
    global before
    names, before = sorted(name for name in sys.modules.keys() - before if name.startswith("torch")), set(sys.modules)
    print(*names, flush=True)

with fairlead.run() as run:
    try:
        step = run.resume(model=model, optimizer=optimizer)
        imported()
        model(torch.ones(1, 4)).sum().backward()
        if optimizer is not None:
            optimizer.step()
        before = set(sys.modules)  # PyTorch's own step imports as it likes
        run.checkpoint(step + 1, force=True)
        run._saver.wait(60)
        imported()
        os.kill(os.getpid(), signal.SIGTERM)
        run.checkpoint(step + 2)
    except Stopped as stopped:
        imported()
        print(step, stopped.saved)
"""
# Of torch.save and torch.load, in milliseconds.
OWN = {"torch.utils.serialization", "torch.utils.serialization.config", "torch._subclasses.schema_check_mode"}


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param("optimizer = None", marks=pytest.mark.long),
        pytest.param("optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)", marks=pytest.mark.long),
        "optimizer = torch.optim.AdamW(model.parameters())",
    ],
)
def test_neither_resume_nor_the_first_save_nor_that_of_a_stop_notice_imports_more_of_torch(
    tmp_path: Path, optimizer: str
) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    for step in (0, 2):  # without a checkpoint, and after loading one
        result = subprocess.run(
            [sys.executable, "-c", IMPORTS.format(optimizer=optimizer)],
            env={**environ, "FAIRLEAD_CHECKPOINT_TO": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        *imported, last = result.stdout.splitlines()
        assert [set(line.split()) - OWN for line in imported] == [set()] * 3
        assert last == f"{step} True"


def of_torch(directory: Path, model: Any, optimizer: Any) -> dict[str, Any]:
    """The tree of a checkpoint by PyTorch's own functions."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    root = torch.nn.Module()
    root.add_module("_model", model)
    modules: Any
    optim: Any
    modules, optim = get_state_dict(root, [optimizer])
    mine = whole_state.optimizer_state(root, [optimizer])
    assert (modules.keys(), optim["state"].keys(), optim["param_groups"]) == (
        whole_state.module_state(root).keys(), mine[0].keys(), mine[1],
    )  # fmt: skip
    return {"modules": modules, "moments": optim["state"]}


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_what_is_saved_is_what_pytorchs_own_distributed_checkpoint_reads(
    open_run: Callable[[], Run], tmp_path: Path
) -> None:
    import torch.distributed.checkpoint as dcp

    model = network(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    train(model, optimizer)
    with open_run() as run:
        run.resume(model=model, optimizer=optimizer)
        run.checkpoint(1)
    other = network(2)
    other_optimizer = torch.optim.AdamW(other.parameters())
    train(other, other_optimizer, 1)
    tree = of_torch(tmp_path, other, other_optimizer)
    dcp.load(tree, checkpoint_id=str(next((tmp_path / "c").glob("step-*/tensors"))), no_dist=True)
    assert equal(tree, of_torch(tmp_path, model, optimizer))


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("by_name", [False, True], ids=["this Python", "one that pickles members of enums by name"])
def test_what_pytorchs_own_distributed_checkpoint_saved_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

    if by_name:  # as 3.11.2 does
        reduced = lambda member, protocol: (getattr, (type(member), member.name))  # noqa: E731 (an attribute)
        monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", reduced)
    tree = {"a": {"b": [torch.ones(2), {"c": torch.tensor(3.0)}], "d": (1, 2), "e": None}, "f": {}, "g": [1, "x"]}
    dcp.save(copy.deepcopy(tree), checkpoint_id=str(tmp_path), no_dist=True)
    reader = distcp.CheckpointReader(tmp_path)
    found: dict[str, Any] = {"f": {}}
    for name, path in reader.paths.items():
        distcp.put(found, path, reader.read(name))
    assert equal(found, tree)
    assert {path for path, _ in distcp.flatten(tree)} == set(reader.paths.values())


@pytest.mark.slow
def test_names_are_without_the_wrappers_of_compile_and_activation_checkpoints() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    root = torch.nn.Module()
    root.model = torch.compile(torch.nn.Sequential(checkpoint_wrapper(torch.nn.Linear(2, 2)), torch.nn.BatchNorm1d(2)))
    expected = {"model.0.weight", "model.0.bias", "model.1.weight", "model.1.bias"}
    assert set(whole_state.names(root).values()) == expected
    assert whole_state.module_state(root).keys() > expected
    state = {name: torch.zeros_like(value) for name, value in whole_state.module_state(root).items()}
    whole_state.load_module_state(root, state)
    assert all(not value.any() for value in root.state_dict().values())


def test_each_value_is_written_by_one_of_the_ranks_that_hold_it() -> None:
    assert distcp.share_out([{"a": 8, "b": 4, "c": 4}] * 2) == [{"a"}, {"b", "c"}]
    assert distcp.share_out([{"a": 8}, {"b": 4}]) == [{"a"}, {"b"}]
