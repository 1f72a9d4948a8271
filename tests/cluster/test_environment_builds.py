"""Environments made by the real uv from wheels of the test's own: locks, failures, kills, removals."""

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.local.home import Home
from fairlead.cluster.local.packages.builds import EnvironmentBuilds
from fairlead.cluster.local.packages.place import complete, place_of
from fairlead.cluster.local.packages.pruning import remove, unneeded
from fairlead.cluster.local.packages.requests import keep_request
from fairlead.runtime.podfiles import write_json
from fairlead.specs.environment import PythonEnvironment
from fairlead.specs.resources import GpuRequest
from fairlead.specs.training import Training
from fairlead.state.preparations import Preparation
from fairlead.state.snapshot import Intent, Phase, Workload
from tests.builders import status, training
from tests.gpu_machine import play_gpus
from tests.waiting import until
from tests.wheels import make_wheel

# It prints to the file named by STARTED, and waits for a signal, as uv does while it downloads.
HANGING = '#!/bin/sh\n[ "$1" = python ] && exec {uv} "$@"\necho $$ >> {started}\nexec sleep 600\n'


@pytest.fixture
def home(tmp_path: Path) -> Home:
    make_wheel(tmp_path / "wheels", "fl_one", "1.0")
    make_wheel(tmp_path / "wheels", "fl_two", "1.0", needs=["fl_one>=1.0"])
    return Home.open(tmp_path / "home")


@pytest.fixture
def builds(home: Home) -> Iterator[EnvironmentBuilds]:
    builds = EnvironmentBuilds(home)
    yield builds
    builds.close()


def environ(home: Home) -> dict[str, str]:
    beside = home.path.parent
    return {
        "PATH": f"{beside / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(beside),
        "UV_CACHE_DIR": str(beside / "cache"),
    }


def submitted(home: Home, uid: str, *packages: str) -> Workload:
    """A run whose request is kept, as its submission does."""
    own = ("--no-index", f"--find-links {home.path.parent / 'wheels'}")
    spec: Training = training(uid, workdir=str(home.path), environment=PythonEnvironment(packages=(*own, *packages)))
    home.run(uid).mkdir(parents=True, exist_ok=True)
    write_json(home.environment(uid), environ(home))
    keep_request(spec, home, uid, environ(home))
    return Workload(uid=uid, spec=spec, intent=Intent.RUN, version=1, created_at=0.0, status=status(Phase.PENDING))


def digest_of(home: Home, uid: str) -> str:
    (lock,) = (path for path in home.packages_of(uid).glob("*.toml"))
    return lock.stem


def settled(builds: EnvironmentBuilds, run: Workload) -> Preparation | None:
    """Return the rest of the work for the run once it is prepared, or cannot be."""

    def left() -> tuple[Preparation | None] | None:
        (seen,) = builds.prepared([run])
        is_over = seen.preparation is None or seen.preparation.has_failed
        return (seen.preparation,) if is_over else None

    (preparation,) = until(left, "a complete environment, or a failure")
    assert preparation is None or isinstance(preparation, Preparation)
    return preparation


def imported(home: Home, digest: str, module: str) -> str:
    directory = complete(home, digest)
    assert directory is not None
    code = f"import {module}; print({module}.VERSION)"
    return subprocess.check_output([directory / "bin" / "python", "-I", "-c", code], text=True).strip()


def test_packages_are_locked_with_hashes_and_installed_once(home: Home, builds: EnvironmentBuilds) -> None:
    one = submitted(home, "one", "fl_two")
    assert settled(builds, one) is None
    digest = digest_of(home, "one")
    assert imported(home, digest, "fl_two") == "1.0"
    packages = tomllib.loads((home.packages_of("one") / f"{digest}.toml").read_text())["packages"]
    assert {package["name"]: len(package["wheels"][0]["hashes"]["sha256"]) for package in packages} == {
        "fl-one": 64,
        "fl-two": 64,
    }
    make_wheel(home.path.parent / "wheels", "fl_one", "2.0")
    (seen,) = builds.prepared([submitted(home, "two", "fl_two")])
    assert seen.preparation is None, "the same request has the lock that it had"
    installed = complete(home, digest)
    assert installed is not None
    (module,) = installed.glob("lib/python3*/site-packages/fl_one.py")
    assert module.stat().st_nlink > 1, "its files are those of uv's cache"


