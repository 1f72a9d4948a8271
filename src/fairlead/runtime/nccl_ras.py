"""Asks NCCL's RAS service what it knows of a gang that hangs, from NCCL 2.24 on.

A process with NCCL serves it at ``NCCL_RAS_ADDR``, or port 28028 of loopback. It knows which ranks of a communicator
have launched fewer operations, are unresponsive or dead, on all nodes (NCCL User Guide, RAS; the protocol is that of
NCCL's own client, `src/ras/client.cc`). Only a service that a process of this pod offers is asked.
"""

from __future__ import annotations

import contextlib
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping

VARIABLE, DEFAULT = "NCCL_RAS_ADDR", "localhost:28028"
PROTOCOL = 2
MOST_BYTES = 32 * 1024
_LISTENS = "0A"


def ask(environ: Mapping[str, str], pids: Iterable[int], within_s: float) -> list[str]:
    """Return the lines of its verbose status; empty where no process of these serves it, or it gives no answer in time.

    Args:
        environ: The environment of a rank, which may name the address.
        pids: The processes of the ranks of this pod.
    """
    host, _, digits = environ.get(VARIABLE, DEFAULT).rpartition(":")
    if not digits.isdecimal() or within_s < 1.0 or not _is_served(int(digits), pids):
        return []
    import socket  # a shim takes stacks in its life once at most

    until = time.monotonic() + within_s
    try:
        with socket.create_connection((host.strip("[]"), int(digits)), timeout=within_s) as connection:
            text = _status(connection, until)
    except (OSError, ValueError):  # it is no RAS service, or hangs too
        return []
    return [line.rstrip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]


def _status(connection: socket.socket, until: float) -> bytes:
    """Return the answer of the service; half of it, if the rest does not come in time.

    Raises:
        ValueError: It speaks another protocol.
    """
    with connection.makefile("rb") as answers:
        patience = max(1, int(until - time.monotonic()) - 1)  # whole seconds, which it waits for other processes
        for request, expected in ((f"CLIENT PROTOCOL {PROTOCOL}", b"SERVER PROTOCOL "), (f"TIMEOUT {patience}", b"OK")):
            connection.sendall(f"{request}\n".encode())
            if not answers.readline(256).startswith(expected):
                raise ValueError(f"no answer to {request}")
        connection.sendall(b"VERBOSE STATUS\n")
        parts, size = [], 0
        while size < MOST_BYTES and (left := until - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                part = answers.read1(MOST_BYTES - size)
            except OSError:  # in Python 3.9 its timeout is one of these
                break
            if not part:
                break
            parts.append(part)
            size += len(part)
        return b"".join(parts)


def _is_served(port: int, pids: Iterable[int]) -> bool:
    """Return whether one of these processes listens at a port."""
    sockets = set()
    for name in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with contextlib.suppress(OSError), open(name) as file:
            rows = [line.split() for line in file.readlines()[1:]]
            sockets |= {f"socket:[{row[9]}]" for row in rows if row[3] == _LISTENS and int(row[1][-4:], 16) == port}
    for pid in pids if sockets else ():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") in sockets:
                        return True
    return False
