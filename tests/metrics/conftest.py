"""A real Prometheus for tests that need one: the system's, or Debian's package, unpacked and not installed."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

PLACE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fairlead-tests" / "prometheus"
FETCH_S = 120.0


def _binary(name: str) -> Path:
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    unpacked = PLACE / "usr" / "bin" / name
    if unpacked.exists():
        return unpacked
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of one test run
        if not unpacked.exists():
            _fetch()
    return unpacked


def _fetch() -> None:
    """Download the package and unpack it; nothing of it is installed or started."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("no prometheus here: install it, or run on Debian, whose package is fetched")
    got = subprocess.run(
        ["apt-get", "download", "prometheus"], cwd=PLACE, capture_output=True, text=True, timeout=FETCH_S, check=False
    )
    packages = sorted(PLACE.glob("prometheus_*.deb"))
    if got.returncode or not packages:
        pytest.skip(f"no prometheus here, and its package cannot be fetched: {got.stderr.strip()}")
    subprocess.run(["dpkg-deb", "-x", packages[-1], PLACE], check=True, timeout=FETCH_S)


@pytest.fixture(scope="session")
def promtool() -> Path:
    return _binary("promtool")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    return _binary("prometheus")
