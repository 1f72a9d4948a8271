"""A framework's own files, brought together from the parts of all ranks."""

import os
from pathlib import Path

import pytest

import fairlead
from fairlead.runtime.frameworks.state import gather, resumed_files


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_parts_of_all_ranks_come_together_without_a_copy(tmp_path: Path) -> None:
    write(tmp_path / "step/rank-00000/files/checkpoint-4/model", "weights")
    write(tmp_path / "step/rank-00000/random.pickle", "not the framework's")
    write(tmp_path / "step/rank-00001/files/checkpoint-4/rng_state_1", "one")
    gather(tmp_path / "step/rank-00001/files", tmp_path / "own")
    found = {str(path.relative_to(tmp_path / "own")) for path in (tmp_path / "own").rglob("*") if path.is_file()}
    assert found == {"checkpoint-4/model", "checkpoint-4/rng_state_1"}
    assert os.stat(tmp_path / "own/checkpoint-4/model").st_nlink == 2


def test_what_another_checkpoint_left_is_gone(tmp_path: Path) -> None:
    write(tmp_path / "own/checkpoint-8/model", "damaged")
    write(tmp_path / "step/rank-00000/files/checkpoint-4/model", "weights")
    gather(tmp_path / "step/rank-00000/files", tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["checkpoint-4"]
    assert (tmp_path / "step/rank-00000/files/checkpoint-4/model").read_text() == "weights"


def test_a_resume_finds_what_was_saved_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_RUN", "test")
    monkeypatch.setenv("FAIRLEAD_RUN_DIR", str(tmp_path / "run"))
    write(tmp_path / "run/resumed-0/checkpoint-1/model", "of an attempt that was killed")
    found: list[list[str]] = []
    for _ in range(2):
        with fairlead.run(checkpoint_to=tmp_path / "to") as run, resumed_files(run) as directory:
            found.append([path.name for path in directory.iterdir()])
            run.checkpoint(3, save=lambda place: write(place / "checkpoint-3/model", "weights"), force=True)
    assert found == [[], ["checkpoint-3"]]
    assert list((tmp_path / "run").iterdir()) == []
