"""haproxy before the door: what it may pass on, how it follows what changes, and that nothing is lost when it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.gateway.access_log import AccessLogEntry
from fairlead.gateway.proxying.eligibility import ASLEEP, held_because
from fairlead.gateway.proxying.proxy_log import ProxiedReplica, ProxiedRequests
from fairlead.gateway.routes import Backend, CanaryRoute, RevisionRoute, RouteKey, ServiceRoute
from fairlead.gateway.services import RoutedService, UpstreamReplica
from tests.debian import haproxy
from tests.gateway.parts import LIMIT_S, Door, Replica, revision, service
from tests.waiting import until

Start = Callable[..., subprocess.Popen[bytes]]
ONE = RevisionRoute("r1", 1, False, (Backend("u-0", "127.0.0.1", 1),))
ROUTE = ServiceRoute("m", "/m", (), None, 60.0, False, None, 100, (ONE,), None)


@pytest.mark.parametrize(
    ("route", "why"),
    [
        (ROUTE, None),
        (replace(ROUTE, keys=(RouteKey("0" * 64, "t"),)), "`access`"),
        (replace(ROUTE, keys=()), "`access`"),
        (replace(ROUTE, idempotent=True), "`idempotent`"),
        (replace(ROUTE, by_prefix=True), "`routing: prefix`"),
        (replace(ROUTE, max_concurrency=1), "`max_concurrency`"),
        (replace(ROUTE, most_in_flight=9), "`scale.shed`"),
        (replace(ROUTE, canary=CanaryRoute("t")), "pair by pair"),
        (replace(ROUTE, revisions=()), ASLEEP),
        (replace(ROUTE, revisions=(replace(ONE, replicas=()),)), ASLEEP),
        (replace(ROUTE, revisions=(ONE, replace(ONE, name="r2", shadow=True))), "shadow"),
        (replace(ROUTE, revisions=(ONE, replace(ONE, name="r2", weight=3))), "shares"),
        (replace(ROUTE, revisions=(ONE, replace(ONE, name="r2", weight=0))), "shares"),
        (replace(ROUTE, revisions=(ONE, replace(ONE, name="r2"))), None),
    ],
)
def test_what_needs_a_decision_for_each_request_is_held_and_says_why(route: ServiceRoute, why: str | None) -> None:
    told = held_because(route)
    assert (told is None) if why is None else (told is not None and why in told)


def test_lines_of_its_log_are_counted_as_requests_however_they_are_cut() -> None:
    entries: list[AccessLogEntry] = []
    unread: list[int] = []
    counted = ProxiedRequests(entries.append, unread.append)
    m: RoutedService[Any] = RoutedService(ROUTE)
    servers = {"s1": ProxiedReplica(UpstreamReplica(ONE.replicas[0]), "r1")}
    lines = (
        b"b1 s1 200 1700000000000000 1700000000004000 5 22 300 2 0 ---- 1.2.3.4 POST id-1 /m/a#22b\n"
        b"b1 s1 502 1700000001000000 1700000001001000 - - 90 1 +2 SH-- 1.2.3.4 GET id-2 /m/x\n"
        b"b1 s1 -1 1700000002000000 1700000002001000 - - 0 1 0 CH-- 1.2.3.4 GET id-3 /m/x\n"
        b"b1 gateway 200 1700000002000000 1700000002001000 - - 0 1 0 ---- 1.2.3.4 GET id-4 /m/x\n"
        b"f <NOSRV> 400 - 1700000002001000 - - 0 0 0 PR-- 1.2.3.4 <BADREQ> - <BADREQ>\n"
        b"half a line\n"
    )
    for at in range(0, len(lines), 7):
        counted.take(lines[at : at + 7], {"b1": m}, servers, 1.0)
    first, second, third, unknown = entries
    assert (first.path, first.seconds, first.bytes_in, first.bytes_out, first.tries) == ('/m/a"b', 0.004, 5, 22, 1)
    assert (second.status, second.tries) == (502, 3)
    assert second.error == "replica u-0 ended the connection without an answer"
    assert (third.status, third.error, unknown.status, unread) == (499, "the client went away", 400, [400])
    assert m.metrics.codes == {("r1", 200): 1, ("r1", 502): 1, ("r1", 499): 1}
    assert (m.metrics.revision("r1").requests, m.metrics.revision("r1").errors) == (2, 1)
    assert [interval[3] for interval in m.metrics.intervals] == [pytest.approx(0.002 + 0.001 + 0.001)]
    assert (counted.ended["m"], counted.malformed) == (3, 1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts gateways with haproxy, which end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "fairlead.gateway", "--directory", str(tmp_path), "--port", "0", *arguments]
        started.append(subprocess.Popen([*argv, "--haproxy", str(haproxy())], stderr=subprocess.PIPE))
        return started[-1]

    yield begin
    for each in started:
        each.kill()
        each.communicate(timeout=LIMIT_S)


def proxies(gateway: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes of haproxy of a gateway."""
    return psutil.Process(gateway.pid).children(recursive=True)


