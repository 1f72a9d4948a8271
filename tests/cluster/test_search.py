"""Ask and tell: a search whose trials the caller evaluates, kept in a file that processes share."""

import math
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.errors import ClusterError, Conflict, InvalidArgument, InvalidSpec, NotFound
from fairlead.policy.search.trials import TrialState

SPACE = {"x": "0.0..1.0", "depth": "1..4"}


def search(file: Path | None = None, **keys: Any) -> fairlead.Search:
    return fairlead.Search(**{"parameters": SPACE, "objective": "loss", **keys}, file=file)


def loss(values: Any) -> float:
    return (float(values["x"]) - 0.3) ** 2 + float(values["depth"])


def test_a_search_comes_nearer_to_the_best_than_its_random_beginning() -> None:
    study = search()
    for _ in range(40):
        trial = study.ask()
        study.tell(trial, loss(trial.values))
    first = min(trial.value or math.inf for trial in study.trials()[:10])
    assert (study.best().value or math.inf) < first
    assert study.best().values["depth"] == 1


def test_a_search_chooses_as_a_sweep_would_and_continues_so_from_its_file(tmp_path: Path) -> None:
    whole, file = search(), tmp_path / "search.jsonl"
    for number in range(24):
        parts = search(file)  # as each in a process of its own
        trial, part = whole.ask(), parts.ask()
        assert (trial.number, trial.values) == (part.number, part.values) == (number, trial.values)
        whole.tell(trial, loss(trial.values))
        parts.tell(number, loss(part.values))
    assert search(file).trials() == whole.trials()


def test_of_a_grid_each_combination_is_asked_for_once() -> None:
    study = search(parameters={"a": "1 | 2", "b": "x | y"}, sampler="grid")
    combinations = {tuple(study.ask().values.items()) for _ in range(4)}
    assert len(combinations) == 4
    with pytest.raises(NotFound, match="All 4 trials of this search have been asked for"):
        study.ask()


def test_several_objectives_have_a_front() -> None:
    study = search(objective=None, objectives=["loss", "accuracy:maximize"])
    for scores in ([1.0, 0.5], [2.0, 0.9], [2.0, 0.4]):
        study.tell(study.ask(), scores)
    assert [trial.number for trial in study.front()] == [0, 1]
    with pytest.raises(NotFound, match="ask for the front"):
        study.best()


def test_a_failed_trial_is_no_result() -> None:
    study = search()
    study.tell(study.ask(), None)
    assert study.trials()[0].state is TrialState.FAILED
    with pytest.raises(NotFound, match="No trial has a value yet"):
        study.best()


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.5", [0.1, 0.2], [], object()])
def test_a_value_that_is_no_finite_number_is_refused_and_can_be_told_again(value: Any) -> None:
    study = search()
    trial = study.ask()
    with pytest.raises(InvalidArgument, match="None for a trial that failed"):
        study.tell(trial, value)
    study.tell(trial, 0.5)
    with pytest.raises(InvalidArgument, match="trial: 0 has succeeded already"):
        study.tell(trial, 0.5)
    with pytest.raises(InvalidArgument, match="trial: 7 was not asked for; there are 1, from 0"):
        study.tell(7, 0.5)


def test_what_a_sweep_would_refuse_is_refused_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="objective: missing"):
        fairlead.Search(parameters=SPACE)
    with pytest.raises(InvalidSpec, match="sampler"):
        search(sampler="annealing")
    with pytest.raises(InvalidSpec, match="parameters"):
        search(parameters={"x": "1...5"})
    with pytest.raises(TypeError, match="trials"):
        search(trials=4)


def test_the_file_of_another_search_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "search.jsonl"
    search(file).ask()
    before = file.read_bytes()
    with pytest.raises(Conflict, match="has another search"):
        search(file, seed=1)
    assert file.read_bytes() == before
    notes = tmp_path / "notes.txt"
    for text in ("my notes", "my notes\n", '{"a": 1}\n', "\x00" * (1 << 21)):
        notes.write_text(text)
        with pytest.raises((ClusterError, Conflict)):
            search(notes)
        assert notes.read_text() == text
    with pytest.raises(ClusterError, match="cannot be kept"):
        search(tmp_path / "none" / "search.jsonl")


@pytest.mark.parametrize(
    "damage",
    ['{"ask": 5, "values": {}}', '{"tell": 9, "value": 1}', '{"tell": 0}', "[]", '{"ask": 1, "values": {"x": []}}'],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "search.jsonl"
    search(file).ask()
    with file.open("a") as lines:
        lines.write(damage + "\n")
    with pytest.raises(ClusterError, match="is damaged"):
        search(file)


def test_half_a_line_of_a_killed_process_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "search.jsonl"
    study = search(file)
    study.tell(study.ask(), 1.0)
    with file.open("a") as lines:
        lines.write('{"ask": 1, "val')
    again = search(file)
    assert again.ask().number == 1
    assert [trial.number for trial in search(file).trials()] == [0, 1]


def _evaluate(file: Path) -> list[int]:
    study, numbers = search(file), []
    for _ in range(8):
        trial = study.ask()
        study.tell(trial, loss(trial.values))
        numbers.append(trial.number)
    return numbers


def test_processes_that_share_a_file_never_get_the_same_trial(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as workers:
        numbers = workers.map(_evaluate, [tmp_path / "search.jsonl"] * 3)
    assert sorted(number for each in numbers for number in each) == list(range(24))
    assert all(trial.state is TrialState.SUCCEEDED for trial in search(tmp_path / "search.jsonl").trials())
