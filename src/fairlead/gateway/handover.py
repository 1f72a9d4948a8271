"""Hands the listening socket on to whoever looks after the gateway next.

A socket that two processes hold stays open when one of them is killed: connections wait there, and none is refused,
until another gateway accepts them. The supervisor that started a gateway holds it; one that follows while that gateway
lives asks for it here.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path


def listen(path: Path) -> socket.socket:
    """Listen at a Unix socket, which replaces one that a gateway before has left.

    Raises:
        OSError: Nothing can be made there.
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


def hand_on(listening: socket.socket, door: socket.socket) -> None:
    """Give the door to one who has connected; a door that is closed by now is given to nobody."""
    with suppress(OSError):
        asker, _ = listening.accept()
        with asker:
            socket.send_fds(asker, [b"door"], [door.fileno()])
