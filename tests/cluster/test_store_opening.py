"""A store is opened while another process makes the same database."""

import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairlead.cluster.local import store
from fairlead.cluster.local.home import Home


def test_the_first_to_open_a_database_waits_for_another_that_does_so_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home.open(tmp_path)
    other = sqlite3.connect(home.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE young (column)")
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        other.rollback()

    clock = SimpleNamespace(monotonic=time.monotonic, time=time.time, sleep=sleep)
    monkeypatch.setattr(store, "time", clock)
    found = store.LocalStore(home)
    assert len(waits) == 1
    assert found.workloads() == ()
    found.close()
    other.close()
