"""The lowest versions that pyproject.toml allows work: a floor that nobody has tried is a promise that nobody keeps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = "cluster,serve,remote,postgres,parquet,drift"
TOOLS = ("pytest", "hypothesis", "pytest-xdist", "pytest-timeout", "jsonschema", "lupa", "trustme")
"""What the tests themselves need, as pinned."""

FILES = (
    "tests/web/test_command.py",
    "tests/web/test_server.py",
    "tests/image/test_registry.py",
    "tests/cluster/test_drift.py",
    "tests/kubernetes/test_streams.py",
)
"""Tests that go through what is installed: aiohttp, Jinja2, urllib3, river with scipy, and websockets."""

IMPORT_ALL = """
import importlib, pkgutil, sys, fairlead
from fairlead.errors import EXTRAS
failed = []
for module in pkgutil.walk_packages(fairlead.__path__, "fairlead."):
    if "templates" in module.name or module.name.endswith("__main__") or ".hook" in module.name:
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        # PyTorch and the frameworks of users are not installed here.
        if (error.name or "").partition(".")[0] == "fairlead":
            failed.append(f"{module.name}: {error}")
    except Exception as error:
        failed.append(f"{module.name}: {type(error).__name__}: {error}")
sys.exit("\\n".join(failed) or 0)
"""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the lowest version of each dependency."""
    place = tmp_path_factory.mktemp("lowest")
    uv = str(Path(sys.executable).with_name("uv"))
    pins = [line.split()[0] for line in (ROOT / "requirements" / "dev.txt").read_text().splitlines() if "==" in line]
    tools = [pin for pin in pins if pin.partition("==")[0] in TOOLS]
    assert len(tools) == len(TOOLS)
    program = place / "bin" / "python"
    for arguments in (
        ("venv", "--quiet", "--python", sys.executable, str(place)),
        (
            "pip",
            "install",
            "--quiet",
            "--python",
            str(program),
            "--resolution",
            "lowest-direct",
            "-e",
            f".[{EXTRAS}]",
            *tools,
        ),
    ):
        done = subprocess.run(
            [uv, "--no-config", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stderr
    return program


def test_every_module_imports_with_the_lowest_versions(python: Path) -> None:
    done = subprocess.run(
        [python, "-c", IMPORT_ALL], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_what_uses_the_dependencies_works_with_the_lowest_versions(python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not long and not browser", *FILES],
        cwd=ROOT,
        env={**os.environ, "FAIRLEAD_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
