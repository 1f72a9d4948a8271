"""Endpoints of this machine: a real supervisor, real servers, and what survives which death."""

import http.client
import os
import signal
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.endpoints import gateway_url
from fairlead.control.admission import admit
from fairlead.control.models import promote, push
from fairlead.errors import Conflict, NotFound
from fairlead.policy.kinds.serving import spec_of
from fairlead.runtime.podfiles import is_locked, read_json
from fairlead.specs.resources import Resources
from fairlead.specs.serving import Access, Canary, Scale, Serving
from fairlead.specs.training import Training
from fairlead.state.access_keys import new_key
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.snapshot import Intent, Phase, Workload
from tests.home import end_everything
from tests.waiting import until

SERVER = """
import os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/" or "FAILS" not in os.environ else 500)
        self.end_headers()
        self.wfile.write(os.environ["FAIRLEAD_REVISION"].encode())

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Server).serve_forever()
"""


class Desk:
    """A user at this machine with an endpoint."""

    def __init__(self, home: Path, workdir: Path) -> None:
        self.cluster = LocalCluster.open(home)
        self.workdir = workdir
        (workdir / "server.py").write_text(SERVER)

    def serve(self, **changes: Any) -> Workload[Serving]:
        serving = self.cluster.submit(self.spec(**changes))
        self.cluster.nudge()
        return serving

    def spec(self, **changes: Any) -> Serving:
        given = {
            "name": "hello", "run": f"{sys.executable} server.py", "workdir": str(self.workdir), "grace_s": 5.0,
            "resources": Resources(cpu_milli=50), **changes,
        }  # fmt: skip
        return Serving(**given)

    def now(self, serving: Workload[Serving]) -> Workload[Serving]:
        return self.cluster.get(serving.uid)

    def num_ready(self, serving: Workload[Serving]) -> int:
        return detail_of(self.now(serving)).ready

    def urls(self) -> list[str]:
        found = read_json(self.cluster.home.serving / "routes.json") or {"services": {}}
        (service,) = found["services"].values()
        return [each["url"] for revision in service["revisions"] for each in revision["replicas"]]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "work").mkdir()
    desk = Desk(tmp_path / "home", tmp_path / "work")
    yield desk
    desk.cluster.close()
    end_everything(tmp_path / "home")


def answer(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10.0) as reply:
        return str(reply.read().decode())


def test_replicas_serve_at_ports_of_their_own(desk: Desk) -> None:
    serving = desk.serve(replicas=2)
    until(lambda: desk.num_ready(serving) == 2)
    urls = desk.urls()
    assert len(set(urls)) == 2
    assert [answer(url) for url in urls] == ["r1", "r1"]


def test_a_replica_that_is_killed_leaves_the_routes_and_comes_back(desk: Desk) -> None:
    serving = desk.serve()
    until(lambda: desk.num_ready(serving) == 1)
    (replica,), before = desk.cluster.children(serving.uid), desk.urls()
    (pod,) = desk.cluster.pods(replica.uid)
    started = read_json(desk.cluster.home.pod(replica.uid, pod.uid) / "started.json") or {}
    os.kill(int(next(iter(started["pids"].values()))), signal.SIGKILL)
    until(lambda: desk.num_ready(serving) == 1 and desk.urls() not in ([], before))
    assert [answer(url) for url in desk.urls()] == ["r1"]
    (again,) = desk.cluster.children(serving.uid)
    assert (again.uid, again.status.attempt) == (replica.uid, 1)


def test_another_supervisor_goes_on_with_the_replicas_there_are(desk: Desk) -> None:
    serving = desk.serve()
    until(lambda: desk.num_ready(serving) == 1)
    before, pid = desk.urls(), desk.cluster.supervisor_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not desk.cluster.supervisor_alive())
    (desk.cluster.home.serving / "routes.json").unlink()
    desk.cluster.nudge()
    until(lambda: (desk.cluster.home.serving / "routes.json").exists() and desk.urls() == before)
    assert [answer(url) for url in before] == ["r1"]
    (replica,) = desk.cluster.children(serving.uid)
    assert replica.status.attempt == 0


def test_a_server_that_ends_well_by_itself_has_failed(desk: Desk) -> None:
    serving = desk.serve(run=f"{sys.executable} -c pass")
    until(lambda: any(child.status.failures.last is not None for child in desk.cluster.children(serving.uid)))
    (replica,) = desk.cluster.children(serving.uid)
    assert replica.status.failures.last is not None
    assert replica.status.failures.last.message == "its server ended by itself, with exit code 0"
    assert desk.num_ready(serving) == 0


