"""Specs from Python: paths and numbers of NumPy and PyTorch are values, and what has no form is named."""

from pathlib import Path
from typing import Any

import numpy
import pytest

import fairlead
from fairlead.errors import InvalidSpec

np: Any = numpy  # whose scalars are what a program has, and not what the annotations say


class TorchScalar:
    """A scalar as PyTorch has it."""

    shape = ()

    def __init__(self, value: Any) -> None:
        self._value = value

    def item(self) -> Any:
        return self._value

    def tolist(self) -> Any:
        return self._value

    def __str__(self) -> str:
        return f"tensor({self._value})"


@pytest.mark.parametrize(
    ("keys", "attribute", "value"),
    [
        ({"workdir": Path("/data")}, "workdir", "/data"),
        ({"nodes": np.int64(2)}, "nodes", 2),
        ({"nodes": TorchScalar(2)}, "nodes", 2),
        ({"env": {"RATE": np.float32(0.1)}}, "env", {"RATE": "0.1"}),
        ({"env": {"RATE": np.float64(0.1), "ON": np.bool_(True)}}, "env", {"RATE": "0.1", "ON": "true"}),
        ({"env": {"RATE": TorchScalar(0.25), "AT": Path("/x")}}, "env", {"RATE": "0.25", "AT": "/x"}),
    ],
)
def test_paths_and_scalars_of_libraries_are_values(keys: dict[str, Any], attribute: str, value: object) -> None:
    spec = fairlead.Training(run="true", **keys).spec
    read = getattr(spec, attribute)
    assert (read.most if attribute == "nodes" and hasattr(read, "most") else read) == value


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"env": {"A": None}}, "env.A: nothing is given (None); give a value, or leave the key out"),
        ({"labels": {"a": None}}, "labels.a: nothing is given (None)"),
        ({"env": {"A": {1}}}, "env.A: set has no form in a spec; give text, a number, True, False, a path, a list"),
        ({"run": b"true"}, "run: bytes has no form in a spec"),
        ({"secrets": ["a", object()]}, "secrets[1]: object has no form in a spec"),
        ({"env": {"A": np.zeros(3)}}, "env.A: ndarray has no form in a spec"),
    ],
)
def test_a_value_without_a_form_is_named_by_its_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        fairlead.Training(**{"run": "true", **keys})
    assert message in str(caught.value)


def test_every_class_of_the_api_takes_them(tmp_path: Path) -> None:
    trial = {"run": "true", "metrics": "name=value", "workdir": tmp_path}
    sweep = fairlead.Sweep(parameters={"lr": "0.1 | 0.2"}, objective="loss", trials=np.int64(2), trial=trial).spec
    assert (sweep.trials, sweep.trial.workdir) == (2, str(tmp_path))
    search = fairlead.Search(
        parameters={"lr": "0.1..0.2"}, objective="loss", seed=np.int64(3), file=tmp_path / "search.jsonl"
    )
    first, second = search.ask(), search.ask()
    search.tell(first, np.float32(0.5))
    value: Any = TorchScalar(0.25)
    search.tell(np.int64(second.number), value)
    assert search.best().value == 0.25
