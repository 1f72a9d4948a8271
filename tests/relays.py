"""Makes the kind of ``tests.relay`` known to a test, and to every process that it starts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.specs.keys import added_kinds


@contextmanager
def know_relays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Know them until the block ends."""
    monkeypatch.setenv("FAIRLEAD_KINDS", "tests.relay")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    added_kinds.cache_clear()
    yield
    added_kinds.cache_clear()


@pytest.fixture(autouse=True)
def relays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For the tests of a module that imports it."""
    with know_relays(monkeypatch):
        yield
