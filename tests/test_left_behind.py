"""A process that outlives its test is found by its environment, told with its test, and killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.disks import NEEDS_ROOT, WHY, small_disk
from tests.left_behind import end_survivors, survivors, unmount_below
from tests.processes import Child


def test_a_process_that_outlives_its_test_is_told_and_killed() -> None:
    marker = f"FAIRLEAD_TEST_OF_SURVIVORS={os.getpid()}"
    name, _, value = marker.partition("=")
    argv = [sys.executable, "-c", "print('up', flush=True); input()"]
    environ = {name: value, "PYTEST_CURRENT_TEST": "tests/test_x.py::test_y (call)"}
    with Child(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        (told,) = end_survivors(marker, patience_s=0.0)
        assert told.pid == process.pid
        assert str(told).startswith(f"process {process.pid} of tests/test_x.py::test_y (call): {sys.executable} -c")
        assert process.wait(60) == -9
    assert not survivors(marker)


@pytest.mark.skipif(NEEDS_ROOT, reason=WHY)
def test_what_is_mounted_below_a_directory_is_taken_away_and_nothing_else(tmp_path: Path) -> None:
    below, beside = tmp_path / "a" / "disk", tmp_path / "ab"
    below.parent.mkdir()
    with small_disk(below, 1 << 16) as mounted, small_disk(beside, 1 << 16):
        if not mounted:
            pytest.skip(WHY)
        (below / "file").touch()
        assert unmount_below(tmp_path / "a") == [str(below)]
        assert not (below / "file").exists()
        assert unmount_below(tmp_path / "a") == []
        assert beside.is_mount()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(below)], check=True, timeout=60)
