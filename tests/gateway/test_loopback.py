"""A gateway on loopback answers this user's processes and pages of this machine, and no site that points here."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from fairlead.gateway import local_guard
from fairlead.runtime import peer_users
from tests.gateway.conftest import Opener
from tests.gateway.parts import Door, RawReplica, Replica, service
from tests.gateway.test_access import key

Make = Callable[..., Replica]
Guarded = Callable[..., Door]
NOBODY = 65_534


@pytest.fixture
def open_guarded(open_door: Opener) -> Guarded:
    return partial(open_door, is_guarded=True)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8700", 200),
        ("127.0.0.1", 200),
        ("[::1]:8700", 200),
        ("anything.localhost", 200),
        ("m.localhost.", 200),
        ("models.example", 200),
        ("rebound.attacker.example", 421),
        ("localhost.attacker.example", 421),
        ("127.0.0.1.attacker.example:80", 421),
        ("attackerlocalhost", 421),
        ("10.0.0.1", 421),
    ],
)
def test_only_names_of_this_machine_and_configured_ones_are_answered(
    open_guarded: Guarded, replicas: Make, host: str, status: int
) -> None:
    replica = replicas()
    door = open_guarded({"m": service(replica)})
    answer = door.ask(method="POST", body=b"x", headers={"Host": host, "Content-Type": "text/plain"})
    assert answer.status == status
    assert len(replica.asked) == (status == 200)
    assert door.ask("/-/healthz", headers={"Host": host}).status == status


CROSS = {"Sec-Fetch-Site": "cross-site"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "http://m.localhost:8700", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({**CROSS, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
        ({"Origin": "https://attacker.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://localhost.attacker.example"}, 403),
        ({"Origin": "localhost"}, 403),
        (
            {"Origin": "https://attacker.example", **CROSS, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
            403,
        ),
        ({**CROSS, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        ({**CROSS, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
    ],
)
def test_other_sites_use_no_endpoint_without_a_key(
    open_guarded: Guarded, replicas: Make, headers: dict[str, str], status: int
) -> None:
    replica = replicas()
    door = open_guarded({"m": service(replica)})
    assert door.ask(method="POST", body=b"x", headers=headers).status == status
    assert len(replica.asked) == (status == 200)


def test_another_site_with_a_key_may_ask(open_guarded: Guarded, replicas: Make) -> None:
    door = open_guarded({"m": service(replicas(), keys=[key("secret")])})
    headers = {"Origin": "https://app.example", "X-API-Key": "secret", **CROSS}
    assert door.ask(headers=headers).status == 200


ASK = """
import encodings.idna, http.client, os, sys  # all that is imported later too: the other user may not read it
os.setuid(int(sys.argv[1]))
asking = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]), timeout=60)
for fields in ({}, {"X-API-Key": "secret"}):
    asking.request("GET", sys.argv[3], headers=fields)
    answer = asking.getresponse()
    answer.read()
    print(answer.status)
