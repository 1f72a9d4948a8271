"""A fleet of two clusters of real processes: a run is rented for, and comes home from its own checkpoint."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.home import Home
from fairlead.control.fleets.controller import FleetController
from fairlead.control.fleets.journal import FleetJournal
from fairlead.policy.fleet import placement
from fairlead.specs.fleet import Fleet, Member
from fairlead.specs.resources import Resources
from fairlead.specs.training import Checkpoint, Training
from fairlead.state.fleets import FleetStage
from fairlead.state.snapshot import Phase
from tests.home import end_everything
from tests.waiting import until

pytestmark = pytest.mark.slow

PROGRAM = """
import pathlib, time
import fairlead

def save(directory):
    (directory / "state").write_text("kept")

def load(directory):
    assert (directory / "state").read_text() == "kept"

with fairlead.run() as run:
    start = run.resume(load=load)
    print("from", start, flush=True)
    for step in range(start, STEPS):
        time.sleep(0.1)
        run.progress(step + 1, total=STEPS)
        run.checkpoint(step + 1, save=save)
        if pathlib.Path("FINISH").exists():
            break
"""


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[dict[str, Path]]:
    homes = {name: tmp_path / name for name in ("home", "cloud")}
    yield homes
    for home in homes.values():
        end_everything(home)


def test_a_run_leaves_the_queue_for_a_rented_cluster_and_comes_home_from_its_checkpoint(
    homes: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "SETTLED_S", 1.0)
    monkeypatch.setattr(placement, "WORTH_S", 1.0)

    def opened(member: Member) -> ClusterClient:
        return LocalCluster.open(homes["home" if member.context is None else "cloud"])

    members = {"home": Member(), "cloud": Member(context="cloud", cpu_price=1.0)}
    journal = FleetJournal.create(Home.open(tmp_path / "fleet"), Fleet(name="two", clusters=members, wait_s=1.0))
    cores = LocalCluster.open(homes["home"]).nodes()[0].cpu_milli

    finish = tmp_path / "finish"

    def submit(name: str, steps: int) -> None:
        files = tmp_path / f"files-{name}"
        files.mkdir()
        (files / "train.py").write_text(PROGRAM.replace("STEPS", str(steps)).replace("FINISH", str(finish)))
        spec = Training(
            name=name,
            run=f"{sys.executable} train.py",
            workdir=".",
            ranks_per_node=1,
            resources=Resources(cpu_milli=cores),
            expected_duration_s=steps / 10,
            checkpoint=Checkpoint(to=str(tmp_path / "checkpoints"), every_s=0.5),
        )
        journal.submit(spec, files, time.time())

    controller = FleetController(journal, open_cluster=opened)

    def acted(is_so: object) -> bool:
        controller.act(time.time())
        return bool(is_so() if callable(is_so) else is_so)

    try:
        submit("first", 60)
        until(lambda: acted(lambda: journal.find("first").phase is Phase.RUNNING), every_s=0.2)
        submit("second", 10_000)  # it goes on until it is told, however slow the machine is
        until(lambda: acted(lambda: (journal.find("second").step or 0) > 3), every_s=0.2)
        assert journal.find("second").cluster == "cloud"
        until(lambda: acted(lambda: journal.find("second").cluster == "home"), every_s=0.2, timeout_s=120)
        finish.touch()
        moved = journal.find("second")
        assert moved.origin is not None
        assert moved.origin.startswith(str(tmp_path / "checkpoints" / "second-"))
        until(
            lambda: acted(lambda: all(run.stage is FleetStage.ENDED for run in journal.runs())),
            every_s=0.2,
            timeout_s=120,
        )
    finally:
        controller.close()
    run = journal.find("second")
    assert (run.phase, run.cluster) == (Phase.SUCCEEDED, "home")
    assert run.spent > 0
    home = LocalCluster.open(homes["home"])
    (line,) = [line.text for line in home.logs(run.child or "") if line.text.startswith("from")]
    assert int(line.removeprefix("from ")) > 3
    # Its copy in the rented cluster is gone, and its checkpoints are not.
    assert not LocalCluster.open(homes["cloud"]).workloads()
