"""A fleet's controller over clusters that refuse, vanish and come back, and which itself may die at any call."""

import itertools
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.home import Home
from fairlead.control.fleets.controller import NOTE_S, FleetController
from fairlead.control.fleets.journal import FleetJournal, fleet_names
from fairlead.errors import Conflict, NotFound
from fairlead.specs.fleet import Member
from fairlead.state.fleets import FleetStage
from fairlead.state.snapshot import Intent, Phase
from tests.fleet.clusters import FakeClient, make_fleet, random_deaths
from tests.rounds import rounds


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.py").write_text("print(1)\n")
    return tmp_path / "files"


def test_a_run_goes_to_an_own_cluster_with_room_and_costs_nothing(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state")
    fleet.submit("one", files)
    fleet.until(fleet.is_over)
    run = fleet.run("one")
    assert (run.phase, run.cluster, run.spent) == (Phase.SUCCEEDED, "home", 0.0)
    assert fleet.world.done["one"] == [1, 2, 3, 4, 5]


def test_runs_are_rented_for_when_they_would_wait_longer_than_is_allowed(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state", wait_s=30.0)
    for name in ("one", "two", "three", "four"):
        fleet.submit(name, files, steps=60, expected_duration_s=600.0)
    fleet.until(fleet.is_over)
    runs = fleet.journal.runs()
    assert {run.phase for run in runs} == {Phase.SUCCEEDED}
    assert any(run.spent > 0 for run in runs)
    assert any(run.spent == 0 for run in runs)
    for run in runs:
        assert fleet.world.done[run.spec.name] == list(range(1, 61))
    said = [event.message for event in fleet.journal.events()]
    assert any("waiting in the queue of home would cost more" in each for each in said)


def test_a_run_waits_where_its_wait_costs_less_than_rent(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state", wait_s=86_400.0)
    for name in ("one", "two"):
        fleet.submit(name, files, steps=60, expected_duration_s=600.0)
    fleet.until(fleet.is_over)
    assert [run.cluster for run in fleet.journal.runs()] == ["home", "home"]


def test_a_rented_run_comes_home_with_its_checkpoint_once_there_is_room(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state", wait_s=30.0)
    fleet.submit("short", files, steps=80, expected_duration_s=800.0)
    fleet.until(lambda: fleet.run("short").phase is Phase.RUNNING)
    fleet.submit("long", files, steps=900, expected_duration_s=9_000.0)
    # By its size it would be worth any wait; it is sent away all the same.
    fleet.journal.record([replace(fleet.run("long"), target="cloud")], {}, fleet.world.now)
    fleet.until(lambda: fleet.run("long").cluster == "cloud" and (fleet.run("long").step or 0) > 3)
    # A checkpoint that it saved by itself is what it needs to be moved.
    (copy,) = [each for each in fleet.world.runs["cloud"] if each.spec.name == "long"]
    fleet.world.saved[fleet.world.place(copy)] = fleet.world.step(copy)
    fleet.until(fleet.is_over, rounds=1_500)
    run = fleet.run("long")
    assert (run.cluster, run.phase) == ("home", Phase.SUCCEEDED)
    assert fleet.world.done["long"] == list(range(1, 901))
    assert 0.0 < run.spent < 4 * 9_000 / 3_600


def test_a_cluster_out_of_reach_keeps_its_runs_and_nothing_runs_twice(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state", wait_s=30.0)
    fleet.submit("one", files, steps=30, expected_duration_s=300.0)
    fleet.until(lambda: fleet.run("one").phase is Phase.RUNNING)
    fleet.world.out_of_reach.add("home")
    for _ in range(20):
        fleet.round()
    run = fleet.run("one")
    assert (run.stage, run.cluster) == (FleetStage.PLACED, "home")
    assert run.reason == "home is unreachable; the run stays there"
    assert fleet.journal.clusters()["home"].trouble is not None
    fleet.kill()
    for _ in range(20):
        fleet.round()
    assert not fleet.world.runs["cloud"]
    fleet.world.out_of_reach.clear()
    fleet.until(fleet.is_over)
    assert fleet.world.done["one"] == list(range(1, 31))


def test_a_note_on_a_cluster_is_written_when_there_is_news_or_it_is_old(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state")
    fleet.submit("one", files, steps=10_000, expected_duration_s=100_000.0)
    fleet.round()
    first = fleet.journal.clusters()["home"]
    written = [first.at]
    for _ in range(200):
        fleet.round()
        at = fleet.journal.clusters()["home"].at
        if at != written[-1]:
            written.append(at)
    assert len(written) > 1
    assert all(later - earlier >= NOTE_S for earlier, later in itertools.pairwise(written))
    fleet.world.out_of_reach.add("home")
    fleet.round()
    fleet.round()
    now = fleet.journal.clusters()["home"]
    assert now.trouble is not None
    assert now.since > written[-1]


def test_a_cluster_that_hangs_holds_up_the_others_once(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state")
    answers = threading.Event()

    class Hanging(FakeClient):
        def trouble(self) -> str | None:
            answers.wait(60.0)
            return None

    def opened(member: Member) -> ClusterClient:
        kind = FakeClient if member.context is None else Hanging
        return cast(ClusterClient, kind(fleet.world, member.context or "home"))

    fleet.controller = FleetController(fleet.journal, open_cluster=opened, visit_s=1.0)
    fleet.submit("one", files)
    began = time.monotonic()
    fleet.until(fleet.is_over, rounds=20)
    took_s = time.monotonic() - began
    answers.set()
    fleet.kill()
    assert fleet.run("one").cluster == "home"
    assert 1.0 <= took_s < 5.0, "every round has waited for it"


def test_a_cluster_whose_visits_fail_and_time_out_in_turn_keeps_one_reason(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state")
    fleet.submit("one", files)
    answers, visits = threading.Event(), itertools.count(1)
    num_visits = 0

    class Failing(FakeClient):
        def trouble(self) -> str | None:
            nonlocal num_visits
            num_visits = next(visits)
            if num_visits == 2:
                answers.wait(60.0)
            return "connection refused"

    def opened(member: Member) -> ClusterClient:
        kind = FakeClient if member.context is not None else Failing
        return cast(ClusterClient, kind(fleet.world, member.context or "home"))

    fleet.controller = FleetController(fleet.journal, open_cluster=opened, visit_s=1.0)
    reasons = []
    deadline = time.monotonic() + 30.0
    while num_visits < 3 and time.monotonic() < deadline:
        fleet.round()
        reasons.append(fleet.journal.clusters()["home"].trouble)
        if len(reasons) == 3:  # the second visit has timed out, and one round has found it unfinished
            answers.set()
    fleet.kill()
    assert num_visits == 3
    assert set(reasons) == {"connection refused"}


def test_a_new_run_waits_for_an_own_cluster_out_of_reach_before_it_is_rented_for(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state", wait_s=300.0)
    fleet.world.out_of_reach.add("home")
    fleet.submit("one", files)
    fleet.round()
    assert "waits for home, which does not answer" in fleet.run("one").reason
    fleet.until(fleet.is_over)
    run = fleet.run("one")
    assert run.cluster == "cloud"
    assert run.started_at is not None
    assert run.started_at - run.submitted_at >= 300.0


def test_a_cluster_that_refuses_a_run_is_told_and_another_is_taken(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state")
    fleet.world.refuses["home"] = "its team has no such namespace"
    fleet.submit("one", files)
    fleet.until(fleet.is_over)
    assert fleet.run("one").cluster == "cloud"
    assert any("home refused it: its team has no such" in event.message for event in fleet.journal.events())


def test_a_cluster_of_which_only_ones_own_runs_may_be_seen_has_them_run_there(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state", wait_s=30.0)
    fleet.world.hidden.add("home")
    for name in ("one", "two"):
        fleet.submit(name, files, steps=20, expected_duration_s=200.0)
    fleet.until(fleet.is_over)
    assert [run.cluster for run in fleet.journal.runs()] == ["home", "home"]
    assert fleet.journal.clusters()["home"].trouble is None


def test_no_more_is_rented_than_is_allowed(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state", wait_s=10.0, most_cpus=8)
    for number in range(6):
        fleet.submit(f"run-{number}", files, steps=40, expected_duration_s=400.0)
    most = 0
    for _ in range(300):
        fleet.round()
        most = max(
            most, sum(run.cluster == "cloud" and run.stage is not FleetStage.ENDED for run in fleet.journal.runs())
        )
    assert most == 2
    assert fleet.is_over()
    # Nobody gave up its turn at home for nodes that it could not have.
    for run in fleet.journal.runs():
        said = [event.message.partition(",")[0] for event in fleet.journal.events() if event.uid == run.uid]
        after = [said[place + 1] for place, each in enumerate(said) if each.startswith("Leaving: moves to")]
        assert set(after) <= {"Placing: assigned to cloud"}, said


def test_a_stop_reaches_a_run_wherever_it_is(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state")
    fleet.submit("placed", files, steps=100)
    fleet.until(lambda: fleet.run("placed").phase is Phase.RUNNING)
    fleet.submit("queued", files)
    fleet.journal.stop("queued", fleet.world.now)
    fleet.journal.stop("placed", fleet.world.now)
    fleet.until(fleet.is_over)
    assert {run.phase for run in fleet.journal.runs()} == {Phase.STOPPED}
    assert "queued" not in fleet.world.done
    with pytest.raises(Conflict, match="placed is over already"):
        fleet.journal.stop("placed", fleet.world.now)


def test_what_somebody_deletes_in_its_cluster_is_over(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state")
    fleet.submit("one", files, steps=100)
    fleet.until(lambda: fleet.run("one").phase is Phase.RUNNING)
    fleet.world.runs["home"].clear()
    fleet.until(fleet.is_over)
    assert fleet.run("one").reason == "deleted in home"


def test_a_name_is_free_again_once_its_run_is_over(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state")
    fleet.submit("one", files)
    with pytest.raises(Conflict, match="fleet stop research one"):
        fleet.submit("one", files)
    fleet.until(fleet.is_over)
    fleet.submit("one", files)
    assert fleet.run("one").stage is FleetStage.QUEUED


def test_a_run_keeps_the_files_that_it_was_submitted_with(tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state")
    run = fleet.submit("one", files)
    (files / "train.py").write_text("print(2)\n")
    assert (fleet.journal.files_of(run.uid) / "train.py").read_text() == "print(1)\n"
    assert run.spec.workdir == "."


def test_one_controller_leads(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "state")
    assert not fleet.journal.has_controller()
    with fleet.journal.lock_controller():
        assert FleetJournal(fleet.journal.directory).has_controller()
        with (
            pytest.raises(Conflict, match="Another controller"),
            FleetJournal(fleet.journal.directory).lock_controller(),
        ):
            pass


def test_a_fleet_is_found_by_its_name(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "state")
    home = Home.open(tmp_path / "state")
    assert fleet_names(home) == ["research"]
    assert FleetJournal.open(home, "research").fleet() == fleet.journal.fleet()
    with pytest.raises(NotFound, match="there is: research"):
        FleetJournal.open(home, "other")


@pytest.mark.parametrize("seed", rounds(4, 100))
def test_no_death_of_the_controller_loses_or_doubles_a_run(seed: int, tmp_path: Path, files: Path) -> None:
    fleet = make_fleet(tmp_path / "state", wait_s=20.0)
    fleet.world.dies = random_deaths(seed, 0.08)
    for number in range(6):
        fleet.submit(f"run-{number}", files, steps=20, expected_duration_s=200.0)
    away = random_deaths(seed + 1, 0.05)

    def goes_on() -> bool:
        for cluster in ("home", "cloud"):
            if away():
                fleet.world.out_of_reach ^= {cluster}
        return fleet.is_over()

    fleet.until(goes_on, rounds=3_000)
    for run in fleet.journal.runs():
        assert run.phase is Phase.SUCCEEDED
        assert fleet.world.done[run.spec.name] == list(range(1, 21)), "a step was lost or done twice"
    copies = [each for runs in fleet.world.runs.values() for each in runs]
    assert len(copies) == 6
    assert all(each.intent is Intent.RUN for each in copies)