"""


@pytest.mark.skipif(os.getuid() != 0 or sys.platform != "linux", reason="only root may become another user")
@pytest.mark.parametrize(("path", "statuses"), [("/m/echo", [403, 403]), ("/guarded/echo", [401, 200])])
def test_processes_of_other_users_need_a_key(
    open_python_door: Opener, replicas: Make, path: str, statuses: list[int]
) -> None:
    replica = replicas()
    routes = {"m": service(replica), "g": service(replica, path="/guarded", hosts=[], keys=[key("secret")])}
    door = open_python_door(routes, is_guarded=True)
    asked = subprocess.run(
        [sys.executable, "-c", ASK, str(NOBODY), str(door.port), path], capture_output=True, text=True, check=True
    )
    assert [int(line) for line in asked.stdout.split()] == statuses
    assert door.ask().status == 200


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_kernel_tells_the_user_of_a_connection_and_that_one_is_gone(family: socket.AddressFamily) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = server.getsockname()
        client = socket.socket(family)  # also one of IPv6 whose address is mapped, as Java's are
        client.connect(own if family == socket.AF_INET else (f"::ffff:{own[0]}", own[1]))
        accepted, peer = server.accept()
        with accepted:
            for holder in (peer_users._holder_by_netlink, peer_users._holder_by_tables):
                assert holder(peer, own) == os.getuid()
            client.close()
            for holder in (peer_users._holder_by_netlink, peer_users._holder_by_tables):
                assert holder(peer, own) == peer_users.NOBODY
            assert not peer_users.is_known_user(peer, own)


def test_a_connection_is_asked_for_once(
    open_python_door: Opener, replicas: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[object]()

    def note(*ends: object) -> bool:
        asked.append(ends)
        return True

    monkeypatch.setattr(local_guard, "is_known_user", note)
    door = open_python_door({"m": service(replicas())}, is_guarded=True)
    asked_for = b"GET /m/x HTTP/1.1\r\nHost: localhost\r\n"
    answer = door.raw(asked_for + b"\r\n" + asked_for + b"\r\n" + asked_for + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert len(asked) == 1


# Pages in browsers: CORS.

PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
APP = "https://app.example"


@pytest.mark.parametrize(
    ("origin", "status"),
    [(APP, 204), ("https://other.example", 401), ("http://localhost:3000", 401), ("null", 401), ("*", 401)],
)
def test_a_preflight_of_a_listed_site_is_answered_without_a_key(
    open_door: Opener, replicas: Make, origin: str, status: int
) -> None:
    replica = replicas()
    door = open_door({"m": service(replica, keys=[key("secret")], origins=[APP])})
    answer = door.ask(method="OPTIONS", headers={"Origin": origin, **PREFLIGHT})
    assert answer.status == status
    assert answer.headers["Access-Control-Allow-Origin"] == (origin if status == 204 else None)
    assert (answer.headers["Access-Control-Allow-Headers"] == "authorization,content-type") == (status == 204)
    assert replica.asked == []


def test_listed_sites_may_read_every_answer_and_others_none(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas(), keys=[key("secret")], origins=[APP])})
    for secret, status in (({}, 401), ({"X-API-Key": "wrong"}, 403), ({"X-API-Key": "secret"}, 200)):
        for origin in (APP, "https://other.example"):
            answer = door.ask(headers={"Origin": origin, **secret})
            assert answer.status == status
            assert answer.headers["Access-Control-Allow-Origin"] == (APP if origin == APP else None)


def test_a_gateway_on_loopback_lists_the_pages_of_this_machine(open_guarded: Guarded, replicas: Make) -> None:
    door = open_guarded({"m": service(replicas(), keys=[])})
    local = {"Origin": "http://localhost:3000"}
    assert door.ask(method="OPTIONS", headers={**local, **PREFLIGHT}).status == 204
    assert door.ask(headers=local).headers["Access-Control-Allow-Origin"] == local["Origin"]
    assert door.ask(method="OPTIONS", headers={"Origin": APP, **PREFLIGHT}).status == 401


def test_an_endpoint_without_access_answers_its_preflights_itself(open_guarded: Guarded, replicas: Make) -> None:
    replica = replicas()
    door = open_guarded({"m": service(replica)})
    answer = door.ask(method="OPTIONS", headers={"Origin": "http://localhost:3000", **PREFLIGHT})
    assert (answer.status, answer.json()["method"]) == (200, "OPTIONS")
    assert answer.headers["Access-Control-Allow-Origin"] is None


def test_what_a_replica_allows_gives_way_to_what_the_spec_allows(open_door: Opener) -> None:
    answer = b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with RawReplica(answer) as replica:
        door = open_door({"m": service(replica, keys=[key("secret")], origins=[APP])})
        got = door.ask(headers={"Origin": APP, "X-API-Key": "secret"})
        assert got.headers.get_all("Access-Control-Allow-Origin") == [APP]
