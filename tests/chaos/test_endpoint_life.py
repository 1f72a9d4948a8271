"""Ten thousand requests at a steady rate through all that befalls an endpoint: each is answered once, and well.

It sleeps and wakes, a revision is promoted and a bad one rolled back, and replicas, gateway and supervisor are killed
at random. Each request has a number that its answer repeats, on connections that are kept: an answer that came twice
would be the next one's.
"""

import http.client
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead.cluster.local.endpoints import gateway_url
from fairlead.runtime.podfiles import read_json
from fairlead.specs.serving import Canary, Scale, Serving
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.snapshot import Workload
from tests.cluster.test_endpoints import Desk
from tests.home import end_everything
from tests.ports import free_port, listens
from tests.waiting import until

SERVER = """
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or every kept connection waits for acknowledgements, the gateway or not

    def do_GET(self):
        began = time.perf_counter()
        if self.path != "/":
            time.sleep(float(os.environ["TAKES_S"]))
        said = self.path.rpartition("/")[2].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.send_header("X-Took", str(time.perf_counter() - began))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Server).serve_forever()
"""
RATE, NUM_CLIENTS, PATIENCE_S = 100.0, 16, 60.0
BESIDE_RATE, NUM_BESIDE, NUM_BESIDE_CLIENTS = 25.0, 2_000, 4
"""Of the requests to a server of its own that nothing befalls: they show by how much the machine itself delays."""
AFTER_S = 1.0
"""For so long after a kill a request counts as one that the kill may have delayed."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that was answered, by the monotonic clock, and what it took beside the server's own time."""

    began: float
    ended: float
    added_ms: float


class Load:
    """Clients that ask at a steady rate together, each on a connection that it keeps as long as it lasts."""

    def __init__(self, url: str, *, rate: float = RATE, num_clients: int = NUM_CLIENTS) -> None:
        self.rate, self.num_clients = rate, num_clients
        host, _, self.path = url.removeprefix("http://").partition("/")
        self.host = host
        self.lock = threading.Lock()
        self.asked = 0
        self.wrong: list[str] = []
        self.answered: list[Answered] = []
        self.num_again = 0

    def run(self, num_requests: int, until_so: Callable[[], bool] | None = None) -> None:
        """Ask so many times, and on until something is so."""
        began, first = time.monotonic(), self.asked
        most, enough = first + num_requests, threading.Event()

        def client() -> None:
            connection = http.client.HTTPConnection(self.host, timeout=PATIENCE_S)
            while True:
                with self.lock:
                    if self.asked >= most and enough.is_set():
                        break
                    number = self.asked
                    self.asked += 1
                time.sleep(max(0.0, began + (number - first) / self.rate - time.monotonic()))
                connection = self._ask(connection, number)
            connection.close()

        clients = [threading.Thread(target=client) for _ in range(self.num_clients)]
        for each in clients:
            each.start()
        try:
            if until_so is not None:
                until(until_so, timeout_s=120.0)
        finally:
            enough.set()
        for each in clients:
            each.join(120.0)
            assert not each.is_alive()

    def _ask(self, connection: http.client.HTTPConnection, number: int) -> http.client.HTTPConnection:
        began = time.monotonic()
        for is_again in (False, True):
            try:
                connection.request("GET", f"/{self.path}{number}")
                reply = connection.getresponse()
                body = reply.read().decode()
                served_s = float(reply.getheader("X-Took") or 0.0)
            except (OSError, http.client.HTTPException) as error:
                # Nobody can keep a connection of a gateway that is killed: as every client does, once more.
                connection.close()
                connection = http.client.HTTPConnection(self.host, timeout=PATIENCE_S)
                body, status = type(error).__name__, 0
                self.num_again += not is_again
                continue
            status = reply.status
            break
        ended = time.monotonic()
        with self.lock:
            if (status, body) != (200, str(number)):
                self.wrong.append(f"{number}: {status} {body[:200]}")
            else:
                self.answered.append(Answered(began, ended, (ended - began - served_s) * 1e3))
        return connection


class Killer:
    """Kills a part of it every few seconds, drawn by a seed."""

    def __init__(self, desk: Desk, serving: Workload[Serving], seed: int) -> None:
        self._desk, self._serving, self._dice = desk, serving, random.Random(seed)
        self.killed: list[str] = []
        self.killed_at: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60.0)

    def _run(self) -> None:
        from fairlead.cluster.local.cluster import LocalCluster

        cluster = LocalCluster.open(self._desk.cluster.home.path)
        while not self._stop.wait(self._dice.uniform(3.0, 6.0)):
            what = self._dice.choice(("replica", "gateway", "supervisor"))
            pid: int | None = None
            if what == "supervisor":
                pid = cluster.supervisor_pid()
            elif what == "gateway":
                with suppress(OSError, ValueError):
                    pid = int((cluster.home.serving / "gateway.lock").read_text())
            else:
                replicas = cluster.children(self._serving.uid)
                pods = cluster.pods(self._dice.choice(replicas).uid) if len(replicas) > 1 else ()
                started = (
                    read_json(cluster.home.pod(pods[-1].workload_uid, pods[-1].uid) / "started.json") if pods else None
                )
                pid = None if not started else int(next(iter(started["pids"].values())))
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self.killed.append(what)
                self.killed_at.append(time.monotonic())
            cluster.nudge()
        cluster.close()


