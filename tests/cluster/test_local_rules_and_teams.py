"""What somebody may put into the state directory of one machine: Team documents, and the name of a policy."""

from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.home import Home
from fairlead.control.admission import admit
from fairlead.errors import Conflict, NotAllowed
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.team import Quota, Team
from fairlead.state.plan import Change, Plan
from fairlead.state.scheduling_policy import DEFAULT, POLICIES
from fairlead.state.snapshot import Completed, Phase
from tests.builders import node, status, training

VISION = Team(name="vision", guaranteed=Quota(cpu_milli=2000), quota=Quota(cpu_milli=4000))
TEXT = "kind: Team\nname: vision\nguaranteed: {cpu: 2}\nquota: {cpu: 4}\n"


def test_teams_and_what_runs_took_are_shown_to_the_loop_while_somebody_waits(tmp_path: Path) -> None:
    (tmp_path / "teams.yaml").write_text(TEXT)
    (tmp_path / "policy").write_text("shortest\n")
    cluster = LocalCluster(Home.open(tmp_path), is_loops=True)
    before = cluster.snapshot()
    assert (before.teams, before.completed, before.rules) == ((), (), DEFAULT)
    done = cluster.submit(training("done", team="vision"), environ={})
    ended = status(Phase.SUCCEEDED, started_at=100.0, finished_at=160.0)
    cluster.apply(Plan(changes=(Change(workload_uid=done.uid, version=done.version, status=ended),)))
    cluster.submit(training("waits"), environ={})
    snapshot = cluster.snapshot()
    assert snapshot.teams == (VISION,)
    assert snapshot.completed == (Completed(team="vision", name="done", took_s=60.0, at=160.0),)
    assert snapshot.rules == POLICIES["shortest"]
    cluster.close()


def test_a_team_has_no_more_objects_of_a_kind_than_it_may_finished_ones_included(tmp_path: Path) -> None:
    (tmp_path / "teams.yaml").write_text("kind: Team\nname: vision\nmax_objects: 2\n")
    cluster = LocalCluster(Home.open(tmp_path), is_loops=True)
    done = cluster.submit(training("done", team="vision"), environ={})
    ended = status(Phase.SUCCEEDED, started_at=100.0, finished_at=160.0)
    cluster.apply(Plan(changes=(Change(workload_uid=done.uid, version=done.version, status=ended),)))
    cluster.submit(training("waits", team="vision"), environ={})
    with pytest.raises(NotAllowed, match=r"more: the team vision has 2 objects .* and may have 2\. Delete some with"):
        cluster.submit(training("more", team="vision"), environ={})
    assert len(list(cluster.home.runs.iterdir())) == 2
    cluster.submit(training("more", team="others"), environ={})
    cluster.close()


def test_whoever_asks_what_would_happen_is_shown_them_while_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "teams.yaml").write_text(TEXT)
    (tmp_path / "policy").write_text("shortest")
    cluster = LocalCluster.open(tmp_path)
    assert (cluster.snapshot().teams, cluster.snapshot().rules) == ((VISION,), POLICIES["shortest"])
    cluster.close()


def test_a_run_that_would_share_gpus_is_refused_by_rules_that_share_none(tmp_path: Path) -> None:
    cluster = LocalCluster.open(tmp_path)
    cluster._node = replace(node("localhost", gpus=2), name="localhost")
    spec = training(run="true", resources=Resources(gpu=GpuRequest(), colocate=True))
    with pytest.raises(Conflict, match="by the policy `least-work`, and this machine uses another"):
        admit(cluster, spec, tmp_path)
    (tmp_path / "policy").write_text("least-work")
    assert admit(cluster, spec, tmp_path).spec.resources.colocate
    cluster.close()


@pytest.mark.parametrize("text", ["fastest", "", "default\nshortest"])
def test_a_policy_that_nobody_knows_is_told_and_the_last_good_one_stays_in_force(tmp_path: Path, text: str) -> None:
    loop = LocalCluster(Home.open(tmp_path), is_loops=True)
    loop.submit(training("waits"), environ={})
    (tmp_path / "policy").write_text("shortest")
    assert loop.snapshot().rules == POLICIES["shortest"]
    (tmp_path / "policy").write_text(text)
    assert loop.snapshot().rules == POLICIES["shortest"]
    loop.close()
    cluster = LocalCluster.open(tmp_path)
    told = cluster.unattended()
    assert told is not None
    assert "give one of fifo, backfill, " in told
    assert "Until then its last good version stays in force." in told
    assert cluster.snapshot().rules == POLICIES["shortest"]
    cluster.close()


MISTAKES = [
    ("kind: Team\nname: vision\nquotta: 3\n", ":3: quotta: unknown key; did you mean `quota`?"),
    ("name: a\nrun: x\n", "a is a Training; give Teams only there"),
    ("{", "not valid YAML"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_in_the_file_of_teams_is_told_and_the_last_good_ones_stay_in_force(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "teams.yaml").write_text(TEXT)
    loop = LocalCluster(Home.open(tmp_path), is_loops=True)
    loop.submit(training("waits"), environ={})
    assert loop.snapshot().teams == (VISION,)
    assert loop.unattended() is None
    (tmp_path / "teams.yaml").write_text(text)
    # Also for a supervisor that starts after the mistake was made, and for commands.
    for cluster in (loop, LocalCluster(Home.open(tmp_path), is_loops=True), LocalCluster.open(tmp_path)):
        assert cluster.snapshot().teams == (VISION,)
        (told,) = cluster.file_problems()
        assert message in told
        assert (
            told.endswith("Fix or remove the file. Until then its last good version stays in force.")
            or "only there" in told
        )
        assert cluster.unattended() == told
        cluster.close()
    (tmp_path / "teams.yaml").write_text(TEXT + "weight: 2\n")
    mended = LocalCluster(Home.open(tmp_path), is_loops=True)
    assert mended.snapshot().teams == (replace(VISION, weight=2),)
    assert mended.unattended() is None
    (tmp_path / "teams.yaml").unlink()
    assert mended.snapshot().teams == ()
    (tmp_path / "teams.yaml").write_text(text)
    assert mended.snapshot().teams == ()
    assert "Until then no team is described" in (mended.unattended() or "")
    mended.close()