@pytest.mark.parametrize("change", ["installs", "removes"])
def test_an_environment_that_a_program_changed_is_made_again_for_the_next_run(
    home: Home, builds: EnvironmentBuilds, change: str
) -> None:
    first = submitted(home, "one", "fl_two")
    assert settled(builds, first) is None
    digest = digest_of(home, "one")
    changed = complete(home, digest)
    assert changed is not None
    make_wheel(home.path.parent / "wheels", "fl_three", "1.0")
    uv = [
        "uv",
        "pip",
        "install",
        "--offline",
        "--no-index",
        "--find-links",
        str(home.path.parent / "wheels"),
        "fl_three",
    ]
    argv = uv if change == "installs" else ["uv", "pip", "uninstall", "fl_one"]
    python = ["--python", str(changed / "bin" / "python")]
    subprocess.run([*argv, *python], env=environ(home), check=True, capture_output=True)
    assert settled(builds, submitted(home, "two", "fl_two")) is None
    second = complete(home, digest)
    assert second is not None
    assert second != changed, "a run that is still running keeps what it started with"
    assert imported(home, digest, "fl_two") == "1.0"
    assert not list(second.glob("lib/python3*/site-packages/fl_three*"))
    assert unneeded(home, ["one"]).directories == ()
    assert set(unneeded(home, []).directories) == {changed, second}
    assert remove(home, unneeded(home, [])) == 2


@pytest.mark.parametrize(
    ("packages", "message"),
    [
        (("fl_three",), "no index has a package fl-three"),
        (("fl_one<1",), "there is no version of fl-one that fits <1"),
        (("fl_two", "fl_one==0.5"), "there is no version of fl-one that fits ==0.5"),
    ],
)
def test_what_cannot_be_had_is_named(
    home: Home, builds: EnvironmentBuilds, packages: tuple[str, ...], message: str
) -> None:
    failed = settled(builds, submitted(home, "one", *packages))
    assert failed is not None
    assert (failed.message, list((home.packages / "built").glob("*/complete"))) == (message, [])


def hanging_uv(home: Home) -> Path:
    """Put a uv first on the PATH that never ends, and return the file with the numbers of its processes."""
    started, program = home.path.parent / "started", home.path.parent / "bin" / "uv"
    program.parent.mkdir()
    program.write_text(HANGING.format(uv=Path(sys.executable).parent / "uv", started=started))
    program.chmod(0o755)
    return started


def test_a_build_that_nobody_waits_for_any_more_is_ended_with_all_that_it_started(
    home: Home, builds: EnvironmentBuilds
) -> None:
    started = hanging_uv(home)
    one, two = submitted(home, "one", "fl_two"), submitted(home, "two", "fl_two")
    assert all(run.preparation is not None for run in builds.prepared([one, two]))
    pid = int(until(lambda: started.exists() and started.read_text(), "uv").split()[0])
    builds.prepared([two])
    os.kill(pid, 0)  # the other one still waits
    builds.prepared([])
    until(lambda: _has_ended(pid), "the end of uv")
    assert started.read_text().split() == [str(pid)], "both had one build"


