"""A state directory that an older version has written is understood, and says so to that version afterwards."""

import json
import sqlite3
from pathlib import Path

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.tables import SCHEMA_VERSION
from fairlead.state.snapshot import Intent, Phase
from tests.builders import training


def test_a_run_that_was_pending_because_it_was_suspended_is_suspended(tmp_path: Path) -> None:
    cluster = LocalCluster.open(tmp_path)
    run = cluster.submit(training("held"))
    cluster.set_intent(run.uid, Intent.SUSPEND)
    cluster.close()
    with sqlite3.connect(tmp_path / "fairlead.db") as database:
        (text,) = database.execute("SELECT status FROM workloads").fetchone()
        reason: dict[str, object] = {
            "code": "Suspended",
            "message": "suspended on request",
            "remedy": None,
            "detail": [],
        }
        database.execute("UPDATE workloads SET status = ?", (json.dumps({**json.loads(text), "reason": reason}),))
        # As version 1 had made it.
        for index in ("children", "workloads_wanted", "workloads_by_phase", "workloads_by_kind", "workloads_by_team"):
            database.execute(f"DROP INDEX {index}")
        for column in ("kind", "parent"):
            database.execute(f"ALTER TABLE workloads DROP COLUMN {column}")
        database.execute("PRAGMA user_version = 1")
    again = LocalCluster.open(tmp_path)
    (found,) = again.snapshot().workloads
    assert (found.status.phase, found.intent) == (Phase.SUSPENDED, Intent.SUSPEND)
    assert again.find("held") == found
    again.close()
    with sqlite3.connect(tmp_path / "fairlead.db") as database:
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
