"""An endpoint at three sites of this machine, each with its own supervisor and gateway, and real requests."""

import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.endpoints import gateway_url
from fairlead.control.admission import admit
from fairlead.errors import NotFound
from fairlead.specs.resources import Resources
from fairlead.specs.serving import Serving
from fairlead.specs.serving_sites import ServingSite, Waves
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.snapshot import Intent, Workload
from tests.home import end_everything
from tests.waiting import until

NAMES = ("north", "south", "west")
SERVER = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["ANSWER"].encode())

assert os.environ["ANSWER"] != "broken"
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Server).serve_forever()
"""


class Centre:
    """The machine at which an endpoint is submitted, with the state directories of its sites."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.workdir = path / "work"
        self.workdir.mkdir()
        (self.workdir / "server.py").write_text(SERVER)
        for name in NAMES:
            (path / name).mkdir(mode=0o700)
        self.cluster = LocalCluster.open(path / "centre")

    def serve(self, answer: str, **changes: Any) -> Workload[Serving]:
        fields = {
            "name": "hello", "run": f"{sys.executable} server.py", "workdir": str(self.workdir), "grace_s": 2.0,
            "resources": Resources(cpu_milli=20), "env": {"ANSWER": answer}, "ready_within_s": 60.0,
            "sites": {name: ServingSite(home=str(self.path / name)) for name in NAMES},
            "waves": Waves(steps=("1",), deadline_s=20.0, min_share=0.5), **changes,
        }  # fmt: skip
        admitted = admit(self.cluster, Serving(**fields), self.workdir)
        return self.cluster.launch(admitted.spec, directory=admitted.directory)

    def now(self, serving: Workload[Serving]) -> Workload[Serving]:
        return self.cluster.get(serving.uid)

    def message(self, serving: Workload[Serving]) -> str:
        return self.now(serving).status.reason.message

    def events(self, serving: Workload[Serving]) -> list[str]:
        return [event.type for event in self.cluster.events(serving.uid)]

    def answer(self, name: str) -> str:
        """Return what the gateway of a site answers."""
        site = LocalCluster.open(self.path / name)
        try:
            url = gateway_url(site.home)
        finally:
            site.close()
        try:
            with urllib.request.urlopen(f"{url}/hello/", timeout=10.0) as reply:
                return str(reply.read().decode())
        except (urllib.error.URLError, OSError, ValueError) as error:
            return f"no answer: {error}"

    def answers(self) -> list[str]:
        return [self.answer(name) for name in NAMES]


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    centre = Centre(tmp_path)
    yield centre
    centre.cluster.close()
    for name in ("centre", *NAMES):
        end_everything(tmp_path / name)


@pytest.mark.long
def test_a_release_that_fails_at_its_first_site_returns_and_a_site_that_is_away_keeps_answering(centre: Centre) -> None:
    serving = centre.serve("one")

    def tell() -> object:
        return [centre.message(serving), centre.events(serving), centre.answers()]

    until(lambda: detail_of(centre.now(serving)).serving == 1, tell)
    assert centre.answers() == ["one"] * 3
    assert centre.events(serving)[-1] == "RevisionReady"

    # A release that never gets ready stops at the first site, whose endpoint goes on with the one before.
    centre.serve("broken", ready_within_s=10.0)
    until(lambda: "RevisionFailed" in centre.events(serving), tell)
    until(lambda: centre.message(serving).startswith("r1 serves at 3 of 3 sites; r2 was rolled back: north: "), tell)
    assert centre.answers() == ["one"] * 3

    # The link to a site breaks, and the centre's supervisor is killed: the site answers, and the others get the next.
    moved = centre.path / "west-away"
    (centre.path / "west").rename(moved)
    (centre.path / "west").write_text("no directory")
    pid = centre.cluster.supervisor_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not centre.cluster.supervisor_alive())
    centre.serve("three")
    until(lambda: detail_of(centre.now(serving)).serving == 3, tell)
    assert "r3 serves at 2 of 3 sites; away: west (r1)" in centre.message(serving)
    (centre.path / "west").unlink()
    moved.rename(centre.path / "west")
    assert centre.answers()[:2] == ["three"] * 2
    until(lambda: centre.answer("west") == "three", tell)
    until(lambda: "SiteReturned" in centre.events(serving), tell)

    centre.cluster.set_intent(serving.uid, Intent.DELETE)
    centre.cluster.nudge()
    until(lambda: serving.uid not in [run.uid for run in centre.cluster.workloads()], tell)
    for name in NAMES:
        site = LocalCluster.open(centre.path / name)
        assert site.workloads() == ()
        site.close()
    with pytest.raises(NotFound):
        centre.now(serving)
