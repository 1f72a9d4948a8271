"""A real Prometheus for tests that need one."""

from pathlib import Path

import pytest

from tests.debian import program


@pytest.fixture(scope="session")
def promtool() -> Path:
    return program("promtool", "prometheus")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    return program("prometheus", "prometheus")
