from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.runtime.leftovers import kill_leftovers
from tests.launch.pods import PodDir


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[PodDir]:
    """A pod whose processes are gone when the test is over, however it ended."""
    directory = PodDir(tmp_path / "pod")
    yield directory
    directory.clean_up()
    if (directory.path / "pod.json").exists():
        kill_leftovers(directory.uid)
