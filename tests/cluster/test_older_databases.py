"""A state directory that an older version has written is understood, and says so to that version afterwards."""

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.tables import SCHEMA_VERSION
from fairlead.control.loop import run_pass
from fairlead.errors import ClusterError, InvalidSpec
from fairlead.specs.formats.serialization import from_json, to_json
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


def test_what_another_version_stored_besides_that_says_nothing_is_left_aside() -> None:
    stored = json.loads(to_json(training("good")))
    says_nothing: tuple[object, ...] = (None, False, "", [], {})
    for nothing in says_nothing:
        stored["resources"]["of_another_version"] = nothing
        assert from_json(json.dumps(stored)) == training("good")
    stored["resources"]["of_another_version"] = 0
    with pytest.raises(InvalidSpec, match="Resources: unknown attribute of_another_version"):
        from_json(json.dumps(stored))


def test_a_spec_that_this_version_refuses_is_named_once_and_left_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(LocalCluster.open(tmp_path)) as cluster:
        good = cluster.submit(training("good"))
        other = cluster.submit(training("other"))
        while run_pass(cluster, time.time()):
            pass
        assert {pod.workload_uid for pod in cluster.snapshot().pods} == {good.uid, other.uid}
        with sqlite3.connect(tmp_path / "fairlead.db") as database:
            changed = "UPDATE workloads SET spec = json_set(spec, '$.of_another_version', 1) WHERE uid = ?"
            database.execute(changed, (other.uid,))
        problem = (
            f"The Training other ({other.uid}) was kept by another version of Fairlead, and this one refuses its spec: "
            "Training: unknown attribute of_another_version. Delete it with the version that kept it, "
            "or go on with that version."
        )
        for _ in range(2):
            snapshot = cluster.snapshot()
            assert [run.uid for run in snapshot.workloads] == [good.uid]
            assert {pod.workload_uid for pod in snapshot.pods} == {good.uid, other.uid}, "its pods hold what they hold"
            assert [run.uid for run in cluster.workloads()] == [good.uid]
        assert caplog.messages.count(problem) == 1
        with pytest.raises(ClusterError, match="was kept by another version"):
            cluster.get(other.uid)
        cluster.set_intent(good.uid, Intent.STOP)
        while run_pass(cluster, time.time()):
            pass
        assert {pod.workload_uid for pod in cluster.snapshot().pods if pod.terminating_since is None} == {other.uid}
