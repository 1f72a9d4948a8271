"""What a user sees when things go wrong, through the real command."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.cluster.local import limits
from fairlead.cluster.local.cluster import LocalCluster
from tests.cli.conftest import Call

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
    assert "4096 CPU requested on one node, the largest node has" in ended.stderr
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


# Saves three steps, then takes 90 MB, which is more than it has only the first time.
EATS = """
import fairlead
state = {"step": 0}
def save(directory): (directory / "step").write_text(str(state["step"]))
def load(directory): state["step"] = int((directory / "step").read_text())
with fairlead.run() as run:
    start = run.resume(load=load)
    if start:
        print("went on after step", start)
    for step in range(start, 3):
        state["step"] = step + 1
        run.checkpoint(step + 1, save=save, force=True)
    data = bytearray(b"x") * (90 << 20)
"""
SLOW = """
import time
import fairlead
with fairlead.run() as run:
    start = run.resume(load=lambda directory: None)
    print("began after step", start, flush=True)
    for step in range(start, 10_000 if run.attempt == 0 else start + 5):
        time.sleep(0.02)
        run.checkpoint(step + 1, save=lambda directory: (directory / "x").touch())
"""


@pytest.mark.slow
@pytest.mark.skipif(limits.enforcement().parent is None, reason="memory limits are not enforced for this user")
def test_out_of_memory_is_named_with_the_limit_and_the_remedy(fairlead: Fairlead, tmp_path: Path) -> None:
    (tmp_path / "oom.py").write_text(EATS)
    (tmp_path / "oom.yaml").write_text("name: oom\nrun: python oom.py\nresources: {memory: 64Mi}\n")
    ended = fairlead("run", "oom.yaml")
    assert ended.returncode == 1
    assert "ran out of memory: the pod needed more than its limit of 64 MiB" in ended.stderr
    # To the letter, as the remedy says.
    followed = fairlead(*remedies(ended.stderr)[-1])
    assert followed.returncode == 0, followed.stderr
    assert "resources.memory: 64Mi -> 128Mi" in followed.stderr
    attached = fairlead("attach", "oom")
    assert attached.returncode == 0, attached.stderr
    assert "went on after step" in attached.stdout


def test_a_run_whose_time_was_over_goes_on_with_more_of_it_from_its_checkpoint(
    fairlead: Fairlead, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    ended = fairlead("run", "--set", "max_duration=2s", "--", "python", "slow.py")
    assert ended.returncode == 1
    assert "`fairlead resume slow` continues it from its newest checkpoint, for another 2s" in ended.stderr
    assert "with `--set max_duration=4s` for longer" in ended.stderr
    assert fairlead("resume", "slow", "--set", "max_duration=4s").returncode == 0
    attached = fairlead("attach", "slow")
    assert attached.returncode == 0, attached.stderr
    began = [int(line.split()[-1]) for line in attached.stdout.splitlines() if "began after step" in line]
    assert began[0] == 0 < began[1]


def remedies(told: str) -> list[list[str]]:
    """The commands that are advised to change a run, as arguments."""
    return [shlex.split(each) for each in re.findall(r"`fairlead (resume [^`]*--set [^`]*)`", told)]


def test_an_unknown_run_and_an_unknown_command_are_told_near_names(fairlead: Fairlead) -> None:
    assert fairlead("status", "nothing").returncode == 5
    ended = fairlead("stauts")
    assert ended.returncode == 2
    assert "Did you mean `status`?" in ended.stderr


def test_every_command_explains_itself(call: Call) -> None:
    from fairlead.cli.main import COMMANDS

    for command in COMMANDS:
        said = call(command, "--help")
        assert said.code == 0, said.err
        assert f"Usage: fairlead {command}" in said.out


def test_plan_changes_nothing(fairlead: Fairlead, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("name: planned\nrun: echo hi\n")
    ended = fairlead("plan", "t.yaml")
    assert ended.returncode == 0
    assert "planned: it would start at once" in ended.stdout
    assert "No runs yet" in fairlead("status").stdout
