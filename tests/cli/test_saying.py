"""What commands say of runs beyond their phase: teams, what is waited for, what starts, and how a handle looks."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fairlead
from fairlead.cluster.local.process_metrics import usages
from fairlead.errors import FairleadError
from fairlead.policy.decide import decide
from fairlead.specs.training import Checkpoint, Training
from fairlead.state.plan import CreatePod, Plan
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Progress, Snapshot, Workload
from tests.builders import change, node, status, training
from tests.cli.conftest import Call, Past


def test_the_listing_has_teams_where_there_are_several(call: Call, past: Past) -> None:
    past.submit("first")
    assert "TEAM" not in call("status").out
    past.submit("second", team="vision")
    rows = [line.split() for line in call("status").out.splitlines()]
    assert rows[0][:3] == ["NAME", "TEAM", "PHASE"]
    assert {tuple(row[:2]) for row in rows[1:]} == {("first", "default"), ("second", "vision")}


def test_a_handle_says_which_run_it_is_and_that_it_is_gone(call: Call, past: Past) -> None:
    run = past.submit("kept")
    handle = fairlead.find("kept")
    assert repr(handle) == f"RunHandle(name='kept', uid='{run.uid}', phase='Succeeded')"
    printer, shown = io.StringIO(), handle.status
    shown._repr_pretty_(SimpleNamespace(text=printer.write), False)  # as IPython calls it
    assert printer.getvalue() == f"Status(phase='Succeeded', attempt=0, reason={shown.reason.message!r})"
    call("delete", "--yes", "kept")
    assert repr(handle) == f"RunHandle(uid='{run.uid}': There is no run with the id '{run.uid}'.)"


def test_top_shows_what_starts(call: Call, past: Past) -> None:
    run = past.submit("soon", phase=Phase.STARTING)
    create = CreatePod(attempt=0, index=0, node="localhost", grant=Grant(cpu_milli=500))
    assert past.cluster.apply(Plan(changes=(replace(change(run), create=(create,)),))) == (True,)
    (pod,) = usages(past.cluster, past.cluster.unfinished(), sample_s=0.0).pods
    assert (pod.run, pod.phase, pod.cpu_milli, pod.memory_bytes) == ("soon", "Starting", None, None)
    assert ["soon", "0", "Starting", "localhost", "-", "of", "0.5"] in [
        line.split()[:7] for line in call("top").out.splitlines()
    ]


def stopping(spec: Training, progress: Progress | None) -> str:
    own = Workload(
        uid="a", spec=spec, intent=Intent.STOP, status=status(Phase.RUNNING), version=1, created_at=0.0,
        progress=progress,
    )  # fmt: skip
    pod = Pod(
        uid="a-0-0", workload_uid="a", attempt=0, index=0, node="node-0", grant=Grant(), phase=PodPhase.RUNNING,
        created_at=0.0, started_at=0.0,
    )  # fmt: skip
    (stop,) = decide(Snapshot(nodes=(node(),), workloads=(own,), pods=(pod,)), 1_000_000_100.0).changes
    assert stop.status is not None
    assert stop.status.reason.code is Code.STOP_REQUESTED
    return stop.status.reason.message


def test_a_run_that_stops_says_what_it_waits_for() -> None:
    spec = training(grace_s=30.0)
    saving = stopping(spec, Progress(step=1200))
    assert saving == "stop was requested; waiting for it to save a checkpoint of step 1200 (grace 30s)"
    assert stopping(spec, None) == "stop was requested; waiting for its ranks to end (grace 30s)"


def test_stop_tells_that_while_it_waits(call: Call) -> None:
    command = "trap 'sleep 1; exit 1' TERM; echo ready; sleep 60 & wait"
    call("run", "-d", "--name", "slow", "--", "sh", "-c", command)
    while "ready" not in call("logs", "slow").out:
        pass
    told = call("stop", "slow").err.splitlines()
    assert told == [
        "slow is Stopping: stop was requested; waiting for its ranks to end (grace 30s).",
        "slow is Stopped: stopped on request.",
    ]


def test_delete_names_the_checkpoints_that_go_and_those_that_stay(call: Call, past: Past) -> None:
    own = Path(past.cluster.kept_at(past.submit("own"))) / "checkpoints"
    for step in (100, 200):
        saved = own / f"step-{step:012}"
        saved.mkdir(parents=True)
        (saved / "MANIFEST.json").write_text("{}")
        (saved / "data").write_bytes(bytes(1022))
    (own / f"step-{300:012}").mkdir()
    past.submit("bare")
    away = past.cluster.store.submit("f" * 11, training("away", checkpoint=Checkpoint(to="/mnt/kept")), 1.0)
    told = call("delete", "--yes", "--no-wait", "own", "bare", away.spec.name).err.splitlines()
    assert told[:3] == [
        f"own: 2 checkpoints (newest: step 200), 2 KiB in {own}, will be deleted.",
        "away: its checkpoints in /mnt/kept stay.",
        "own will be deleted.",
    ]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"grep": "("}, r"grep: '\(' is not a regular expression: missing \), .* give re.escape"),
        ({"rank": -1}, "rank: -1 is not a rank"),
        ({"tail": 0}, "tail: 0 is not a number of lines"),
        ({"since": "soon"}, "since: .*soon"),
    ],
)
def test_an_argument_of_a_handle_that_is_wrong_is_told_by_its_name(
    past: Past, asked: dict[str, Any], said: str
) -> None:
    past.submit("kept")
    with pytest.raises(FairleadError, match=said) as refused:
        fairlead.find("kept").logs(**asked)
    assert isinstance(refused.value, ValueError)
