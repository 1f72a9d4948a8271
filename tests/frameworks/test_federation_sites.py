"""A federation whose sites are clusters of their own trains as under Flower alone, through faults, and shares no data.

`pytest -m frameworks` runs these; the first time makes an environment with Flower and scikit-learn.
"""

import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from fairlead.cli.federated import crossed_bytes
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.models import resolve
from fairlead.control.models import push
from fairlead.policy.kinds.federation import detail_of
from fairlead.specs.federation import Federation
from fairlead.state.snapshot import Intent, Phase, Workload
from tests.frameworks.environments import interpreter_with
from tests.frameworks.test_federation import APP, MARK, RUN_TIMEOUT_S, SITES, parameters, under_flower_alone
from tests.home import end_everything
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.frameworks, pytest.mark.timeout(1800)]


class Centre:
    """The machine at which a federation is submitted, with the state directories and the data of its sites."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.programs = interpreter_with("flower").parent
        self.work = path / "work"
        self.work.mkdir()
        for name in SITES:
            (path / name / "home").mkdir(mode=0o700, parents=True)
            (path / name / "data").mkdir()
            (path / name / "data" / "mark").write_bytes(MARK)
        self.cluster = LocalCluster.open(path / "centre")
        self.port = free_port()

    def submit(self, rounds: int, others: str = "") -> str:
        """Submit a federation by the command line, and return its uid."""
        sites = "".join(
            f"  {name}: {{home: {self.path / name / 'home'}, resources: {{cpu: 0.1}}, "
            f"data: {self.path / name / 'data'}}}\n"
            for name in SITES
        )
        (self.work / "federation.yaml").write_text(
            f"kind: Federation\nname: digits\napp: {APP}\naddress: localhost:{self.port}\nresources: {{cpu: 0.1}}\n"
            f"rounds: {rounds}\nsites:\n{sites}{others}"
        )
        env = {
            **os.environ, "FAIRLEAD_HOME": str(self.path / "centre"), "DIGITS_RESULT": str(self.path / "ours.npz"),
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        argv = [str(Path(sys.executable).with_name("fairlead")), "run", "federation.yaml", "--detach"]
        subprocess.run(argv, cwd=self.work, env=env, check=True, timeout=120)
        return self.cluster.find("digits").uid

    def message(self, uid: str) -> str:
        return self.cluster.get(uid).status.reason.message

    def rounds(self, uid: str) -> int:
        return detail_of(cast("Workload[Federation]", self.cluster.get(uid))).round

    def events(self, uid: str) -> list[str]:
        return [f"{event.type}: {event.reason.message}" for event in self.cluster.events(uid)]

    def runs(self, name: str) -> dict[str, Phase]:
        """Return the runs in the cluster of a site, by name."""
        site = LocalCluster.open(self.path / name / "home")
        try:
            return {run.spec.name: run.status.phase for run in site.workloads()}
        finally:
            site.close()

    def cut(self, name: str) -> None:
        """Let a site not answer, in whose place a file keeps a visit under way from making a new one."""
        home = self.path / name / "home"
        home.rename(self.path / name / "away")
        home.write_text("no directory")

    def mend(self, name: str) -> None:
        home = self.path / name / "home"
        home.unlink()
        (self.path / name / "away").rename(home)

    def server_files(self) -> Path:
        return self.cluster.home.run(self.cluster.find("digits-server").uid) / "files" / "federation"


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    centre = Centre(tmp_path)
    yield centre
    centre.cluster.close()
    end_everything(tmp_path / "centre")
    for name in SITES:
        end_everything(tmp_path / name / "home")


def test_three_clusters_train_to_the_parameters_of_flower_alone_and_no_data_leaves_a_site(centre: Centre) -> None:
    uid = centre.submit(rounds=3)
    until(lambda: centre.cluster.get(uid).status.phase.is_final, lambda: centre.message(uid), timeout_s=RUN_TIMEOUT_S)
    assert centre.cluster.get(uid).status.phase is Phase.SUCCEEDED, centre.message(uid)
    assert "3 of 3 rounds done" in centre.message(uid)
    assert {run.spec.name for run in centre.cluster.workloads()} == {"digits", "digits-server"}
    assert [centre.runs(name) for name in SITES] == [{f"digits-{name}": Phase.STOPPED} for name in SITES]
    under_flower_alone(centre.path, centre.programs, centre.path / "alone.npz")
    for ours, alone in zip(parameters(centre.path / "ours.npz"), parameters(centre.path / "alone.npz"), strict=True):
        assert ours.tobytes() == alone.tobytes()
    crossed = crossed_bytes(centre.cluster, centre.cluster.get(uid))
    assert {number: sorted(by_site) for number, by_site in crossed.items()} == dict.fromkeys((1, 2, 3), sorted(SITES))
    sizes = {tuple(ways.values()) for by_site in crossed.values() for ways in by_site.values()}
    assert len(sizes) == 1, "a site gets the model and sends one"
    version, _ = push(centre.cluster, "digits", "digits")
    with np.load(resolve(centre.cluster, str(version)).path) as stored:
        own = [stored[name].tobytes() for name in stored.files]
    assert own == [part.tobytes() for part in parameters(centre.path / "ours.npz")]
    marked = [path for path in centre.path.rglob("*") if path.is_file() and MARK in path.read_bytes()]
    assert sorted(marked) == sorted(centre.path / name / "data" / "mark" for name in SITES)
    keys = [path for path in centre.path.rglob("site.key") if path.is_file()]
    assert sorted(path.relative_to(centre.path).parts[0] for path in keys) == sorted(SITES)
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}

    centre.cluster.set_intent(uid, Intent.DELETE)
    centre.cluster.nudge()
    until(lambda: centre.cluster.workloads() == (), lambda: centre.message(uid))
    assert [centre.runs(name) for name in SITES] == [{}] * 3


def test_rounds_go_on_without_a_site_that_is_away_and_a_stopped_client_is_started_again(centre: Centre) -> None:
    uid = centre.submit(rounds=500, others="min_sites: 2\ndeadline: 2m\n")

    def state() -> object:
        return centre.message(uid), centre.events(uid)[-5:]

    until(lambda: centre.rounds(uid) >= 1, state, timeout_s=RUN_TIMEOUT_S)
    files = centre.server_files()
    keys = json.loads((files / "address.json").read_text())["keys"]
    assert sorted(keys) == sorted(SITES)

    # The server's other calls, by which anybody may register a site, and calls of a stranger do not get through.
    context = ssl.create_default_context(cafile=str(files / "ca.crt"))
    for path, code in (("/v1/control/register-node", 404), ("/v1/fleet/activate-node", 401)):
        request = urllib.request.Request(f"https://localhost:{centre.port}{path}", data=b"", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60.0, context=context)
        assert refused.value.code == code
        refused.value.close()

    # Somebody stops the client at its site, and the link to another site breaks.
    site = LocalCluster.open(centre.path / "south" / "home")
    (stopped,) = site.workloads()
    site.set_intent(stopped.uid, Intent.STOP)
    site.nudge()
    centre.cut("west")
    until(lambda: any("SiteLeft" in event and "west is away" in event for event in centre.events(uid)), state)
    centre.mend("west")
    until(lambda: [run.uid for run in site.workloads()] not in ([stopped.uid], []), state)
    site.close()
    until(lambda: "all 3 sites take part" in centre.message(uid), state, timeout_s=RUN_TIMEOUT_S)
    reached = centre.rounds(uid)
    until(lambda: centre.rounds(uid) >= reached + 2, state, timeout_s=RUN_TIMEOUT_S)
    renewed = json.loads((files / "address.json").read_text())["keys"]
    assert renewed["south"] != keys["south"], "the new run has a key of its own"
    assert renewed["north"] == keys["north"]
    assert sorted(json.loads((files / "nodes.json").read_text()).values()) == sorted(SITES), "its old key is revoked"

    # A stop waits for a site that is away no longer than the deadline, and says that its client stays.
    centre.cut("west")
    until(lambda: "west is away" in centre.message(uid), state)
    centre.cluster.set_intent(uid, Intent.STOP)
    centre.cluster.nudge()
    until(lambda: centre.cluster.get(uid).status.phase is Phase.STOPPED, state, timeout_s=RUN_TIMEOUT_S)
    assert centre.message(uid) == "stopped on request; west did not answer and keeps its client"
    centre.mend("west")
    assert set(centre.runs("south").values()) == {Phase.STOPPED}
    assert centre.runs("west") == {"digits-west": Phase.RUNNING}
    site = LocalCluster.open(centre.path / "west" / "home")
    site.set_intent(site.find("digits-west").uid, Intent.DELETE)
    site.nudge()
    until(lambda: site.workloads() == (), site.workloads)
    site.close()
