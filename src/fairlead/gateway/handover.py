"""Hands the listening socket over to the next supervisor of the gateway.

A socket that two processes hold stays open when one of them is killed: connections wait in its backlog, and none is
refused, until another gateway accepts them. The supervisor that started a gateway holds it; a supervisor that takes
over while that gateway is alive requests it here.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path


def listen(path: Path) -> socket.socket:
    """Listen on a Unix socket, replacing one that an earlier gateway left.

    Raises:
        OSError: The socket cannot be created.
    """
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(os.fspath(path))
        path.chmod(0o600)
        made.listen(8)
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made


def hand_on(listening: socket.socket, gateway: socket.socket) -> None:
    """Send the listening socket to a connected supervisor; do nothing if it is already closed."""
    with suppress(OSError):
        asker, _ = listening.accept()
        with asker:
            socket.send_fds(asker, [b"door"], [gateway.fileno()])
