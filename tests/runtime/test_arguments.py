"""What a program may give run.progress and run.checkpoint, and what is refused where it is called."""

from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from fairlead.runtime.arguments import check_number, passes, whole
from fairlead.runtime.environment import Environment
from fairlead.runtime.errors import Misuse
from fairlead.runtime.session import Run
from tests.late import torch_or_skip
from tests.runtime.gang import read_report

torch: Any = torch_or_skip()
pytestmark = pytest.mark.torch


@pytest.fixture
def value(request: pytest.FixtureRequest) -> object:
    """What a test is given; a function makes a tensor, so that torch is not imported before."""
    return request.param() if isinstance(request.param, FunctionType) else request.param


@pytest.mark.parametrize(
    "value", [3, np.int64(3), np.uint8(3), lambda: torch.tensor(3), lambda: torch.tensor([3])], indirect=True
)
def test_every_integer_is_a_whole_number(value: object) -> None:
    assert whole(value, "run.progress(step)") == 3
    assert type(whole(value, "run.progress(step)")) is int


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("x", "run.progress(step) was given the string 'x'; give a whole number from 0 on"),
        (-1, "run.progress(step) was given -1; give a whole number from 0 on"),
        (np.int32(-1), "run.progress(step) was given -1; give a whole number from 0 on"),
        (5 / 2, "run.progress(step) was given 2.5 (float); give a whole number from 0 on; round it with int() if that"),
        (3.0, "run.progress(step) was given 3.0 (float); give a whole number from 0 on; round it with int() if that"),
        (True, "run.progress(step) was given True; give a whole number from 0 on"),
        (None, "run.progress(step) was given None; give a whole number from 0 on"),
        ([3], "run.progress(step) was given a value of type list; give a whole number from 0 on"),
        (
            lambda: torch.tensor(3.0),
            "run.progress(step) was given a value of type Tensor with 1 elements; give a whole",
        ),
        (
            lambda: torch.ones(2, dtype=torch.int64),
            "run.progress(step) was given a value of type Tensor with 2 elements; give",
        ),
    ],
    indirect=["value"],
)
def test_what_is_no_whole_number_is_refused_with_what_is(value: object, sentence: str) -> None:
    with pytest.raises(Misuse) as refused:
        whole(value, "run.progress(step)")
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("value", [0, 2.5, np.float32(2.5), lambda: torch.tensor(2.5)], indirect=True)
def test_epoch_may_have_a_fraction(value: Any) -> None:
    assert passes(value) == float(value)


@pytest.mark.parametrize(
    "value", ["2", -0.5, float("nan"), float("inf"), True, None, [1.0], lambda: torch.ones(2)], indirect=True
)
def test_epoch_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(Misuse, match=r"run\.progress\(epoch=\.\.\.\) was given .*; give a number from 0 on"):
        passes(value)


@pytest.mark.parametrize(
    "value",
    [1, 0.5, float("nan"), None, np.float32(1), lambda: torch.tensor(1.0), lambda: torch.ones(1, 1)],
    indirect=True,
)
def test_loss_and_metrics_are_numbers_or_tensors_of_one_element(value: object) -> None:
    check_number("loss", value)


@pytest.mark.parametrize("value", ["0.5", [0.5], {"a": 1}, lambda: torch.ones(2), np.ones(3), object()], indirect=True)
def test_loss_that_can_be_no_number_is_refused(value: object) -> None:
    with pytest.raises(Misuse, match=r"run\.progress\(loss=\.\.\.\) was given .*; give a number or a tensor of one"):
        check_number("loss", value)


@pytest.mark.parametrize(
    "given",
    [
        {"step": "x"},
        {"step": -1},
        {"step": 5 / 3},
        {"step": 1, "total": 0},
        {"step": 1, "total": "10"},
        {"step": 1, "epoch": "one"},
        {"step": 1, "samples": 1.5},
        {"step": 1, "tokens": -3},
        {"step": 1, "samples": 1, "tokens": 1},
        {"step": 1, "loss": "low"},
        {"step": 1, "accuracy": "high"},
    ],
)
def test_nonsense_is_refused_where_it_is_called_and_is_not_reported(tmp_path: Path, given: dict[str, Any]) -> None:
    with Run(Environment(pod_dir=tmp_path, run_dir=tmp_path)) as run:
        run.progress(7)
        with pytest.raises(Misuse, match=r"^run\.progress\(.*was given .*give"):
            run.progress(**given)
    assert read_report(tmp_path)["step"] == 7


def test_step_of_a_checkpoint_is_a_whole_number_too(tmp_path: Path) -> None:
    with Run(Environment(pod_dir=tmp_path, run_dir=tmp_path)) as run:
        run.resume(state={})
        with pytest.raises(Misuse, match=r"run\.checkpoint\(step\) was given 1\.5"):
            run.checkpoint(1.5)  # type: ignore[arg-type] # that is the point
        run.checkpoint(torch.tensor(2))  # an integer all the same