def test_stopping_an_endpoint_stops_its_replicas(desk: Desk) -> None:
    serving = desk.serve(replicas=2)
    until(lambda: desk.num_ready(serving) == 2)
    desk.cluster.set_intent(serving.uid, Intent.STOP)
    desk.cluster.nudge()
    until(lambda: desk.now(serving).status.phase is Phase.STOPPED)
    assert all(child.status.phase is Phase.STOPPED for child in desk.cluster.children(serving.uid))
    until(lambda: (read_json(desk.cluster.home.serving / "routes.json") or {})["services"] == {})


def test_a_model_is_looked_up_when_an_endpoint_is_admitted(desk: Desk) -> None:
    (desk.workdir / "model.bin").write_text("weights")
    admitted = admit(desk.cluster, desk.spec(model="model.bin"), desk.workdir)
    assert admitted.spec.model == str(desk.workdir / "model.bin")


def test_a_version_at_a_stage_is_served_as_it_was_pushed(desk: Desk) -> None:
    source = desk.workdir / "model.bin"
    source.write_text("weights")
    push(desk.cluster, "churn", str(source))
    promote(desk.cluster, "churn@1", "production")
    source.write_text("others")
    admitted = admit(desk.cluster, desk.spec(model="churn@production"), desk.workdir)
    assert admitted.spec.model is not None
    assert Path(admitted.spec.model).read_text() == "weights"


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        ("other.bin", NotFound, "other.bin is not there"),
        ("s3://bucket/model", Conflict, "s3://bucket/model is not on this machine"),
        ("run://train@newest", NotFound, "'run://train@newest' is not a model"),
        ("run://train@best", NotFound, "The run train has no complete checkpoint"),
        ("churn@production", NotFound, "No model is named 'churn'"),
    ],
)
def test_a_model_that_is_not_there_is_refused(desk: Desk, model: str, error: type[Exception], says: str) -> None:
    desk.cluster.submit(Training(name="train", run="true", workdir=str(desk.workdir)))
    with pytest.raises(error, match=says):
        admit(desk.cluster, desk.spec(model=model), desk.workdir)


@pytest.mark.slow
def test_a_revision_keeps_its_code_also_when_it_comes_back(desk: Desk) -> None:
    def write(word: str) -> None:
        (desk.workdir / "server.py").write_text(SERVER.replace('os.environ["FAIRLEAD_REVISION"]', repr(word)))

    def says() -> list[str]:
        return [answer(url) for url in desk.urls()]

    write("old")
    serving = desk.serve()
    until(lambda: desk.num_ready(serving) == 1)
    assert says() == ["old"]
    (desk.workdir / "notes.txt").write_text("no code")
    (desk.workdir / "serve.yaml").write_text("kind: Serving\nname: s\nrun: serve\nreplicas: 1\n")
    assert desk.cluster.launch(desk.spec()).version == desk.now(serving).version, "nothing of its code has changed"
    write("new")
    desk.cluster.launch(desk.spec())
    until(lambda: detail_of(desk.now(serving)).serving == 2 and says() == ["new"])
    desk.cluster.launch(desk.spec(replicas=2))
    until(lambda: says() == ["new", "new"])
    write("newer, and not submitted")
    first = spec_of(detail_of(desk.now(serving)).revisions[0])
    desk.cluster.launch(first)
    until(lambda: detail_of(desk.now(serving)).serving == 1 and says() == ["old"])
    assert len(detail_of(desk.now(serving)).revisions) == 2


CANARY = Canary(steps=(0.25, 0.5), errors=0.05)


