"""An endpoint under a steady load whose replicas, gateway and supervisor are killed: every request is answered."""

import http.client
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.cluster.local.endpoints import gateway_url
from fairlead.runtime.podfiles import read_json
from fairlead.specs.serving import Serving
from fairlead.state.snapshot import Workload
from tests.cluster.test_endpoints import Desk
from tests.home import end_everything
from tests.waiting import until

KILLS = ("replica", "gateway", "supervisor", "replica")
PATIENCE_S = 30.0


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "work").mkdir()
    desk = Desk(tmp_path / "home", tmp_path / "work")
    yield desk
    desk.cluster.close()
    end_everything(tmp_path / "home")


class Load:
    """Requests at a steady rate, each on a connection of its own.

    A connection that broke before any answer is tried once more, as every client does with a GET: nobody can keep a
    connection of a gateway that is killed.
    """

    def __init__(self, url: str, num_requests: int, rate: float) -> None:
        self._num_requests = num_requests
        self._rate = rate
        host, _, self.path = url.removeprefix("http://").partition("/")
        self.host = host
        self.statuses: list[int | str] = []
        self.num_again = 0
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        """Send all of them, and wait for the answers."""
        began = time.monotonic()
        for number in range(self._num_requests):
            time.sleep(max(0.0, began + number / self._rate - time.monotonic()))
            thread = threading.Thread(target=self._ask)
            thread.start()
            self._threads.append(thread)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _ask(self) -> None:
        found = self._once()
        if isinstance(found, str):
            self.num_again += 1
            found = self._once()
        self.statuses.append(found)

    def _once(self) -> int | str:
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE_S)
        try:
            connection.request("GET", f"/{self.path}")
            reply = connection.getresponse()
            reply.read()
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()
        return reply.status


def kill(desk: Desk, serving: Workload[Serving], what: str, dice: random.Random) -> None:
    home = desk.cluster.home
    if what == "supervisor":
        pid = desk.cluster.supervisor_pid()
    elif what == "gateway":
        pid = int((home.serving / "gateway.lock").read_text())
    else:
        # One of two, so that there is another to go to.
        until(lambda: desk.num_ready(serving) == 2)
        replica = dice.choice(desk.cluster.children(serving.uid))
        pod = desk.cluster.pods(replica.uid)[-1]
        started = read_json(home.pod(replica.uid, pod.uid) / "started.json") or {}
        pid = int(next(iter(started["pids"].values())))
    assert pid is not None
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_requests", "rate", "kills"), [(400, 40, KILLS), pytest.param(10_000, 100, KILLS * 5, marks=pytest.mark.long)]
)
def test_no_request_fails_while_replicas_gateway_and_supervisor_are_killed(
    desk: Desk, num_requests: int, rate: float, kills: tuple[str, ...]
) -> None:
    serving = desk.serve(replicas=2, idempotent=True)
    until(lambda: desk.num_ready(serving) == 2 and (desk.cluster.home.serving / "demand.json").exists())
    url = gateway_url(desk.cluster.home)
    assert url is not None
    load, dice = Load(f"{url}/hello/", num_requests, rate), random.Random(17)
    sending = threading.Thread(target=load.run)
    sending.start()
    for what in kills:
        time.sleep(num_requests / rate / (len(kills) + 1))
        kill(desk, serving, what, dice)
        desk.cluster.nudge()
    sending.join(num_requests / rate + PATIENCE_S)
    assert not sending.is_alive()
    assert load.statuses == [200] * num_requests
    assert load.num_again <= 40, "the gateway answers, and not the client's second try"
