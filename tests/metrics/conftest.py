"""A real Prometheus for tests that need one."""

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.debian import program
from tests.ports import free_ports
from tests.waiting import until


@pytest.fixture(scope="session")
def promtool() -> Path:
    return program("promtool", "prometheus")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    return program("prometheus", "prometheus")


@contextmanager
def serving(prometheus: Path, place: Path) -> Iterator[str]:
    """A Prometheus of a directory with its ``prometheus.yml``; its address."""
    (port,) = free_ports(1)
    with (place / "log").open("w") as log:
        server = subprocess.Popen(
            [
                prometheus, "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}",
            ],
            cwd=place, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"

        def is_ready() -> bool:
            assert server.poll() is None, (place / "log").read_text()
            try:
                with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        until(is_ready)
        yield url
    finally:
        server.terminate()
        server.wait(30)
