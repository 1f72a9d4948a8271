"""The history of this machine: entered with the change that ends an attempt, and shared by all runs."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.main import group
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.node_records import NodeRecord, dump_record, history_of, plain_history, record_of
from fairlead.errors import NotAllowed, NotFound
from fairlead.policy.health.node_risk import charged, taken_out
from fairlead.state.node_health import FailureCause, Incident, NodeFailure, NodeHistory
from tests.builders import change, plan, training

NODE = "localhost"


def incident(at: float, run: str, cause: FailureCause = FailureCause.UNKNOWN) -> Incident:
    return Incident(at=at, team="default", run=run, cause=cause, nodes=(NODE,))


def fail(cluster: LocalCluster, name: str, at: float, cause: FailureCause = FailureCause.UNKNOWN) -> bool:
    """Apply a change of a new run that enters a failure; return whether it was applied."""
    run = cluster.submit(training(name))
    return cluster.apply(plan(change(run, incident=incident(at, name, cause))))[0]


def test_failures_of_all_runs_are_in_one_history_that_outlives_the_process(tmp_path: Path) -> None:
    cluster = LocalCluster.open(tmp_path)
    assert cluster.store.node_histories() == {}
    assert fail(cluster, "one", 100.0)
    assert fail(cluster, "two", 200.0, FailureCause.HANG)
    cluster.close()
    again = LocalCluster.open(tmp_path)
    history = again.store.node_histories()[NODE]
    assert [(one.run, one.cause) for one in history.recent] == [
        ("one", FailureCause.UNKNOWN), ("two", FailureCause.HANG)
    ]  # fmt: skip
    assert history.failures == pytest.approx(1.0, abs=0.01), "of one team"
    assert again.snapshot().node_health == {NODE: history}
    again.close()


def test_a_stale_change_enters_nothing(tmp_path: Path) -> None:
    cluster = LocalCluster.open(tmp_path)
    run = cluster.submit(training("one"))
    stale = change(run, incident=incident(1.0, "one"))
    assert cluster.apply(plan(stale)) == (True,)
    assert cluster.apply(plan(stale)) == (False,)
    assert len(cluster.store.node_histories()[NODE].recent) == 1
    cluster.close()


def test_this_machine_cannot_be_cordoned_since_it_is_the_only_node(tmp_path: Path) -> None:
    cluster = LocalCluster.open(tmp_path)
    with pytest.raises(NotAllowed, match="only node"):
        cluster.cordon(NODE, "")
    with pytest.raises(NotAllowed, match="fairlead suspend --all"):
        cluster.uncordon(NODE)
    with pytest.raises(NotFound, match="this machine is the node localhost"):
        cluster.cordon("other", "")
    cluster.close()


def test_nodes_are_listed_with_failures_by_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path))
    cluster = LocalCluster.open(tmp_path)
    fail(cluster, "old", time.time() - 40 * 86400)
    fail(cluster, "one", time.time() - 60)
    fail(cluster, "two", time.time() - 30, FailureCause.PROGRAM)
    cluster.close()
    runner = CliRunner()
    listed = runner.invoke(group, ["nodes"])
    assert listed.exit_code == 0, listed.output
    assert "1 unknown, 1 program" in listed.output or "1 program, 1 unknown" in listed.output
    one = json.loads(runner.invoke(group, ["nodes", NODE, "--json"]).output)
    assert (one["causes"], one["state"]) == ({"unknown": 1, "program": 1}, "ready")
    assert [failure["run"] for failure in one["failures"]] == ["two", "one"]
    assert 0 < one["risk"] < 1
    shown = runner.invoke(group, ["nodes", NODE]).output
    assert "unreliable with a probability of" in shown
    missing = runner.invoke(group, ["nodes", "other"])
    assert isinstance(missing.exception, NotFound)


def test_a_record_reads_back_as_it_was_written() -> None:
    histories = charged({}, incident(100.0, "one"), {NODE: 50.0})
    histories = {NODE: taken_out(histories[NODE], "it failed", 200.0)}
    record = record_of(dump_record(NodeRecord(histories=histories, counted={"u": 100.1})))
    assert record == NodeRecord(histories=histories, counted={"u": 100.1})


def test_a_record_is_bounded_and_what_it_cannot_hold_is_left_out() -> None:
    failures = tuple(
        NodeFailure(at=float(number), cause=FailureCause.UNKNOWN, team="t" * 250, run="r" * 250, share=0.1)
        for number in range(16)
    )
    many = {f"n-{number}": NodeHistory(node=f"n-{number}", since=0.0, recent=failures) for number in range(1000)}
    text = dump_record(NodeRecord(histories=many, counted={str(number): float(number) for number in range(5000)}))
    assert len(text) <= 900 * 1024
    assert len(record_of(text).histories) == 1000
    assert min(record_of(text).counted.values()) == 3000.0
    strange = {**plain_history(many["n-0"]), "failures": "many", "recent": [[1, "magic", 1], [2, "hang", 9, "t"], 7]}
    history = history_of("n", strange)
    assert history is not None
    assert (history.failures, [one.share for one in history.recent]) == (0.0, [1.0])
    assert history_of("n", {"since": "soon"}) is None
    assert history_of("n", []) is None
    with pytest.raises(ValueError, match="at most"):
        record_of(" " * 10**6)
