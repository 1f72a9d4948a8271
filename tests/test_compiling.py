"""What workers would all compile is compiled once before they start."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import compiling
from tests.compiling import compile_new, is_compiled, parts


def config(directory: Path) -> pytest.Config:
    stand_in: Any = SimpleNamespace(
        args=[str(directory)], rootpath=directory, invocation_params=SimpleNamespace(dir=directory)
    )
    return cast(pytest.Config, stand_in)


def made(directory: Path, count: int) -> list[Path]:
    files = [directory / f"test_{number}.py" for number in range(count)]
    for file in files:
        file.write_text(f"def test_it():\n    assert {file.stem!r}\n")
    return files


@pytest.mark.slow
def test_many_new_files_are_compiled_and_few_are_left_to_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = made(tmp_path, 3)
    compile_new(config(tmp_path))
    assert not any(map(is_compiled, files))
    monkeypatch.setattr(compiling, "FEW", 2)
    compile_new(config(tmp_path))
    assert all(map(is_compiled, files))


@pytest.mark.slow
def test_a_file_that_was_changed_is_new_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = made(tmp_path, 1)
    monkeypatch.setattr(compiling, "FEW", 0)
    compile_new(config(tmp_path))
    assert is_compiled(file)
    later = file.stat().st_mtime + 100
    os.utime(file, (later, later))
    assert not is_compiled(file)


def test_each_processor_has_neighbours_of_about_the_same_size(tmp_path: Path) -> None:
    files = made(tmp_path, 6)
    assert parts(files, 2) == [files[:3], files[3:]]
    assert parts(files[:1], 4) == [files[:1]]
    files[0].write_text("#" * 1000)
    assert parts(files, 2) == [files[:1], files[1:]]
