"""A gateway in this process, replicas that tests tell what to do, and clients."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from fairlead.gateway import gateway_server, lifecycle
from fairlead.gateway.gateway_server import GatewaySettings
from fairlead.gateway.lifecycle import serve
from tests.debian import haproxy
from tests.gateway.parts import LIMIT_S, Door, Replica

Opener = Callable[..., Door]


@pytest.fixture
def replicas() -> Iterator[Callable[..., Replica]]:
    """Makes replicas, which are ended after the test."""
    made: list[Replica] = []

    def make(name: str = "replica") -> Replica:
        made.append(Replica(name))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture(params=["python", "haproxy"])
def open_door(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Starts gateways of both kinds in threads of their own; each has to end in order when the test is over."""
    for module in (gateway_server, lifecycle):
        monkeypatch.setattr(module, "LAME_DUCK_S", 0.02)
    yield from _opened(tmp_path, haproxy() if request.param == "haproxy" else None)


@pytest.fixture
def open_python_door(tmp_path: Path) -> Iterator[Opener]:
    """The same without haproxy, of which what is tested is not said."""
    yield from _opened(tmp_path, None)


def _opened(tmp_path: Path, proxy: Path | None) -> Iterator[Opener]:
    ends: list[Callable[[], None]] = []

    def start(routes: dict[str, Any], *, wake: Path | None = None, **settings: float) -> Door:
        directory = tmp_path / f"door-{len(ends)}"
        directory.mkdir()
        door = Door(directory)
        door.write_routes(routes, wake=wake)
        listening, admin = _listener(), _listener()
        given = GatewaySettings(
            directory=directory,
            access_log=directory / "access.log",
            access_log_bytes=int(settings.get("access_log_bytes", 1_000_000)),
            most_body=int(settings.get("most_body", 64_000_000)),
            most_connections=int(settings.get("most_connections", 100)),
            grace_s=settings.get("grace_s", 10.0),
            haproxy=proxy,
            is_guarded=bool(settings.get("is_guarded", False)),
            names=frozenset({"models.example"}),
            trusted=(ip_network("127.0.0.0/8"),) if settings.get("trusts_loopback") else (),
        )
        begun: Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Queue()

        async def run() -> None:
            stop = asyncio.Event()
            begun.put((asyncio.get_running_loop(), stop))
            await serve(given, listening, admin, stop)

        thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
        thread.start()
        loop, stop = begun.get(timeout=LIMIT_S)
        door.wait_until_open()
        if proxy is not None:
            door.wait_until_told()

        def end() -> None:
            if thread.is_alive():
                loop.call_soon_threadsafe(stop.set)
            thread.join(timeout=LIMIT_S)
            assert not thread.is_alive(), "the gateway does not end"

        door.end = end
        ends.append(end)
        return door

    yield start
    for end in ends:
        end()


def _listener() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.setblocking(False)
    return made
