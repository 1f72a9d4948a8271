"""A whole run: what it makes of processes that tests leave behind and of a budget, in runs of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMPATIENT = "from tests import left_behind\n\nleft_behind.PATIENCE_S = 0.2\n"
LEAVES = """
import subprocess, sys

def test_leaves():
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    left.returncode = 0  # or Python would warn
    assert {passes}
"""


@pytest.mark.slow
@pytest.mark.parametrize("passes", [True, False])
def test_a_test_that_leaves_a_process_fails_the_run_and_is_run_again(tmp_path: Path, passes: bool) -> None:
    (tmp_path / "conftest.py").write_text(IMPATIENT)
    (tmp_path / "test_it.py").write_text(LEAVES.format(passes=passes))
    argv = [sys.executable, "-m", "pytest", "-n", "1", "-p", "tests.whole_run", "-c", "/dev/null"]
    argv += [f"--rootdir={tmp_path}", str(tmp_path)]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "left behind, and killed now" in ended.stdout
    assert "test_it.py::test_leaves (call)" in ended.stdout
    failed = json.loads((tmp_path / ".pytest_cache/v/cache/lastfailed").read_text())
    assert failed == {"test_it.py::test_leaves": True}


@pytest.mark.slow
def test_no_further_file_begins_once_the_budget_is_used_up_and_those_left_are_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tests = "".join(f"def test_{number}():\n    time.sleep(1)\n" for number in range(2))
        (tmp_path / f"test_{name}.py").write_text(f"import time\n{tests}")
    argv = [sys.executable, "-m", "pytest", "-n", "1", "--dist", "loadfile", "-p", "tests.whole_run", "-c", "/dev/null"]
    argv += [f"--rootdir={tmp_path}", "--budget", "0.005", str(tmp_path)]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 passed" in ended.stdout
    assert "not begun within the budget" in ended.stdout
    assert "\n2 of test_b.py" in ended.stdout
