"""Functions as steps of a pipeline: what each is given, what it returns, and what cannot be one."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.errors import Conflict, InvalidSpec
from fairlead.runtime.steps import dump, load
from fairlead.specs.formats.serialization import to_json
from tests.cluster.test_pipelines import Place


@fairlead.step
def numbers() -> list[int]:
    return [1, 2, 3]


@fairlead.step(each_of=numbers)
def doubled(item: int, by: int = 2) -> tuple[int, int]:
    return item, item * by


@fairlead.step(each=["a", "b"])
def named(item: str, numbers: list[int]) -> str:
    return f"{item}{sum(numbers)}"


@fairlead.step(gate="result == 12")
def total(doubled: list[tuple[int, int]], named: list[str]) -> int:
    assert named == ["a6", "b6"]
    return sum(each[1] for each in doubled)


@fairlead.step
def written(total: int) -> Path:
    place = Path(tempfile.mkdtemp(), "report.txt")
    place.write_text(f"total {total}")
    return place


@fairlead.step
def read(written: Path) -> str:
    return written.read_text()


@pytest.mark.slow
def test_each_function_gets_what_those_that_it_names_returned(tmp_path: Path) -> None:
    pipeline = fairlead.Pipeline("p", [numbers, doubled, named, total, written, read])
    here = Path(__file__).parents[2]
    steps = Place(tmp_path).run_spec(to_json(pipeline.spec), "r1", cwd=Path(__file__).parent, PYTHONPATH=str(here))
    assert {task.phase.value for tasks in steps.values() for task in tasks} == {"Succeeded"}, steps
    (task,) = steps["read"]
    assert task.values == {"result": "total 12"}


def test_a_step_can_be_called_as_before() -> None:
    assert doubled(4) == (4, 8)


@pytest.mark.parametrize("value", [0.5, None, [1, "a"], {"a": 1}, {1: "a"}, (1, 2), {1, 2}, b"x"])
def test_a_value_comes_back_as_it_was(tmp_path: Path, value: Any) -> None:
    dump(value, tmp_path / "result")
    found = load(tmp_path / "result")
    assert (found, type(found)) == (value, type(value))


def test_what_conditions_can_read_is_json_and_nothing_else_is(tmp_path: Path) -> None:
    dump({"accuracy": 0.9}, tmp_path / "plain")
    assert json.loads((tmp_path / "plain").read_text()) == {"accuracy": 0.9}
    dump(math.nan, tmp_path / "nan")
    assert math.isnan(load(tmp_path / "nan"))


def test_what_cannot_be_a_step_is_said() -> None:
    @fairlead.step
    def inner() -> None:
        pass

    def plain() -> None:
        pass

    wrong: list[tuple[list[Any], str]] = [
        ([inner], "is not at the top level of a file"),
        ([numbers, plain], "mark it with @fairlead.step"),
        ([total], "doubled is not a step of the pipeline"),
        ([], "there is no step"),
        ([numbers, numbers], "two functions have one name"),
    ]
    for steps, said in wrong:
        with pytest.raises(InvalidSpec) as caught:
            fairlead.Pipeline("p", steps)
        assert said in str(caught.value)


def test_a_step_cannot_submit_its_own_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_STEP", "numbers")
    with pytest.raises(Conflict) as caught:
        fairlead.Pipeline("p", [numbers]).run()
    assert "__main__" in str(caught.value)
