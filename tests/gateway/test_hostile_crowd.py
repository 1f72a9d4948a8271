"""A crowd of hostile clients at a gateway of its own process: it lives, stays small, and others hardly notice."""

import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.gateway.parts import LIMIT_S, Door, Replica, service
from tests.gateway.test_fuzz import bent, memory_kb
from tests.gateway.test_hostile_clients import HANDSHAKE
from tests.processes import Child
from tests.waiting import until

P99_S = 1.0
"""A well-behaved client's request takes no longer, by 99 of 100."""
GROWTH_KB = 60_000
MOST_OPEN = 60
"""Hostile connections that are held open at a time."""

Attack = Callable[[random.Random], list[bytes]]


def head(draw: random.Random) -> list[bytes]:
    return [bent(draw)]


def unread(draw: random.Random) -> list[bytes]:
    """Requests whose answers it does not read."""
    return [b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % draw.randrange(9) * draw.randint(1, 2000)]


def trickle(draw: random.Random) -> list[bytes]:
    """A body of which a byte comes now and then."""
    framing = draw.choice([b"Content-Length: 70000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"])
    return [b"POST /m/echo HTTP/1.1\r\nHost: localhost\r\n" + framing, b"1", b"1"]


def half(draw: random.Random) -> list[bytes]:
    """A head that never ends."""
    return [b"GET /m/echo HTTP/1.1\r\nHost: localhost\r\nA: ", b"b" * draw.randint(1, 40_000)]


def websocket(draw: random.Random) -> list[bytes]:
    return [HANDSHAKE.replace(b"Host: x", b"Host: localhost"), b"\x81\x02hi"]


def large(draw: random.Random) -> list[bytes]:
    """A body whose echo it does not read."""
    size = draw.randint(100_000, 1_000_000)
    return [b"POST /m/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size, b"a" * size]


def nothing(draw: random.Random) -> list[bytes]:
    return [bytes(draw.choices(range(256), k=draw.randint(1, 300)))]


LEAST_ANSWERED = 20

ATTACKS: tuple[Attack, ...] = (head, head, head, head, unread, trickle, half, websocket, large, nothing)


class Others(threading.Thread):
    """Well-behaved clients, who note how long each request takes."""

    def __init__(self, door: Door) -> None:
        super().__init__(daemon=True)
        self.took: list[float] = []
        self.statuses: set[int] = set()
        self.is_over = threading.Event()
        self._door = door

    def run(self) -> None:
        while not self.is_over.wait(0.02):
            began = time.monotonic()
            self.statuses.add(self._door.ask("/n/echo", headers={"Host": "localhost"}).status)
            self.took.append(time.monotonic() - began)


@pytest.mark.slow
@pytest.mark.parametrize("number", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_hostile_crowd_delays_others_by_less_than_a_second(tmp_path: Path, number: int) -> None:
    target, other = Replica("target"), Replica("other")
    door = Door(tmp_path)
    routes = {
        "m": service(target, max_concurrency=2, timeout_s=2.0),
        "n": service(other, path="/n", hosts=[], max_concurrency=4),
    }
    door.write_routes(routes)
    argv = [sys.executable, "-m", "fairlead.gateway", "--directory", str(tmp_path), "--port", "0"]
    draw = random.Random(7)
    with ExitStack() as stack:
        stack.callback(target.end)
        stack.callback(other.end)
        gateway = stack.enter_context(Child(argv, stderr=subprocess.PIPE, text=True))
        door.wait_until_open()
        others = Others(door)
        others.start()
        open_: list[socket.socket] = []
        small = 0
        for count in range(number):
            client = door.connect()
            client.settimeout(0.0)
            with suppress(OSError):
                for piece in draw.choice(ATTACKS)(draw):
                    client.send(piece)
            open_.append(client)
            if len(open_) > MOST_OPEN:
                open_.pop(draw.randrange(len(open_))).close()
            if count == number // 4:
                small = memory_kb(door)
            time.sleep(0.001)
        grown = memory_kb(door) - small
        # A busy machine answers few requests while the crowd comes; it stays until there are enough to judge by.
        until(lambda: len(others.took) > LEAST_ANSWERED, "answers to others", timeout_s=LIMIT_S)
        for client in open_:
            client.close()
        others.is_over.set()
        others.join(timeout=LIMIT_S)
        assert gateway.poll() is None, "it lives"
        assert b"fairlead_gateway_defects_total 0.0" in door.ask("/metrics", admin=True).body
        gateway.terminate()
        _, said = gateway.communicate(timeout=LIMIT_S)
    assert (gateway.returncode, said) == (0, "")
    assert others.statuses == {200}
    took = sorted(others.took)
    assert took[len(took) * 99 // 100] < P99_S, took[-5:]
    assert grown < GROWTH_KB