class Visitor:
    """A client who asks an endpoint through the gateway."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.answers: Counter[tuple[int, str]] = Counter()
        self.headers: dict[str, str] = {}

    def ask(self) -> None:
        self.asked()

    def asked(self) -> int:
        host = str(gateway_url(self.desk.cluster.home)).removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=30.0)
        connection.request("GET", "/hello/asked", headers=self.headers)
        reply = connection.getresponse()
        self.answers[reply.status, reply.read().decode()] += 1
        connection.close()
        return reply.status

    def ask_until(self, is_so: Callable[[], bool]) -> None:
        for _ in range(5_000):
            self.ask()
            if is_so():
                return
        raise AssertionError(f"still not so after {dict(self.answers)}")


@pytest.mark.slow
def test_a_good_canary_takes_over_and_a_bad_one_goes_whoever_is_killed_meanwhile(desk: Desk) -> None:
    serving, visitor = desk.serve(canary=CANARY), Visitor(desk)
    until(lambda: desk.num_ready(serving) == 1)

    desk.cluster.launch(desk.spec(canary=CANARY, env={"VERSION": "b"}))
    desk.cluster.nudge()
    until(lambda: detail_of(desk.now(serving)).canary is not None)
    visitor.ask_until(lambda: compared(desk, serving) >= 20)
    before, pid = compared(desk, serving), desk.cluster.supervisor_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.kill(int((desk.cluster.home.serving / "gateway.lock").read_text()), signal.SIGKILL)
    until(lambda: not desk.cluster.supervisor_alive())
    desk.cluster.nudge()
    until(lambda: is_locked(desk.cluster.home.serving / "gateway.lock"))
    visitor.ask_until(lambda: detail_of(desk.now(serving)).serving == 2)
    assert told(desk, serving)[-1].startswith("r2 is no worse than r1 by")
    assert before >= 20
    assert {status for status, _ in visitor.answers} == {200}
    assert visitor.answers[200, "r2"] >= before

    visitor.answers.clear()
    desk.cluster.launch(desk.spec(canary=CANARY, env={"FAILS": "1"}))
    desk.cluster.nudge()
    visitor.ask_until(lambda: detail_of(desk.now(serving)).revisions[-1].failed is not None)
    assert "only its own failed in" in told(desk, serving)[-1]
    until(lambda: len(desk.urls()) == 1)
    asked, failed = visitor.answers.total(), visitor.answers[500, "r3"]
    for _ in range(40):
        visitor.ask()
    assert visitor.answers[500, "r3"] - failed <= 8, "the gateway is told within moments"
    assert failed <= asked / 2


@pytest.mark.slow
def test_a_canary_that_is_never_ready_gets_no_request(desk: Desk) -> None:
    serving, visitor = desk.serve(canary=CANARY), Visitor(desk)
    until(lambda: desk.num_ready(serving) == 1)
    desk.cluster.launch(desk.spec(canary=CANARY, run=f"{sys.executable} -c pass", ready_within_s=2.0))
    desk.cluster.nudge()
    visitor.ask_until(lambda: detail_of(desk.now(serving)).revisions[-1].failed is not None)
    assert set(visitor.answers) == {(200, "r1")}
    assert detail_of(desk.now(serving)).target == 1


def test_what_was_measured_of_requests_bounds_how_many_may_be_there(desk: Desk) -> None:
    serving, visitor = desk.serve(most_replicas=2, scale=Scale(latency_s=2.0)), Visitor(desk)
    until(lambda: desk.num_ready(serving) == 1)
    visitor.ask_until(lambda: told_most_in_flight(desk) is not None)
    assert told_most_in_flight(desk) >= 4
    assert set(visitor.answers) == {(200, "r1")}


def test_an_endpoint_with_access_opens_to_a_key_as_long_as_there_is_one(desk: Desk) -> None:
    serving, visitor = desk.serve(access=Access(teams=("search",), requests_per_minute=10_000)), Visitor(desk)
    until(lambda: desk.num_ready(serving) == 1)
    visitor.headers = {"X-API-Key": "guessed"}
    until(lambda: visitor.asked() == 403)
    text, key = new_key("search", "ci", 0.0)
    _, other = new_key("ads", "ci", 0.0)
    for each in (key, other):
        desk.cluster.add_access_key(each)
    with pytest.raises(Conflict, match="Team search has a key ci"):
        desk.cluster.add_access_key(key)
    desk.cluster.nudge()
    visitor.headers = {"Authorization": f"Bearer {text}"}
    until(lambda: visitor.asked() == 200)
    state = b"".join(path.read_bytes() for path in desk.cluster.home.path.rglob("*") if path.is_file())
    assert key.sha256.encode() in state
    assert text.encode() not in state
    assert other.sha256 not in (desk.cluster.home.serving / "routes.json").read_text()
    desk.cluster.remove_access_key("search", "ci")
    with pytest.raises(NotFound, match="Team search has no key ci; it has: none"):
        desk.cluster.remove_access_key("search", "ci")
    desk.cluster.nudge()
    until(lambda: visitor.asked() == 403)


def test_endpoints_with_access_are_closed_while_the_keys_cannot_be_read(desk: Desk) -> None:
    text, key = new_key("default", "ci", 0.0)
    desk.cluster.add_access_key(key)
    serving, visitor = desk.serve(access=Access()), Visitor(desk)
    visitor.headers = {"X-API-Key": text}
    until(lambda: desk.num_ready(serving) == 1)
    until(lambda: visitor.asked() == 200)
    desk.cluster.home.access_keys.write_text("{")
    desk.cluster.nudge()
    until(lambda: visitor.asked() == 403)
    assert desk.num_ready(serving) == 1


def told_most_in_flight(desk: Desk) -> Any:
    desk.cluster.nudge()
    found = read_json(desk.cluster.home.serving / "routes.json") or {}
    return found["services"]["hello"]["most_in_flight"]


def compared(desk: Desk, serving: Workload[Serving]) -> int:
    trial = detail_of(desk.now(serving)).canary
    return 0 if trial is None else max((each.pairs for each in trial.seen.values()), default=0)


def told(desk: Desk, serving: Workload[Serving]) -> list[str]:
    return [event.reason.message for event in desk.cluster.events(serving.uid) if event.type.startswith("Canary")]