@pytest.mark.slow
def test_a_replica_that_is_killed_costs_no_request_and_one_that_follows_is_used(start: Start, tmp_path: Path) -> None:
    first, second = Replica("first"), Replica("second")
    door = Door(tmp_path)
    door.write_routes({"m": service(first)})
    start()
    try:
        door.wait_until_open()
        door.wait_until_told()
        assert door.ask().json()["replica"] == "first"
        first.end()
        waiting = [door.ask_beside(headers={"X-Forwarded-For": "9.9.9.9"}) for _ in range(3)]
        until(lambda: door.demand()["services"].get("m", {}).get("queued") == 3, "three at the door", timeout_s=LIMIT_S)
        door.write_routes({"m": service(second)})
        for each in waiting:
            told = each.answer().json()
            assert (told["replica"], told["path"]) == ("second", "/echo")
            assert told["headers"]["x-forwarded-for"] == "9.9.9.9, 127.0.0.1"
            assert told["headers"]["x-forwarded-prefix"] == "/m"
        until(lambda: door.counted("m", "r1") == 4, "four requests", timeout_s=LIMIT_S)
    finally:
        first.end()
        second.end()


@pytest.mark.slow
def test_when_haproxy_is_killed_the_door_answers_until_another_runs(start: Start, tmp_path: Path) -> None:
    replica = Replica("r")
    door = Door(tmp_path)
    door.write_routes({"m": service(replica)})
    gateway = start()
    try:
        door.wait_until_open()
        door.wait_until_told()
        (before,) = proxies(gateway)
        before.kill()
        assert [door.ask().status for _ in range(20)] == [200] * 20
        until(lambda: [each.pid for each in proxies(gateway)] not in ([], [before.pid]), "another", timeout_s=LIMIT_S)
        door.wait_until_told()
        assert door.ask().status == 200
        (after,) = proxies(gateway)
        gateway.kill()
        until(lambda: not after.is_running() or after.status() == psutil.STATUS_ZOMBIE, "its end", timeout_s=LIMIT_S)
    finally:
        replica.end()


@pytest.mark.slow
def test_endpoints_that_come_and_go_are_passed_on_while_long_requests_last(start: Start, tmp_path: Path) -> None:
    old, new = Replica("old"), Replica("new")
    door = Door(tmp_path)
    door.write_routes({"m": service(old)})
    gateway = start()
    try:
        door.wait_until_open()
        door.wait_until_told()
        long = door.ask_beside("/m/slow")
        until(lambda: old.asked == ["/slow"], "one under way", timeout_s=LIMIT_S)
        until(lambda: door.demand()["services"].get("m", {}).get("in_flight") == 1, "it counted", timeout_s=LIMIT_S)
        routes = {"m": service(revisions=[revision("r2", new)]), "n": service(new, path="/n", hosts=[])}
        door.write_routes(routes)
        until(lambda: door.ask("/n/echo").status == 200, "n", timeout_s=LIMIT_S)
        until(lambda: len(proxies(gateway)) == 2, "a second haproxy, and the first with its request", timeout_s=LIMIT_S)
        door.wait_until_told()
        assert door.ask("/m/echo").json()["replica"] == "new"
        old.go.release()
        assert long.answer().json()["replica"] == "old"
        until(lambda: len(proxies(gateway)) == 1, "the first gone", timeout_s=LIMIT_S)
        door.write_routes({"m": {**routes["m"], "keys": []}})
        until(lambda: door.ask("/m/echo").status == 401, "keys on", timeout_s=LIMIT_S)
        assert "`access`" in json.loads((tmp_path / "proxy.json").read_text())["held"]["m"]
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(timeout=LIMIT_S) == 0
        assert not any(name.startswith("haproxy-") for name in os.listdir(tmp_path))
        lines = {(each["replica"], each["path"], each["revision"]) for each in door.log()}
        assert ("old", "/m/slow", "r1") in lines
    finally:
        old.end()
        new.end()
