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

from fairlead.runtime.checkpoint.warming import warm
from fairlead.runtime.environment import Environment
from fairlead.runtime.errors import CheckpointMismatch
from fairlead.runtime.session import Run

pytestmark = pytest.mark.torch
torch: Any = pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[torch]'")


@pytest.fixture
def open_run(tmp_path: Path) -> Callable[[], Run]:
    warm()  # else what is due is put off until all is imported
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
    import torch.distributed.checkpoint as dcp

    go = threading.Event()
    save = dcp.save

    def late(*args: Any, **given: Any) -> Any:
        assert go.wait(20)
        return save(*args, **given)

    monkeypatch.setattr(dcp, "save", late)
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
import os, signal, sys, threading
import torch
import fairlead
from fairlead.runtime.session import Stopped

class Watch:
    names = []
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            self.names.append(name)

model = torch.nn.Linear(4, 4)
{optimizer}
with fairlead.run() as run:
    try:
        sys.meta_path.insert(0, Watch())
        state = {{"model": model, "optimizer": optimizer}}
        run.resume(**state)
        imported = [name for name in Watch.names if name.startswith("torch")]
        print("at resume", imported, flush=True)
        sys.meta_path.pop(0)
        model(torch.ones(1, 4)).sum().backward()  # PyTorch's own first step imports as it likes
        if optimizer is not None:
            optimizer.step()
        run._warming.wait()
        sys.meta_path.insert(0, Watch())
        Watch.names.clear()
        run.checkpoint(1, force={force})
        run._saver.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        run.checkpoint(2)
    except Stopped as stopped:
        print("at saves", Watch.names, stopped.saved)
"""


@pytest.mark.parametrize(
    ("optimizer", "force"),
    [("optimizer = None", True), ("optimizer = torch.optim.AdamW(model.parameters())", False)],
)
def test_neither_resume_nor_the_first_save_nor_a_stop_notice_imports_anything_on_the_thread_of_the_training(
    tmp_path: Path, optimizer: str, force: bool
) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    result = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(optimizer=optimizer, force=force)],
        env={**environ, "FAIRLEAD_CHECKPOINT_TO": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines() == ["at resume []", "at saves [] True"]


class Slow:
    """Imports that are not over before somebody waits for them."""

    def __init__(self) -> None:
        self.is_over = False
        self.num_waits = 0

    def wait(self) -> None:
        self.is_over = True
        self.num_waits += 1


@pytest.mark.parametrize(("over_at", "saved_at"), [(3, 3), (100, 4)])
def test_a_save_that_is_due_while_its_imports_are_under_way_is_put_off_but_not_beyond_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over_at: int, saved_at: int
) -> None:
    imports = Slow()
    monkeypatch.setattr("fairlead.runtime.session.Warming", lambda: imports)
    to = tmp_path / "to"
    with Run(Environment(pod_dir=tmp_path, run_dir=tmp_path, checkpoint_to=str(to), every_steps=4)) as run:
        run.resume(model=torch.nn.Linear(2, 2))
        for step in range(1, 5):
            imports.is_over = imports.is_over or step >= over_at
            run.checkpoint(step)
            assert run._saver is not None
            run._saver.wait()
            assert (run._saver.newest is not None) == (step >= saved_at)
    assert imports.num_waits == (saved_at == 4)
