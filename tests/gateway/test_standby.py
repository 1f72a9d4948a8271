"""The standby: it takes over from a gateway that is killed, is replaced when it is killed itself, and ends with it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fairlead.runtime.podfiles import is_locked, take_lock
from tests.gateway.parts import LIMIT_S, Door, Replica, service
from tests.waiting import until

OUTPUT = "gateway.log"


class Pair:
    """A gateway with its standby, which may have taken its place."""

    def __init__(self, directory: Path) -> None:
        self.door = Door(directory)
        self.lock_file = directory / "gateway.lock"
        lock = take_lock(self.lock_file)
        assert lock is not None
        with (directory / OUTPUT).open("wb") as output:
            self.first = subprocess.Popen(
                [
                    sys.executable, "-m", "fairlead.gateway", "--directory", str(directory), "--port", "0", "--standby",
                    "--lock-fd", str(lock),
                ],
                pass_fds=[lock], stdout=output, stderr=output,
            )  # fmt: skip
        os.pwrite(lock, str(self.first.pid).encode(), 0)
        os.close(lock)
        self.door.wait_until_open()

    def standby(self, *, but: int | None = None) -> int:
        """Wait for a standby of the one that answers, another one than `but`, and return its process id."""

        def found() -> list[int]:
            children = psutil.Process(self.door.demand()["pid"]).children()
            return [each.pid for each in children if each.pid != but and "--after" in _command_line(each)]

        until(lambda: bool(found()), "a standby", timeout_s=LIMIT_S)
        (pid,) = found()
        return pid

    def wait_for(self, pid: int) -> None:
        """Wait until this process says that it answers."""
        until(lambda: self.door.demand()["pid"] == pid, "an open door", timeout_s=LIMIT_S)

    def end(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while is_locked(self.lock_file):
            assert time.monotonic() < deadline, "a gateway does not end"
            with suppress(ProcessLookupError):
                os.kill(int(self.lock_file.read_text()), signal.SIGTERM)
            self.first.poll()
            time.sleep(0.02)
        self.first.wait(LIMIT_S)


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []  # it has just been killed


@pytest.fixture
def replica() -> Iterator[Replica]:
    made = Replica("r")
    yield made
    made.end()


@pytest.fixture
def pair(tmp_path: Path, replica: Replica) -> Iterator[Pair]:
    Door(tmp_path).write_routes({"m": service(replica)})
    made = Pair(tmp_path)
    yield made
    made.end()


def test_a_killed_gateway_is_followed_by_its_standby_and_that_by_its_own(pair: Pair) -> None:
    port = pair.door.port
    for _ in range(2):
        standby = pair.standby()
        os.kill(pair.door.demand()["pid"], signal.SIGKILL)
        assert [pair.door.ask().status for _ in range(3)] == [200] * 3
        pair.wait_for(standby)
        assert pair.lock_file.read_text() == str(standby)
        assert pair.door.port == port
    assert (pair.door.directory / OUTPUT).read_text().count("takes over, as the one before is gone") == 2


def test_a_killed_standby_is_followed_by_another_and_term_ends_both(pair: Pair) -> None:
    before, port = pair.standby(), pair.door.port
    os.kill(before, signal.SIGKILL)
    pair.standby(but=before)
    assert pair.door.demand()["pid"] == pair.first.pid
    pair.first.send_signal(signal.SIGTERM)
    assert pair.first.wait(LIMIT_S) == 0
    assert not is_locked(pair.lock_file), "the standby has ended too"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)


def test_a_gateway_killed_with_its_standby_is_gone(pair: Pair) -> None:
    standby = pair.standby()
    os.kill(standby, signal.SIGSTOP)  # or it would take over before it is killed
    pair.first.kill()
    os.kill(standby, signal.SIGKILL)
    until(lambda: not is_locked(pair.lock_file), "both gone", timeout_s=LIMIT_S)
