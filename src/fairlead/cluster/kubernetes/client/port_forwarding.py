"""Forwards ports of this machine, and streams, to a port of a rank's pod."""

import errno
import os
import socket
import threading
from collections.abc import Callable

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.streams import forward
from fairlead.cluster.kubernetes.client.rank_pods import RankPod
from fairlead.errors import Conflict, FairleadError

LOOPBACK = "127.0.0.1"
PIECE_BYTES = 32 * 1024


def listen(port: int) -> socket.socket:
    """Return a listener on a port of this machine that only its programs reach; 0 for any free port.

    Raises:
        Conflict: The port is taken, or cannot be used.
    """
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise Conflict(f"Port {port} of this machine {why}. Give another, or 0:REMOTE for any.") from error


def serve(
    listener: socket.socket,
    remote: int,
    find_pod: Callable[[], RankPod],
    access: ClusterAccess,
    failed: Callable[[FairleadError], None],
) -> threading.Thread:
    """Return a started thread that forwards each connection to a port of the pod that is the current one then.

    Args:
        failed: Called with the reason why a connection is not forwarded.
    """

    def join(connection: socket.socket) -> None:
        try:
            forward(access, find_pod().path, remote, connection)
        except FairleadError as error:
            failed(error)
        finally:
            connection.close()

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=join, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    return thread


def forward_stdio(access: ClusterAccess, path: str, remote: int) -> None:
    """Forward standard input and output to a port of a pod until the connection ends.

    Raises:
        ClusterError: The API server refuses, or no process listens on the port.
    """
    ours, theirs = socket.socketpair()

    def send() -> None:
        while data := os.read(0, PIECE_BYTES):
            ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)

    def receive() -> None:
        while data := ours.recv(PIECE_BYTES):
            os.write(1, data)

    threading.Thread(target=send, daemon=True).start()
    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    forward(access, path, remote, theirs)
    receiver.join()
