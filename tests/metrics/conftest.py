"""A real Prometheus for tests that need one: the system's, or Debian's package, unpacked and not installed."""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

PLACE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fairlead-tests" / "prometheus"
FETCH_S = 120.0
# After a refusal nobody asks again for so long.
AGAIN_S = 600.0


def _binary(name: str) -> Path:
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    unpacked = PLACE / "usr" / "bin" / name
    if unpacked.exists():
        return unpacked
    _only_where_it_can_be_fetched()
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of one test run
        if not unpacked.exists():
            _fetch()
    return unpacked


def _only_where_it_can_be_fetched() -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("no prometheus here: install it, or run on Debian, whose package is fetched")


def _fetch() -> None:
    """Download the package and unpack it; nothing of it is installed or started.

    Another worker sees it whole or not at all. One that got no answer leaves word, so that no other waits for it too.
    """
    refused = PLACE / "refused"
    if refused.exists() and time.time() - refused.stat().st_mtime < AGAIN_S:
        pytest.skip(f"no prometheus here, and its package could not be fetched a while ago: {refused.read_text()}")
    download = ["apt-get", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "download", "prometheus"]
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        try:
            got = subprocess.run(download, cwd=place, capture_output=True, text=True, timeout=FETCH_S, check=False)
            why = got.stderr.strip() if got.returncode else None
        except subprocess.TimeoutExpired:
            why = f"not done within {FETCH_S:g} s"
        packages = sorted(Path(place).glob("prometheus_*.deb"))
        if why is not None or not packages:
            why = why or "there is none"
            refused.write_text(why)
            pytest.skip(f"no prometheus here, and its package cannot be fetched: {why}")
        subprocess.run(["dpkg-deb", "-x", packages[-1], "unpacked"], cwd=place, check=True, timeout=FETCH_S)
        shutil.rmtree(PLACE / "usr", ignore_errors=True)
        (Path(place) / "unpacked" / "usr").rename(PLACE / "usr")
    refused.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def promtool() -> Path:
    return _binary("promtool")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    return _binary("prometheus")
