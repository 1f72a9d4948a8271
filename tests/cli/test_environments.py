"""`environment` of runs through the commands: the run has the packages, and what it got is shown and compared."""

import json
import os
import sys
import zipfile
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.gpu_machine import play_gpus
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


SERVER = """\
import fl_one, http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(fl_one.VERSION.encode())
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


@pytest.mark.slow
def test_replicas_have_the_packages_of_their_endpoint(call: Call, work: Path) -> None:
    (work / "server.py").write_text(SERVER)
    (work / "chat.yaml").write_text("kind: Serving\nname: chat\nrun: python server.py\nenvironment: requirements.txt\n")
    started = call("run", "-d", "chat.yaml")
    assert started.code == 0, started.err
    until(
        lambda: json.loads(call("status", "chat", "--json").out)["phase"] == "Running",
        "a replica whose program has them",
    )
    assert call("delete", "chat", "--yes").code == 0


@pytest.mark.slow
def test_a_step_has_the_packages_of_its_pipeline_or_its_own(call: Call, work: Path) -> None:
    (work / "two.txt").write_text("--no-index\n--find-links wheels\nfl_one>=2\n")
    (work / "p.yaml").write_text(
        "kind: Pipeline\nname: p\nenvironment: requirements.txt\nsteps:\n"
        "  a: {run: 'python a.py > a.txt'}\n"
        "  b: {training: {run: 'python a.py > b.txt', snapshot: false}}\n"
        "  c: {training: {run: 'python a.py > c.txt', snapshot: false, environment: two.txt}}\n"
    )
    ended = call("run", "p.yaml")
    assert ended.code == 0, ended.err
    versions = {name: (work / f"{name}.txt").read_text().split()[1] for name in ("a", "b", "c")}
    assert versions == {"a": "1.0", "b": "1.0", "c": "2.0"}


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


MISMATCH = "torch 2.11.0 brings CUDA 13.0, which needs driver 580.65.06 or newer; this machine has 535.54.03"
NEAREST = "Take torch built for CUDA 12.8, from the index https://download.pytorch.org/whl/cu128"


def with_torch(work: Path, version: str = "2.11.0") -> None:
    """Let the run ask for a GPU, and for a torch that brings CUDA 13.0."""
    make_wheel(work / "wheels", "nvidia_cuda_runtime", "13.0.96")
    make_wheel(work / "wheels", "torch", version, needs=["nvidia_cuda_runtime"])
    (work / "requirements.txt").write_text("--no-index\n--find-links wheels\ntorch\n")
    (work / "a.yaml").write_text("run: python -c 'print(1)'\nenvironment: auto\nresources: {gpu: 1}\n")


def test_plan_says_before_anything_is_installed_what_cannot_work_with_the_driver(
    call: Call, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_torch(work)
    play_gpus(monkeypatch, work.parent / "python", "535.54.03", (8, 0))
    planned = call("plan", "a.yaml")
    assert planned.code == 1, planned.err
    assert f"a: its environment cannot work here: {MISMATCH}. {NEAREST}" in planned.out
    assert planned.out.endswith("a: it would fail before anything is installed\n")
    answer = json.loads(call("plan", "a.yaml", "--json").out)["gpu_support"]
    assert (answer["support"], answer["message"]) == ("refused", MISMATCH)
    assert not (work.parent / "home" / "packages" / "built").exists()
    play_gpus(monkeypatch, work.parent / "python", "580.95.05", (8, 0))
    planned = call("plan", "a.yaml")
    assert (planned.code, "a: torch 2.11.0 brings CUDA 13.0, which driver 580.95.05 runs" in planned.out) == (0, True)
    play_gpus(monkeypatch, work.parent / "python", "no version", (8, 0))
    unknown = "a: unknown whether its environment works with the GPUs here: torch 2.11.0 brings CUDA 13.0, which needs"
    planned = call("plan", "a.yaml")
    assert (planned.code, unknown in planned.out) == (0, True), planned.out
    (work / "a.yaml").write_text("run: python -c 'print(1)'\nenvironment: auto\n")
    assert "CUDA" not in call("plan", "a.yaml").out, "without GPUs it needs no driver"


def test_plan_says_that_packages_cannot_be_resolved_and_starts_nothing_where_it_may_not(
    call: Call, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_torch(work)
    (work / "requirements.txt").write_text("--no-index\n--find-links wheels\ntorchh\n")
    play_gpus(monkeypatch, work.parent / "python", "535.54.03", (8, 0))
    planned = call("plan", "a.yaml")
    assert "its packages cannot be resolved: no index has a package torchh" in planned.out
    assert planned.code == 0
    assert "resolved" not in call("plan", "a.yaml", "--no-exec").out


def test_doctor_says_whether_installed_packages_work_with_the_driver(
    call: Call, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = work.parent / "packages"
    for name, version in (("torch", "2.11.0"), ("nvidia_cuda_runtime", "13.0.96")):
        with zipfile.ZipFile(make_wheel(work / "wheels", name, version)) as wheel:
            wheel.extractall(packages)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    play_gpus(monkeypatch, work.parent / "python", "535.54.03", (8, 0))
    findings = {finding["what"]: finding for finding in json.loads(call("doctor", "--json").out)}
    assert findings["machine"]["says"].endswith("A100-SXM4-80GB, driver 535.54.03")
    assert findings["torch"]["says"] == "2.11.0"
    assert (findings["CUDA"]["ok"], findings["CUDA"]["says"]) == (False, MISMATCH)
    assert findings["CUDA"]["remedy"].startswith(NEAREST)


@pytest.mark.slow
def test_a_run_on_gpus_fails_before_its_packages_are_installed(
    call: Call, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_torch(work)
    play_gpus(monkeypatch, work.parent / "python", "535.54.03", (8, 0))
    failed = call("run", "a.yaml")
    assert failed.code != 0
    assert f"a is Failed: {MISMATCH}" in failed.err
    assert NEAREST in failed.err
    assert list((work.parent / "home" / "packages" / "built").glob("*/complete")) == []
