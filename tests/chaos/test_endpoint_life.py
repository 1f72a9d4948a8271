"""Ten thousand requests at a steady rate through all that befalls an endpoint: each is answered once, and well.

It sleeps and wakes, a revision is promoted and a bad one rolled back, and replicas, gateway and supervisor are killed
at random. Each request has a number that its answer repeats, on connections that are kept: an answer that came twice
would be the next one's.
"""

import http.client
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.cluster.local.endpoints import gateway_url
from fairlead.policy.kinds.serving import detail_of
from fairlead.runtime.podfiles import read_json
from fairlead.specs.serving import Canary, Scale, Serving
from fairlead.state.snapshot import Workload
from tests.cluster.test_endpoints import Desk
from tests.home import end_everything
from tests.waiting import until

SERVER = """
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path != "/":
            time.sleep(float(os.environ["TAKES_S"]))
        said = self.path.rpartition("/")[2].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Server).serve_forever()
"""
RATE, NUM_CLIENTS, PATIENCE_S = 100.0, 16, 60.0


class Load:
    """Clients that ask at a steady rate together, each on a connection that it keeps as long as it lasts."""

    def __init__(self, url: str) -> None:
        host, _, self.path = url.removeprefix("http://").partition("/")
        self.host = host
        self.lock = threading.Lock()
        self.asked = 0
        self.wrong: list[str] = []
        self.took_s: list[float] = []
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
                time.sleep(max(0.0, began + (number - first) / RATE - time.monotonic()))
                connection = self._ask(connection, number)
            connection.close()

        clients = [threading.Thread(target=client) for _ in range(NUM_CLIENTS)]
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
            except (OSError, http.client.HTTPException) as error:
                # Nobody can keep a connection of a gateway that is killed: as every client does, once more.
                connection.close()
                connection = http.client.HTTPConnection(self.host, timeout=PATIENCE_S)
                body, status = type(error).__name__, 0
                self.num_again += not is_again
                continue
            status = reply.status
            break
        with self.lock:
            self.took_s.append(time.monotonic() - began)
            if (status, body) != (200, str(number)):
                self.wrong.append(f"{number}: {status} {body[:200]}")
        return connection


class Killer:
    """Kills a part of it every few seconds, drawn by a seed."""

    def __init__(self, desk: Desk, serving: Workload[Serving], seed: int) -> None:
        self._desk, self._serving, self._dice = desk, serving, random.Random(seed)
        self.killed: list[str] = []
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
            cluster.nudge()
        cluster.close()


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
def test_ten_thousand_requests_through_all_that_befalls_an_endpoint_are_each_answered_once(desk: Desk) -> None:
    serving = desk.serve(**given(0.005))
    until(lambda: desk.num_ready(serving) >= 1 and (desk.cluster.home.serving / "demand.json").exists())
    url = gateway_url(desk.cluster.home)
    assert url is not None
    load = Load(f"{url}/hello/")
    load.run(500)
    direct, calm, straight = Load(f"{desk.urls()[0]}/"), list[float](), list[float]()
    for _ in range(4):  # in turns, once it has its replicas
        for each, took_s in ((load, calm), (direct, straight)):
            each.took_s.clear()
            each.run(300)
            took_s += each.took_s
    p99 = [statistics.quantiles(each, n=100)[98] * 1000 for each in (calm, straight)]
    print(f"p99 through the gateway {p99[0]:.1f} ms, straight to a replica {p99[1]:.1f} ms", file=sys.stderr)
    assert direct.wrong == []
    until(lambda: not desk.cluster.children(serving.uid), timeout_s=90.0)
    with Killer(desk, serving, 17) as killer:
        load.run(2_500)

        def change(takes_s: float) -> None:
            desk.cluster.launch(desk.spec(**given(takes_s)))
            desk.cluster.nudge()

        change(0.006)
        load.run(3_000, lambda: detail_of(desk.now(serving)).serving == 2)
        change(0.7)
        load.run(3_000, lambda: any(each.failed for each in detail_of(desk.now(serving)).revisions))
        load.run(max(500, 10_000 - load.asked))
    print(f"killed: {killer.killed}; asked again by clients: {load.num_again}", file=sys.stderr)
    assert load.wrong == []
    assert load.asked >= 10_000
    assert {"replica", "gateway", "supervisor"} <= set(killer.killed)
    told = [each.type for each in desk.cluster.events(serving.uid)]
    assert "CanaryPromoted" in told
    assert "CanaryRolledBack" in told
    assert load.num_again <= 20 * killer.killed.count("gateway"), "the gateway answers, and not the client's second try"