def test_a_killed_build_leaves_nothing_that_looks_complete(home: Home, builds: EnvironmentBuilds) -> None:
    started, run = hanging_uv(home), submitted(home, "one", "fl_two")
    builds.prepared([run])
    (builder,) = builds._running.values()
    pid = int(until(lambda: started.exists() and started.read_text(), "uv").split()[0])
    builder.send_signal(signal.SIGKILL)
    failed = settled(builds, run)
    assert failed is not None
    assert failed.message == "the process that made its environment was ended with exit code -9"
    until(lambda: _has_ended(pid), "the end of what it had started")
    (home.path.parent / "bin" / "uv").unlink()
    again = submitted(home, "two", "fl_two")
    half = home.packages / "built" / ("0" * 8)
    half.mkdir(parents=True)
    assert settled(builds, again) is None
    assert remove(home, unneeded(home, ["two"])) == 1
    assert not half.exists()
    assert imported(home, digest_of(home, "two"), "fl_one") == "1.0"


def test_an_environment_goes_when_no_run_needs_it_and_is_made_again_from_its_lock(
    home: Home, builds: EnvironmentBuilds
) -> None:
    run = submitted(home, "one", "fl_two")
    assert settled(builds, run) is None
    digest = digest_of(home, "one")
    assert remove(home, unneeded(home, ["one"])) == 0
    assert remove(home, unneeded(home, [])) == 1
    assert complete(home, digest) is None
    assert not place_of(home, digest).lock.exists()
    make_wheel(home.path.parent / "wheels", "fl_one", "2.0")
    assert settled(builds, run) is None
    assert imported(home, digest, "fl_one") == "1.0", "the lock that is kept with the run names 1.0"


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def with_gpus(run: Workload, milli: int) -> Workload:
    resources = replace(run.spec.resources, gpu=GpuRequest(milli=milli))
    return replace(run, spec=replace(run.spec, resources=resources))


def test_a_lock_that_cannot_work_with_the_gpus_fails_runs_on_gpus_before_it_is_installed(
    home: Home, builds: EnvironmentBuilds, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_gpus(monkeypatch, home.path.parent / "python", "535.54.03", (8, 0))
    wheels = home.path.parent / "wheels"
    make_wheel(wheels, "nvidia_cuda_runtime", "13.0.96")
    make_wheel(wheels, "torch", "2.11.0", needs=["nvidia_cuda_runtime==13.0.96"])
    training_run = with_gpus(submitted(home, "one", "torch"), 1000)
    plain = submitted(home, "two", "torch")
    builds.prepared([training_run, plain])  # one process for both, begun for the one on GPUs
    failed = settled(builds, training_run)
    assert failed is not None
    assert failed.message == (
        "torch 2.11.0 brings CUDA 13.0, which needs driver 580.65.06 or newer; this machine has 535.54.03"
    )
    assert (failed.remedy or "").startswith("Take torch built for CUDA 12.8, from the index")
    assert list((home.packages / "built").glob("*")) == [], "nothing was installed"
    assert settled(builds, plain) is None, "without GPUs it needs no driver"
    later = settled(builds, with_gpus(submitted(home, "three", "torch"), 500))
    assert later is not None
    assert later == failed, "also where the environment is complete already"


def test_a_run_is_told_what_is_not_known_of_its_gpus(
    home: Home, builds: EnvironmentBuilds, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(home.path.parent / "wheels", "torch", "2.15.0")
    started, run = hanging_installation(home), with_gpus(submitted(home, "one", "torch"), 1000)
    builds.prepared([run])
    until(started.exists, "the installation")

    def message() -> str:
        (seen,) = builds.prepared([run])
        return "" if seen.preparation is None else seen.preparation.message

    expected = "the CUDA version of torch 2.15.0 does not follow from its lock"
    until(lambda: expected in message(), "the remark")


def hanging_installation(home: Home) -> Path:
    """Put a uv first on the PATH that locks and never installs, and return the file that says it has begun to."""
    started, program = home.path.parent / "started", home.path.parent / "bin" / "uv"
    program.parent.mkdir()
    uv = Path(sys.executable).parent / "uv"
    program.write_text(
        f'#!/bin/sh\n[ "$1 $2" != "pip sync" ] && exec {uv} "$@"\necho $$ >> {started}\nexec sleep 600\n'
    )
    program.chmod(0o755)
    return started
