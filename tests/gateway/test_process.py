"""The process: it ends in order, and another takes over without a refused connection."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.gateway.parts import LIMIT_S, Door, Replica, received, service
from tests.waiting import until

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "fairlead.gateway", "--directory", str(tmp_path), *arguments]
        started.append(subprocess.Popen(argv, pass_fds=pass_fds, stderr=subprocess.PIPE))
        return started[-1]

    yield begin
    for each in started:
        each.kill()
        each.communicate(timeout=LIMIT_S)


def wait_for(door: Door, process: subprocess.Popen[bytes]) -> None:
    """Wait until this process says that it listens."""
    until(lambda: (door.directory / "demand.json").exists() and door.demand()["pid"] == process.pid, "open door")


def test_term_lets_requests_end_and_takes_no_more(start: Start, tmp_path: Path) -> None:
    replica = Replica("r")
    door = Door(tmp_path)
    door.write_routes({"m": service(replica)})
    process = start("--port", "0")
    try:
        wait_for(door, process)
        port = door.port
        with door.connect() as idle:
            asking = door.ask_beside("/m/slow")
            until(lambda: replica.asked == ["/slow"], "one under way")
            process.send_signal(signal.SIGTERM)
            assert received(idle) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        replica.go.release()
        assert asking.answer().status == 200
        assert asking.answer().headers["Connection"] == "close"
        assert process.wait(timeout=LIMIT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert [line["status"] for line in door.log()] == [200]
    finally:
        replica.end()


def test_without_clients_it_looks_once_a_second_and_the_first_finds_the_routes_of_now(
    start: Start, tmp_path: Path
) -> None:
    former, replica = Replica("former"), Replica("r")
    door = Door(tmp_path)
    door.write_routes({"m": service(former)})
    process = start("--port", "0")
    try:
        wait_for(door, process)
        seen = psutil.Process(process.pid)
        until(lambda: woken_within(seen, 1.5) <= 4, "quiet gateway")
        door.write_routes({"m": service(replica)})
        assert door.ask("/m/echo").status == 200
        assert (former.asked, replica.asked) == ([], ["/echo"])
    finally:
        former.end()
        replica.end()


def woken_within(process: psutil.Process, seconds: float) -> int:
    """Count how often a process was given the processor after it had waited."""
    before = process.num_ctx_switches().voluntary
    time.sleep(seconds)
    return int(process.num_ctx_switches().voluntary - before)


def test_what_does_not_end_within_the_grace_is_broken_off(start: Start, tmp_path: Path) -> None:
    replica = Replica("r")
    door = Door(tmp_path)
    door.write_routes({"m": service(replica)})
    process = start("--port", "0", "--grace", "0.5")
    try:
        wait_for(door, process)
        asking = door.ask_beside("/m/slow")
        until(lambda: replica.asked == ["/slow"], "one under way")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=LIMIT_S) == 0
        with pytest.raises(ConnectionError):
            asking.answer()
    finally:
        replica.end()


def test_no_connection_is_refused_while_a_killed_gateway_is_started_again(start: Start, tmp_path: Path) -> None:
    replica = Replica("r")
    door = Door(tmp_path)
    door.write_routes({"m": service(replica)})
    with socket.create_server(("127.0.0.1", 0)) as listening:
        descriptor = listening.fileno()
        os.set_inheritable(descriptor, True)
        try:
            first = start("--listen-fd", str(descriptor), pass_fds=(descriptor,))
            wait_for(door, first)
            assert door.ask().status == 200
            first.kill()
            first.wait(timeout=LIMIT_S)
            asking = [door.ask_beside() for _ in range(5)]
            second = start("--listen-fd", str(descriptor), pass_fds=(descriptor,))
            assert [each.answer().status for each in asking] == [200] * 5
            wait_for(door, second)
            second.send_signal(signal.SIGTERM)
            assert second.wait(timeout=LIMIT_S) == 0
        finally:
            replica.end()


def test_two_gateways_share_a_port_when_both_are_told_to(start: Start, tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.write_routes({})
    first = start("--port", "0", "--reuse-port")
    wait_for(door, first)
    second = start("--port", str(door.port), "--reuse-port")
    wait_for(door, second)
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=LIMIT_S) == 0
    assert door.ask("/-/healthz").status == 200


def test_a_port_that_is_taken_is_said(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("--port", str(taken.getsockname()[1]))
        assert process.wait(timeout=LIMIT_S) == 1
        assert process.stderr is not None
        assert b"gateway: cannot listen" in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--port", "0", "--grace", "0"), b"--grace has to be more than 0; it is 0.0"),
        (("--port", "0", "--max-connections", "-1"), b"--max-connections has to be more than 0; it is -1"),
        (("--port", "0", "--listen-fd", "3"), b"not allowed with argument --port"),
        ((), b"one of the arguments --port --listen-fd is required"),
    ],
)
def test_options_that_cannot_be_are_refused(start: Start, arguments: tuple[str, ...], told: bytes) -> None:
    process = start(*arguments)
    assert process.wait(timeout=LIMIT_S) == 2
    assert process.stderr is not None
    assert told in process.stderr.read()


def test_a_thousand_idle_services_are_small(start: Start, tmp_path: Path) -> None:
    """Only a process of its own shows what it takes."""
    door = Door(tmp_path)
    names = [f"service-{number}" for number in range(1000)]
    door.write_routes({name: service(path=f"/{name}", hosts=[f"{name}.localhost"], max_queue=0) for name in names})
    process = start("--port", "0")
    wait_for(door, process)
    assert [door.ask(f"/{name}/x").status for name in names[::100]] == [429] * 10
    assert psutil.Process(process.pid).memory_info().rss < 200_000_000
    until(lambda: len(json.dumps(door.demand()["services"])) > 10, "demand")
