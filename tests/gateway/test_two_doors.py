"""The gateway with haproxy in front chooses the same service for a request as the gateway alone."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.gateway.messages import HttpError, read_request
from fairlead.gateway.routes import read_routes
from fairlead.gateway.services import ServiceTable
from tests.gateway.conftest import Opener
from tests.gateway.parts import Door, RawReplica, Replica, service
from tests.rounds import rounds
from tests.waiting import until

Make = Callable[..., Replica]

HOSTS = ("a", "b", "a.localhost", "b.localhost", "v1.svc", "127.0.0.1", "[::1]")
PARTS = ("a", "b", "ab", "v1", "a.b")
HELD: tuple[dict[str, Any], ...] = ({}, {"idempotent": True}, {"max_concurrency": 9}, {"revisions": [], "max_queue": 0})
"""What haproxy forwards, and what stays with the gateway process, also because it sleeps."""
NUM_SERVICES, NUM_REQUESTS = 7, 150


def drawn_routes(draw: random.Random, replicas: Make) -> dict[str, Any]:
    hosts = draw.sample(HOSTS, 5)
    routes: dict[str, Any] = {}
    paths: set[str] = set()
    for number in range(NUM_SERVICES):
        path = "".join(f"/{draw.choice(PARTS)}" for _ in range(draw.randint(1, 3)))
        name = f"s{number}"
        routes[name] = service(replicas(name)) | {
            "path": None if path in paths else path,
            "hosts": [hosts.pop()] if hosts and draw.random() < 0.7 else [],
            **draw.choice(HELD),
        }
        paths.add(path)
    return routes


def drawn_request(draw: random.Random) -> bytes:
    host = draw.choice((*HOSTS, "other", "a.localhost.evil"))
    host = draw.choice((host, host, host.upper(), f"{host}:80", f"{host}.", f"{host}:x", f"{host}:81:81", f"{host}@b"))
    path = "".join(f"/{draw.choice(PARTS)}" for _ in range(draw.randint(0, 4)))
    path += draw.choice(("", "", "/", "//", "/x", "x", "?q=/a/", "/%61", "/.", "/%2e%2e/a", "/A"))
    if draw.random() < 0.1:
        path = draw.choice(("/", "", "http://a", f"http://{host}", "*")) + path
    more = draw.choice((b"", b"", b"Host: z\r\n", b"Connection: close, X-A\r\nConnection: keep-alive\r\nX-A: 1\r\n"))
    target = (path or "/").encode()
    return b"GET " + target + b" HTTP/1.1\r\nHost: " + host.encode() + b"\r\n" + more + b"X-Last: 1\r\n\r\n"


def chosen(table: ServiceTable[Any], head: bytes) -> tuple[str, str]:
    """The service and the path for its replica that the gateway alone finds."""
    try:
        request = read_request(head)
    except HttpError:
        return "refused", ""
    found = table.find(request)
    if found is None:
        return "nothing", ""
    # The replica of this test takes several slashes at the beginning for one.
    name, path = found[0].name, "/" + (found[1] + request.query).decode().lstrip("/")
    return (name, path) if found[0].has_replicas() else (f"{name} sleeps", "")


def seen(door: Door, replicas: dict[str, Replica], head: bytes) -> tuple[str, str]:
    """The same as its answer and its replicas show."""
    for each in replicas.values():
        each.asked.clear()
    answer = door.raw(head.replace(b"X-Last: 1", b"Connection: close") if b"X-A" not in head else head)
    status = int(answer.split(b" ", 2)[1])
    if status == 400:
        return "refused", ""
    if status == 404:
        return "nothing", ""
    if status == 429:
        error: str = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        return f"{error.partition(':')[0]} sleeps", ""
    assert status == 200, answer
    ((name, path),) = ((name, path) for name, each in replicas.items() for path in each.asked)
    assert all("x-a" not in fields for fields in replicas[name].headers)
    return name, path


@pytest.mark.slow
@pytest.mark.parametrize("seed", rounds(3, 40))
def test_both_doors_choose_the_same_service(open_door: Opener, replicas: Make, seed: int) -> None:
    draw = random.Random(seed)
    made: dict[str, Replica] = {}

    def make(name: str) -> Replica:
        made[name] = replicas(name)
        return made[name]

    routes = drawn_routes(draw, make)
    door = open_door(routes)
    table: ServiceTable[Any] = ServiceTable()
    table.update(read_routes((door.directory / "routes.json").read_bytes()).services)
    requests = [drawn_request(draw) for _ in range(NUM_REQUESTS)]
    wanted = [chosen(table, head) for head in requests]
    assert len(set(wanted)) > NUM_SERVICES, "the requests are too alike"
    for head, right in zip(requests, wanted, strict=True):
        got = seen(door, made, head)
        assert got == right, head


def test_a_key_for_a_guarded_endpoint_reaches_no_other_by_its_path(open_door: Opener, replicas: Make) -> None:
    guarded, other = replicas("guarded"), replicas("other")
    door = open_door(
        {
            "chat": service(guarded, path="/chat", hosts=["chat.localhost"], keys=[]),
            "v1": service(other, path="/v1", hosts=["v1.localhost"]),
        }
    )
    headers = {"Host": "chat.localhost", "X-API-Key": "SECRET"}
    assert door.ask("/v1/chat/completions", method="POST", body=b"{}", headers=headers).status == 403
    assert (guarded.asked, other.asked) == ([], [])


def test_the_host_of_a_sleeping_endpoint_wakes_it(open_door: Opener, replicas: Make) -> None:
    other = replicas("other")
    routes = {
        "chat": service(path="/chat", hosts=["chat.localhost"]),
        "v1": service(other, path="/v1", hosts=["v1.localhost"]),
    }
    door = open_door(routes)
    asking = door.ask_beside("/v1/echo", headers={"Host": "chat.localhost"})
    until(lambda: door.demand()["services"].get("chat", {}).get("wake") is not None, "it woken")
    door.write_routes({**routes, "chat": service(replicas("chat"), path="/chat", hosts=["chat.localhost"])})
    assert asking.answer().json()["replica"] == "chat"
    assert other.asked == []


def test_an_endpoint_that_changes_hands_is_never_anothers(open_door: Opener, replicas: Make) -> None:
    """Its host leads to haproxy's replicas, to the gateway process and back, and never to the path's endpoint."""
    chat, other = replicas("chat"), replicas("other")
    v1 = service(other, path="/v1", hosts=[])
    door = open_door({"chat": service(chat, path="/chat", hosts=["chat.localhost"]), "v1": v1})
    for more in ({"idempotent": True}, {}, {"max_concurrency": 5}, {}):
        door.write_routes({"chat": service(chat, path="/chat", hosts=["chat.localhost"]) | more, "v1": v1})
        for _ in range(30):
            assert door.ask("/v1/echo", headers={"Host": "chat.localhost"}).json()["replica"] == "chat"
    assert other.asked == []


def test_a_field_named_by_one_of_several_connection_lines_stays_behind(open_door: Opener) -> None:
    with RawReplica(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as replica:
        door = open_door({"m": service(replica)})
        door.raw(b"GET /m/x HTTP/1.1\r\nHost: m\r\nX-A: 1\r\nConnection: close, X-A\r\nConnection: keep-alive\r\n\r\n")
        assert not any(b"x-a:" in each.lower() for each in replica.read)
