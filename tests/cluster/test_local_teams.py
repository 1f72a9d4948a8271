"""Team documents in the state directory of one machine."""

from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.errors import ClusterError
from fairlead.specs.team import Quota, Team
from fairlead.state.plan import Change, Plan
from fairlead.state.snapshot import Completed, Phase
from tests.builders import status, training


def test_teams_and_what_runs_took_are_shown_while_somebody_waits(tmp_path: Path) -> None:
    (tmp_path / "teams.yaml").write_text("kind: Team\nname: vision\nguaranteed: {cpu: 2}\nquota: {cpu: 4}\n")
    cluster = LocalCluster.open(tmp_path)
    before = cluster.snapshot()
    assert (before.teams, before.completed) == ((), ())
    done = cluster.submit(training("done", team="vision"), environ={})
    ended = status(Phase.SUCCEEDED, started_at=100.0, finished_at=160.0)
    cluster.apply(Plan(changes=(Change(workload_uid=done.uid, version=done.version, status=ended),)))
    cluster.submit(training("waits"), environ={})
    snapshot = cluster.snapshot()
    vision = Team(name="vision", guaranteed=Quota(cpu_milli=2000), quota=Quota(cpu_milli=4000))
    assert snapshot.teams == (vision,)
    assert snapshot.completed == (Completed(team="vision", name="done", took_s=60.0),)
    cluster.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Team\nname: a\nquotta: 3\n", r":3: quotta: unknown key; .* until then nothing is started"),
        ("name: a\nrun: x\n", "a is a Training; give Teams only there"),
    ],
)
def test_a_mistake_in_the_file_is_told_and_nothing_is_decided_on_it(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "teams.yaml").write_text(text)
    cluster = LocalCluster.open(tmp_path)
    cluster.submit(training("waits"), environ={})
    with pytest.raises(ClusterError, match=message):
        cluster.snapshot()
    cluster.close()
