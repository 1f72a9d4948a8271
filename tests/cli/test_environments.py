"""`environment` of runs through the commands: the run has the packages, and what it got is shown and compared."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.waiting import until
from tests.wheels import make_wheel

SCRIPT = "import sys, fl_one; print('fl_one', fl_one.VERSION, sys.prefix)\n"


@pytest.fixture
def work(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UV_CACHE_DIR", str(desk / "cache"))
    work = desk / "work"
    for version in ("1.0", "2.0"):
        make_wheel(work / "wheels", "fl_one", version)
    (work / "a.py").write_text(SCRIPT)
    (work / "requirements.txt").write_text("--no-index\n--find-links wheels\nfl_one<2\n")
    (work / "a.yaml").write_text("run: python a.py\nenvironment: auto\n")
    monkeypatch.chdir(work)
    return work


@pytest.mark.slow
def test_a_run_has_the_packages_of_its_submission_and_shows_and_compares_them(call: Call, work: Path) -> None:
    first = call("run", "a.yaml", "--name", "one")
    assert first.code == 0, first.err
    assert first.out.startswith(f"fl_one 1.0 {work.parent / 'home' / 'packages' / 'built'}")
    assert "* Preparing: its environment is being prepared" in first.err
    again = call("run", "a.yaml", "--name", "two")
    assert (again.code, again.out) == (0, first.out)
    assert "Preparing" not in again.err, "the second one is complete already"
    (work / "requirements.txt").write_text("--no-index\n--find-links wheels\nfl_one\n")
    assert call("run", "a.yaml", "--name", "three").out.startswith("fl_one 2.0")
    lock = call("show", "three", "--environment").out
    (work / "pylock.toml").write_text(lock)
    assert call("run", "a.yaml", "--name", "four").out.startswith("fl_one 2.0"), "the lock is a file of its own"
    until(lambda: "fl-one: 1.0 -> 2.0" in call("compare", "one", "three").out, "packages of the newer one")
    assert json.loads(call("show", "one", "--environment", "--json").out)["lock"] != lock
    assert call("prune", "--environments", "--yes").err == "2 environments of runs removed.\n"
    refused = call("show", "none", "--environment")
    assert refused.code != 0


@pytest.mark.slow
def test_a_run_can_be_stopped_while_its_environment_is_made_and_others_go_on(call: Call, work: Path) -> None:
    started, program = work / "started", work / "bin" / "uv"
    program.parent.mkdir()
    real = Path(sys.executable).parent / "uv"
    program.write_text(f'#!/bin/sh\n[ "$1" = python ] && exec {real} "$@"\necho $$ > {started}\nexec sleep 600\n')
    program.chmod(0o755)
    os.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    assert call("run", "-d", "a.yaml", "--name", "slow").code == 0
    until(started.exists, "uv")
    assert "its environment is being prepared" in call("status", "slow").out
    assert call("run", "--", "true").code == 0
    assert call("stop", "slow").code == 0
    until(lambda: not Path(f"/proc/{started.read_text().strip()}").exists(), "the end of uv")
    assert "Stopped" in call("status", "slow").out


def test_what_cannot_work_is_refused_at_submission(call: Call, work: Path) -> None:
    (work / "requirements.txt").unlink()
    assert "has none of requirements.txt" in call("run", "a.yaml").err
    (work / "requirements.txt").write_text("fl_one\n")
    (work / "a.yaml").write_text("run: /usr/bin/python3 a.py\nenvironment: auto\n")
    assert "/usr/bin/python3 is not the Python of `environment`" in call("run", "a.yaml").err
    (work / "a.yaml").write_text("run: python b.py\nenvironment: auto\n")
    assert "'b.py'" in call("run", "a.yaml").err


@pytest.mark.slow
def test_a_package_that_is_not_there_fails_the_run_with_its_name(call: Call, work: Path) -> None:
    (work / "requirements.txt").write_text("--no-index\n--find-links wheels\nfl_on\n")
    failed = call("run", "a.yaml")
    assert failed.code != 0
    assert "a is Failed: no index has a package fl-on" in failed.err
    (work / "requirements.txt").write_text("--no-index\n--find-links wheels\nfl_one\n")
    assert call("resume", "a").code == 0
    assert call("attach", "a").out.startswith("fl_one 2.0")
