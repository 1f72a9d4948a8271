"""The commands of fleets, with nobody carrying one out."""

import json
import os
from pathlib import Path

import pytest

from fairlead.cluster.local.home import Home
from fairlead.control.fleets.journal import FleetJournal
from fairlead.specs.fleet import Fleet, Member
from tests.cli.conftest import Call


@pytest.fixture
def journal(call: Call) -> FleetJournal:
    members = {"home": Member(), "cloud": Member(context="cloud", gpu_price=2.5)}
    Path("train.py").write_text("print(1)\n")
    Path("train.yaml").write_text("name: train\nrun: python train.py\n")
    return FleetJournal.create(Home.open(Path(os.environ["FAIRLEAD_HOME"])), Fleet(name="research", clusters=members))


def test_a_run_is_submitted_shown_and_stopped(call: Call, journal: FleetJournal) -> None:
    said = call("fleet", "submit", "research", "train.yaml")
    assert "Submitted train to the fleet research." in said.err
    assert "the fleet research is not running" in said.err
    shown = call("fleet", "status", "research").out
    assert "$2.5 a GPU hour" in shown
    assert "waits for the fleet's controller" in shown
    (run,) = json.loads(call("fleet", "status", "research", "--json").out)["runs"]
    assert (run["name"], run["stage"], run["cluster"], run["rent"]) == ("train", "Queued", None, 0.0)
    assert "train: stop requested." in call("fleet", "stop", "research", "train").err
    events = call("fleet", "events", "research").out
    assert [line.split()[-2:] for line in events.splitlines()] == [["train", "Submitted"], ["to", "stop"]]
    assert call("fleet", "status").out.split() == ["research"]


def test_mistakes_with_fleets_are_told(call: Call, journal: FleetJournal) -> None:
    Path("sweep.yaml").write_text(
        "kind: Sweep\nname: grid\nparameters: {lr: 0.1 | 0.2}\ntrial: {run: python train.py}\n"
    )
    Path("fleet.yaml").write_text("kind: Fleet\nname: other\nclusters: {home: {}}\n")
    mistakes = {
        ("submit", "nobody", "train.yaml"): (5, "There is no fleet 'nobody' here; there is: research"),
        ("submit", "fleet.yaml", "train.yaml"): (5, "the name of the fleet instead of its file"),
        ("submit", "research", "sweep.yaml"): (6, "grid is a Sweep; a fleet takes Trainings only"),
        ("stop", "research", "train"): (5, "There is no run 'train' in the fleet research"),
        ("run", "train.yaml"): (6, "give a file with one Fleet"),
    }
    for arguments, (code, says) in mistakes.items():
        ended = call("fleet", *arguments)
        assert (ended.code, says in ended.err) == (code, True), (arguments, ended.err)
    ended = call("run", "fleet.yaml")
    assert "`fairlead fleet run fleet.yaml` carries it out" in ended.err
    for clusters, says in {
        "{home: {max_gpus: 4}}": "without a price runs wait there for their turn",
        "{home: {}, far: {}}": "`far` and `home` are the same cluster",
        "{}": "there is none; give at least one",
        "{home: {namespace: a}}": "this machine has none; give `context`",
    }.items():
        Path("fleet.yaml").write_text(f"kind: Fleet\nname: other\nclusters: {clusters}\n")
        assert says in call("validate", "fleet.yaml").err.replace("'", "`").replace('"', "`"), clusters
