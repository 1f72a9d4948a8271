"""A directory to follow the guide in."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.home import end_everything


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The reader's working directory, with a state directory of its own; whatever was started is ended."""
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "work").mkdir()
    yield tmp_path / "work"
    end_everything(tmp_path / "home")
