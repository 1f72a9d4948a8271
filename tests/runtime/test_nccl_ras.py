"""NCCL's RAS service is asked if a process of the pod offers it; by a stand-in with the text that NVIDIA publishes.

Nothing of this was tried on a real NCCL.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fairlead.runtime import nccl_ras

STATUS = """Errors
======

INCOMPLETE
  Missing communicator data from 1 job process

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank:
    Rank 1 on a node that is unresponsive

Warnings
========

#0-1 (e2f5) MISMATCH
  Communicator ranks have different collective operation counts
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows who listens")


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[dict[str, str]]:
    """A service in this process, and the variables that name it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield {nccl_ras.VARIABLE: f"localhost:{listening.getsockname()[1]}"}


def as_nccl(connection: socket.socket, *, ending: bool = True) -> None:
    lines = connection.makefile("rb")
    assert lines.readline() == b"CLIENT PROTOCOL 2\n"
    connection.sendall(b"SERVER PROTOCOL 2\n")
    assert lines.readline() == b"TIMEOUT 1\n"
    connection.sendall(b"OK\n")
    assert lines.readline() == b"VERBOSE STATUS\n"
    connection.sendall(STATUS.encode())
    if not ending:
        time.sleep(10.0)


def test_the_status_of_a_service_of_the_pod_is_read_whole() -> None:
    with serving(as_nccl) as variables:
        lines = nccl_ras.ask(variables, [os.getpid()], 3.0)
    assert lines[:3] == ["Errors", "======", "INCOMPLETE"]
    assert lines[-1].strip() == "Communicator ranks have different collective operation counts"


def test_a_service_that_does_not_end_is_left_in_time_with_what_it_gave() -> None:
    with serving(lambda connection: as_nccl(connection, ending=False)) as variables:
        began = time.monotonic()
        lines = nccl_ras.ask(variables, [os.getpid()], 2.5)
        assert time.monotonic() - began < 8.0
    assert "INCOMPLETE" in lines


def test_a_service_of_somebody_else_is_not_asked() -> None:
    asked = threading.Event()
    other = subprocess.Popen(["sleep", "60"])
    try:
        with serving(lambda _: asked.set()) as variables:
            assert nccl_ras.ask(variables, [other.pid], 3.0) == []
            assert not asked.is_set()
    finally:
        other.kill()
        other.wait()


def test_another_service_a_wrong_address_and_no_time_give_nothing() -> None:
    with serving(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")) as variables:
        assert nccl_ras.ask(variables, [os.getpid()], 0.5) == []
        assert nccl_ras.ask(variables, [os.getpid()], 3.0) == []
    assert nccl_ras.ask({nccl_ras.VARIABLE: "nowhere"}, [os.getpid()], 3.0) == []
