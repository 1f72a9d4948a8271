"""What a user sees when things go wrong, through the real command."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.cluster.local import limits
from fairlead.cluster.local.cluster import LocalCluster

Fairlead = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def fairlead(tmp_path: Path) -> Iterator[Fairlead]:
    home = tmp_path / "home"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "FAIRLEAD_HOME": str(home), "PATH": path}

    def call(*arguments: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-m", "fairlead.cli.main", *arguments]
        return subprocess.run(
            argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
        )  # fmt: skip

    yield call
    cluster = LocalCluster.open(home)
    pid = cluster.supervisor_pid()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
    cluster.close()


def test_a_wrong_key_names_file_line_and_the_nearest_key(fairlead: Fairlead, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("name: wrong\nrun: python t.py\nnodes: two\nresources:\n  gpus: 1\n")
    ended = fairlead("run", "wrong.yaml")
    assert ended.returncode == 2
    assert 'wrong.yaml:3: nodes: "two" is not a whole number' in ended.stderr
    assert "wrong.yaml:5: resources.gpus: unknown key; did you mean `gpu`?" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_can_never_fit_is_refused_with_the_numbers(fairlead: Fairlead, tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_text("name: big\nrun: sleep 1\nresources: {cpu: 4096}\n")
    ended = fairlead("run", "big.yaml")
    assert ended.returncode == 4
    assert "4096 CPU asked for on one node, the most on any is" in ended.stderr
    assert "Ask for less (`resources.cpu`)" in ended.stderr


def test_a_program_error_shows_its_traceback_and_the_next_command(fairlead: Fairlead, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise ValueError('batch 7 has 3 channels')\n")
    ended = fairlead("run", "--", "python", "bad.py")
    assert ended.returncode == 1
    assert "failed with exit code 1: ValueError: batch 7 has 3 channels; `retry` allows no restart" in ended.stderr
    assert "fairlead logs bad" in ended.stderr
    listed = fairlead("status")
    assert "bad" in listed.stdout
    assert "Failed" in listed.stdout


@pytest.mark.skipif(limits.enforcement().parent is None, reason="memory limits are not enforced for this user")
def test_out_of_memory_is_named_with_the_limit_and_the_remedy(fairlead: Fairlead, tmp_path: Path) -> None:
    (tmp_path / "oom.py").write_text("data = []\nwhile True: data.append(bytearray(1 << 20))\n")
    (tmp_path / "oom.yaml").write_text("name: oom\nrun: python oom.py\nresources: {memory: 64Mi}\n")
    ended = fairlead("run", "oom.yaml")
    assert ended.returncode == 1
    assert "ran out of memory: the pod needed more than its limit of 64 MiB" in ended.stderr
    assert "Raise `resources.memory`" in ended.stderr


def test_an_unknown_run_and_an_unknown_command_are_told_near_names(fairlead: Fairlead) -> None:
    assert fairlead("status", "nothing").returncode == 5
    ended = fairlead("stauts")
    assert ended.returncode == 2
    assert "Did you mean `status`?" in ended.stderr


def test_every_command_explains_itself(fairlead: Fairlead) -> None:
    from fairlead.cli.main import COMMANDS

    for command in COMMANDS:
        ended = fairlead(command, "--help")
        assert ended.returncode == 0, ended.stderr
        assert "Usage: fairlead" in ended.stdout


def test_plan_changes_nothing(fairlead: Fairlead, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("name: planned\nrun: echo hi\n")
    ended = fairlead("plan", "t.yaml")
    assert ended.returncode == 1
    assert "planned: it would start at once" in ended.stdout
    assert "No runs yet" in fairlead("status").stdout
