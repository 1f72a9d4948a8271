"""``fairlead doctor`` tells where Python keeps nothing of what it compiles, and what to do about it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def findings(place: Path, **environ: str) -> dict[str, dict[str, Any]]:
    """What doctor finds with compiled modules in a place."""
    env = {
        **os.environ,
        "FAIRLEAD_HOME": str(place / "home"),
        "PYTHONPYCACHEPREFIX": str(place / "compiled"),
        **environ,
    }
    argv = [sys.executable, "-m", "fairlead.cli.start", "doctor", "--json"]
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    return {each["what"]: each for each in json.loads(ended.stdout)}


@pytest.mark.slow
def test_doctor_tells_of_modules_that_each_command_compiles_and_is_content_once_they_are_kept(tmp_path: Path) -> None:
    found = findings(tmp_path, PYTHONDONTWRITEBYTECODE="1")["compiled"]
    assert found["ok"]
    assert "PYTHONDONTWRITEBYTECODE is set" in found["says"]
    command = found["remedy"].split()
    assert command[1:4] == ["-m", "compileall", "-q"]
    assert (Path(command[4]) / "cli" / "start.py").is_file()
    assert "compiled" not in findings(tmp_path)
    assert "compiled" not in findings(tmp_path, PYTHONDONTWRITEBYTECODE="1")