class Routes:
    """Follows the gateway's routes: when there was no replica to send a request to, as before a cold start ends."""

    def __init__(self, desk: Desk) -> None:
        self._path = desk.cluster.home.serving / "routes.json"
        self._spans: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Routes":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60.0)

    def was_cold(self, asked: Answered) -> bool:
        return any(began < asked.ended and asked.began < ended for began, ended in self._spans)

    def _run(self) -> None:
        since: float | None = None
        while not self._stop.wait(0.02):
            (service,) = (read_json(self._path) or {"services": {}})["services"].values()
            is_cold = not any(revision["replicas"] for revision in service["revisions"])
            now = time.monotonic()
            if is_cold and since is None:
                since = now - 0.02
            elif not is_cold and since is not None:
                self._spans.append((since, now))
                since = None
        if since is not None:
            self._spans.append((since, time.monotonic()))


def p99_of(asked: list[Answered]) -> float:
    return statistics.quantiles([each.added_ms for each in asked], n=100)[98] if len(asked) > 1 else math.nan


def tell_added(
    asked: list[Answered], routes: Routes, killer: Killer, straight_ms: float, beside: list[Answered]
) -> None:
    """Print how long requests took beside the server's own time, outside of cold starts, and what delayed them."""
    warm = [each for each in asked if not routes.was_cold(each)]
    after: dict[str, list[Answered]] = {"gateway": [], "replica": [], "supervisor": [], "none of them": []}
    kills = list(zip(killer.killed_at, killer.killed, strict=True))
    for each in warm:
        near = [what for at, what in kills if each.began - AFTER_S < at < each.ended]
        after[near[-1] if near else "none of them"].append(each)
    told = ", ".join(f"{what} {p99_of(found):.1f} ms of {len(found)}" for what, found in after.items())
    print(
        f"added p99 while kills go on, outside of cold starts: {p99_of(warm):.1f} ms of {len(warm)} of {len(asked)} "
        f"requests (straight to a replica, without kills: {straight_ms:.1f} ms; to a server that nothing befalls, at "
        f"the same time: {p99_of(beside):.1f} ms of {len(beside)}); within {AFTER_S:g} s of a kill of a: {told}",
        file=sys.stderr,
    )


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Load]:
    """Requests to a server that is no endpoint's, which begin when the thread of their clients does."""
    script = tmp_path / "beside.py"
    script.write_text(SERVER)
    port = free_port()
    server = subprocess.Popen([sys.executable, script], env={**os.environ, "PORT": str(port), "TAKES_S": "0.005"})
    until(lambda: listens(port))
    yield Load(f"http://127.0.0.1:{port}/", rate=BESIDE_RATE, num_clients=NUM_BESIDE_CLIENTS)
    server.kill()
    server.wait()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "work").mkdir()
    desk = Desk(tmp_path / "home", tmp_path / "work")
    (tmp_path / "work" / "server.py").write_text(SERVER)
    yield desk
    desk.cluster.close()
    end_everything(tmp_path / "home")


def given(takes_s: float) -> dict[str, object]:
    return {
        "env": {"TAKES_S": str(takes_s)}, "replicas": 0, "most_replicas": 4, "idempotent": True, "max_queue": 5_000,
        "scale": Scale(concurrency=0.5, window_s=5.0, idle_s=4.0),
        "canary": Canary(steps=(0.5,), errors=0.2, latency_s=0.5, slow=0.2, within_s=120.0),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
def test_ten_thousand_requests_through_all_that_befalls_an_endpoint_are_each_answered_once(
    desk: Desk, beside: Load
) -> None:
    serving = desk.serve(**given(0.005))
    until(lambda: desk.num_ready(serving) >= 1 and (desk.cluster.home.serving / "demand.json").exists())
    url = gateway_url(desk.cluster.home)
    assert url is not None
    load = Load(f"{url}/hello/")
    load.run(500)
    direct = Load(f"{desk.urls()[0]}/")
    load.answered.clear()
    for _ in range(4):  # in turns, once it has its replicas
        for each in (load, direct):
            each.run(300)
    straight_ms = p99_of(direct.answered)
    through_ms = p99_of(load.answered)
    print(f"p99 beside the server's time: {through_ms:.1f} ms, straight {straight_ms:.1f} ms", file=sys.stderr)
    load.answered.clear()
    assert direct.wrong == []
    until(lambda: not desk.cluster.children(serving.uid), timeout_s=90.0)
    asking_beside = threading.Thread(target=beside.run, args=(NUM_BESIDE,))
    asking_beside.start()
    with Routes(desk) as routes, Killer(desk, serving, 17) as killer:
        load.run(2_500)

        def change(takes_s: float) -> None:
            desk.cluster.launch(desk.spec(**given(takes_s)))
            desk.cluster.nudge()

        change(0.006)
        load.run(3_000, lambda: detail_of(desk.now(serving)).serving == 2)
        change(0.7)
        load.run(3_000, lambda: any(each.failed for each in detail_of(desk.now(serving)).revisions))
        load.run(max(500, 10_000 - load.asked))
    asking_beside.join()
    assert beside.wrong == []
    tell_added(load.answered, routes, killer, straight_ms, beside.answered)
    print(f"killed: {killer.killed}; asked again by clients: {load.num_again}", file=sys.stderr)
    assert load.wrong == []
    assert load.asked >= 10_000
    assert {"replica", "gateway", "supervisor"} <= set(killer.killed)
    told = [each.type for each in desk.cluster.events(serving.uid)]
    assert "CanaryPromoted" in told
    assert "CanaryRolledBack" in told
    assert load.num_again <= 20 * killer.killed.count("gateway"), "the gateway answers, and not the client's second try"
