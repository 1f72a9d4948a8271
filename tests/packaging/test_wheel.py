"""The wheel and the source archive install on a machine that has nothing of Fairlead, and work there."""

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead.errors import EXTRAS
from tests.home import end_everything

ROOT = Path(__file__).parents[2]
MOST_MB = 60
"""Disk space of the core with its dependencies; PyTorch and servers are extras."""

pytestmark = pytest.mark.slow


def _run(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env={**variables, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def _build(target: str, source: Path, directory: Path) -> Path:
    """Return what the pinned build backend makes of a source tree: a wheel or a source archive."""
    built = _run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", directory, cwd=source)
    assert built.returncode == 0, built.stderr
    (path,) = directory.iterdir()
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An environment of `uv tool install`, with the programs that it puts on PATH."""

    programs: Path
    packages: Path
    home: Path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    place = tmp_path_factory.mktemp("tool")
    uv = Path(sys.executable).with_name("uv")
    ended = _run(
        uv, "--no-config", "tool", "install", "--quiet", "--python", sys.executable,
        "--constraints", ROOT / "requirements" / "dev.txt", wheel,
        cwd=place,
        UV_TOOL_DIR=str(place / "tools"),
        UV_TOOL_BIN_DIR=str(place / "bin"),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    (packages,) = (place / "tools" / "fairlead" / "lib").glob("python3*/site-packages")
    installation = Installation(programs=place / "bin", packages=packages, home=place / "home")
    yield installation
    end_everything(installation.home)


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    tracked = _run("git", "ls-files", "src/fairlead", cwd=ROOT).stdout.split()
    assert len(tracked) > 700
    with zipfile.ZipFile(wheel) as archive:
        assert {path.removeprefix("src/") for path in tracked} <= set(archive.namelist())


def test_the_source_archive_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "sdist").mkdir()
    with tarfile.open(_build("sdist", ROOT, tmp_path / "sdist")) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "source", members=[entry for entry in archive if entry.isfile()])
    assert not [name for name in names if "/.venv/" in name or "/.git/" in name]
    (source,) = (tmp_path / "source").iterdir()
    (tmp_path / "again").mkdir()
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(_build("wheel", source, tmp_path / "again")) as second:
        assert {entry.filename: entry.CRC for entry in first.infolist()} == {
            entry.filename: entry.CRC for entry in second.infolist()
        }


def test_a_plain_script_runs_with_nothing_but_the_wheel(installed: Installation, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("print('hello from', __name__)\n")
    ran = _run(
        installed.programs / "fairlead", "run", "--", sys.executable, "hello.py",
        cwd=tmp_path,
        FAIRLEAD_HOME=str(installed.home),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "hello from __main__" in ran.stdout


def test_the_core_is_small_and_without_what_an_extra_installs(installed: Installation) -> None:
    size = sum(path.stat().st_size for path in installed.packages.rglob("*") if path.is_file())
    assert size < MOST_MB * 1e6
    assert not [name for name in EXTRAS if (installed.packages / name).exists()]


def test_a_command_that_needs_an_extra_names_it(installed: Installation, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        "kind: Pool\nname: a100\nnodes: 8\nhardware: {cpu: 96, memory: 1Ti, gpu: {model: A100, count: 8}}\n"
    )
    (tmp_path / "trace.csv").write_text("submit_s,duration_s,team,nodes,gpu\n0,7200,vision,2,A100:8\n")
    ended = _run(
        installed.programs / "fairlead", "simulate", "trace.csv", "--cluster", "cluster.yaml",
        cwd=tmp_path,
        FAIRLEAD_HOME=str(installed.home),
    )  # fmt: skip
    assert ended.returncode == 7
    assert "pip install 'fairlead[cluster]'" in ended.stderr
