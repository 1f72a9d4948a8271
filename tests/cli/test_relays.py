"""Commands on a parent and its children: they are shown together, and what is done to the parent reaches all."""

import json
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.state.snapshot import Phase
from tests.cli.conftest import Call
from tests.relays import relays
from tests.waiting import until

__all__ = ["relays"]


def relay(desk: Path, command: str) -> str:
    (desk / "relay.yaml").write_text(f"kind: Relay\nname: relay\nleg: {json.dumps(command)}\n")
    return "relay.yaml"


@pytest.mark.slow
def test_a_parent_is_followed_with_its_children_to_its_end(desk: Path, process: Call) -> None:
    answer = process("run", relay(desk, "echo leg $LEG"))
    assert answer.code == 0, answer.err
    assert [line.rpartition("leg ")[2] for line in answer.out.splitlines()] == ["first", "second", "third"]
    assert "relay is Succeeded: all runs succeeded" in answer.err
    folded = process("status").out.splitlines()
    assert [line.split()[0] for line in folded] == ["NAME", "relay"]
    assert [run["name"] for run in json.loads(process("status", "--limit", "2", "--json").out)] == ["relay"]
    listed = process("status", "--all").out.splitlines()
    assert [line.split("  ")[0] for line in listed[1:2]] == ["relay"]
    assert sorted(line.split()[0] for line in listed[2:]) == ["relay-first", "relay-second", "relay-third"]
    assert all(line.startswith("  relay-") for line in listed[2:])
    told = json.loads(process("status", "--all", "--json").out)
    assert {run["name"]: (run["kind"], run["parent"] is None) for run in told} == {
        "relay": ("Relay", True),
        **{f"relay-{leg}": ("Training", False) for leg in ("first", "second", "third")},
    }
    events = process("events", "relay").out
    assert all(name in events for name in ("relay ", "relay-first", "relay-third"))
    full = process("status", "relay").out
    assert "relay is Succeeded" in full
    assert "kind         Relay" in full
    assert "3/3" in full
    assert "relay-second  Succeeded" in full
    logs = process("logs", "relay").out.splitlines()
    assert [line.rpartition("leg ")[2] for line in logs] == ["first", "second", "third"]


@pytest.mark.slow
def test_a_parent_is_suspended_resumed_stopped_and_deleted_by_its_name(desk: Path, process: Call) -> None:
    assert process("run", "-d", relay(desk, "sleep 60")).code == 0
    cluster = LocalCluster.open(desk / "home")
    until(lambda: [run.status.phase for run in cluster.children(cluster.find("relay").uid)] == [Phase.RUNNING])
    assert "relay is Suspended" in process("suspend", "relay").err
    assert cluster.find("relay-first").status.phase is Phase.SUSPENDED
    assert process("resume", "relay").code == 0
    until(lambda: cluster.find("relay-first").status.phase is Phase.RUNNING)
    assert "relay is Stopped" in process("stop", "relay").err
    assert cluster.find("relay-first").status.phase is Phase.STOPPED
    answer = process("top", "relay")
    assert answer.code == 0, answer.err
    assert process("delete", "--yes", "relay").code == 0
    assert cluster.workloads() == ()
    # Whoever renamed a directory removes it, which may be the supervisor.
    until(lambda: not any((desk / "home" / "runs").iterdir()))
    cluster.close()


def test_what_a_file_of_another_kind_gets_wrong_is_told_before_anything_is_submitted(desk: Path, process: Call) -> None:
    answer = process("plan", relay(desk, "no-such-program"))
    assert answer.code not in (0, 1)
    assert "no-such-program" in answer.err
    answer = process("run", "--set", "nodes=2", relay(desk, "true"))
    assert "are for a Training; relay is a Relay" in answer.err
    planned = process("plan", relay(desk, "true"))
    assert planned.code == 0, planned.err
    assert "relay: it would start at once: waits for relay-first" in planned.out
