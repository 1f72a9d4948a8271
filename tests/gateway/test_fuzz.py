"""Requests bent at random, the same each time: a clear answer or none, no defect, and no growth."""

import random
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.gateway.conftest import Opener
from tests.gateway.parts import Door, Replica, service

Make = Callable[..., Replica]
SEEDS = (
    b"GET /m/echo HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /m/echo?x=1 HTTP/1.1\r\nHost: m.localhost\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /m/echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /m/echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    b"GET /m/echo HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET http://m.localhost/echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\nX-API-Key: secret\r\n\r\n",
)
PIECES = (
    b"\r\n", b"\n", b"\r", b"\0", b":", b" ", b"\t", b"HTTP/1.1", b"Host: b\r\n", b"Content-Length: 3\r\n",
    b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"\r\n\r\n",
    b"%2e%2e/", b"..", b"//", b"\xff", b"A" * 300, b"ffffffffffffff\r\n", b"GET /m/echo HTTP/1.1\r\nHost: a\r\n\r\n",
)  # fmt: skip
ROUNDS = 300
GROWTH_KB = 6_000


def bent(draw: random.Random) -> bytes:
    """A request with a few pieces cut out, doubled, put in or turned over."""
    data = bytearray(draw.choice(SEEDS))
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(4)
        if kind == 0:
            data[at:at] = draw.choice(PIECES)
        elif kind == 1:
            del data[at : at + draw.randint(1, 12)]
        elif kind == 2:
            data[at:at] = data[at : at + draw.randint(1, 40)]
        elif at < len(data):
            data[at] ^= 1 << draw.randrange(8)
    return bytes(data)


def memory_kb(door: Door) -> int:
    text = Path(f"/proc/{door.demand()['pid']}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1])


LAST = b"GET /-/healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
PATIENCE_S = 0.15
"""Some requests wait for the rest of a body that never comes."""


def answers(door: Door, data: bytes) -> list[int]:
    """The statuses of all answers to some bytes that come within moments, with another request behind them."""
    read = b""
    with door.connect() as client, suppress(ConnectionError, TimeoutError):
        client.sendall(data + LAST)
        client.settimeout(PATIENCE_S)
        while piece := client.recv(65536):
            read += piece
    assert read == b"" or read.startswith(b"HTTP/1.1 "), read[:200]
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", read)]


def test_bent_requests_get_a_clear_answer_and_leave_nothing_behind(open_python_door: Opener, replicas: Make) -> None:
    door = open_python_door({"m": service(replicas())})
    draw = random.Random(17)
    seen = set[int]()
    for number in range(ROUNDS):
        seen.update(answers(door, bent(draw)))
        if number == ROUNDS // 2:
            before = memory_kb(door)
    assert memory_kb(door) - before < GROWTH_KB
    assert {200, 400} <= seen
    assert seen <= {100, 200, 400, 404, 405, 408, 413, 414, 417, 431, 501, 502}, seen
    assert b"fairlead_gateway_defects_total 0.0" in door.ask("/metrics", admin=True).body
    assert door.ask().status == 200


def test_what_is_refused_takes_no_memory(open_python_door: Opener) -> None:
    door = open_python_door({"m": service(keys=[])})
    for _ in range(50):
        door.ask(method="POST", body=b"x" * 200_000)
    before = memory_kb(door)
    for _ in range(150):
        assert door.ask(method="POST", body=b"x" * 200_000, headers={"X-API-Key": "a"}).status == 403
    assert memory_kb(door) - before < GROWTH_KB
