"""Fixtures of the in-pod library's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def bystander(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory of every test here, with a file that no code under test may ever touch.

    The library removes directory trees. A wrong path in it once meant the current directory.
    """
    directory = tmp_path_factory.mktemp("current")
    (directory / "bystander.txt").write_text("unharmed")
    monkeypatch.chdir(directory)
    yield directory
    assert (directory / "bystander.txt").read_text() == "unharmed"
