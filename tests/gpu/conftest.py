"""A user of a machine with a GPU, at a command line."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.cluster.local.machine import gpus
from tests.home import end_everything

ROOT = Path(__file__).parents[2]
Call = Callable[..., str]


@pytest.fixture
def call(tmp_path: Path) -> Iterator[Call]:
    """One command as a process, with a state directory of its own; whatever was started is ended."""
    if not gpus():
        pytest.skip("no driver of NVIDIA's on this machine")
    env = {
        **os.environ,
        "FAIRLEAD_HOME": str(tmp_path / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))),
    }

    def call(*arguments: str, code: int = 0) -> str:
        argv = [sys.executable, "-m", "fairlead.cli.main", *arguments]
        ended = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        assert ended.returncode == code, f"{arguments} ended with {ended.returncode}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    yield call
    end_everything(tmp_path / "home")
