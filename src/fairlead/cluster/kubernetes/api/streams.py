"""Bidirectional streams to pods over WebSocket: a command in a container, and connections to a port.

The first byte of a message is its channel, as in Kubernetes' subprotocols ``v4.channel.k8s.io`` and
``v5.channel.k8s.io`` (KEP-4006); only v5 can signal the end of the input.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fairlead.cluster.kubernetes.api.client import check_path
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.serial_tls import serial
from fairlead.cluster.kubernetes.api.transport import identity_headers, proxy_of_environment, tls_context
from fairlead.errors import ClusterError, NotAllowed
from fairlead.untrusted_json import parse_object

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
# A busy node needs time to start a process; an unreachable server was detected by the requests before.
MOST_STATUS_BYTES = 1 << 20
OPEN_S = 60.0
JOIN_S = 5.0
PIECE_BYTES = 32 * 1024
LINGER_S = 5.0
MOST_MESSAGE_BYTES = 16 * 1024 * 1024
# Keeps the connection alive in middleboxes that drop silent ones. No answer is required in time, because a program that
# does not read its input delays the answers too.
PING_S = 20.0


class ExecStream:
    """A command that runs in a container. Thread-safe."""

    def __init__(self, connection: "ClientConnection", where: str) -> None:
        self._connection = connection
        self._where = where

    @property
    def can_end_input(self) -> bool:
        """Return whether the server supports ``end_input``."""
        return self._connection.subprotocol == V5

    def write(self, data: bytes) -> None:
        """Write to the command's standard input.

        Raises:
            ClusterError: The connection is gone.
        """
        self._send(STDIN, data)

    def end_input(self) -> None:
        """Close its standard input; do nothing if the server does not support that."""
        if self.can_end_input:
            self._send(CLOSE, bytes([STDIN]))

    def resize(self, columns: int, rows: int) -> None:
        """Resize its terminal."""
        self._send(RESIZE, json.dumps({"Width": columns, "Height": rows}).encode())

    def run(self, out: Callable[[bytes], object], err: Callable[[bytes], object]) -> int:
        """Pass on its output until it ends, and return its exit code.

        Raises:
            ClusterError: It could not be started, or the connection broke before it ended.
        """
        from websockets.exceptions import ConnectionClosed

        status: bytes | None = None
        try:
            while True:
                message = self._connection.recv()
                data = message.encode() if isinstance(message, str) else message
                channel, content = data[:1], data[1:]
                if channel == bytes([STDOUT]) and content:
                    out(content)
                elif channel == bytes([STDERR]) and content:
                    err(content)
                elif channel == bytes([STATUS]):
                    status = content
        except ConnectionClosed as error:
            if status is None:
                raise ClusterError(
                    f"The connection to {self._where} broke before the command had ended ({error}); "
                    "whether it goes on there is not known."
                ) from error
        return exit_code(parse_object(status, max_bytes=MOST_STATUS_BYTES), self._where)

    def _send(self, channel: int, data: bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            self._connection.send(bytes([channel]) + data)
        except ConnectionClosed as error:
            raise ClusterError(f"The connection to {self._where} is gone: {error}") from error


@contextmanager
def exec_stream(
    access: ClusterAccess,
    path: str,
    command: Iterable[str],
    *,
    container: str,
    stdin: bool,
    tty: bool,
    protocols: tuple[str, ...] = (V5, V4),
) -> Iterator[ExecStream]:
    """Start a command in a container of a pod.

    Args:
        path: Path of the pod.
        protocols: Subprotocols, of which the server chooses the first that it supports.

    Raises:
        ClusterError: The API server refuses.
    """
    flags = {"container": container, "stdout": "true", "stderr": str(not tty).lower()}
    flags |= {"stdin": str(stdin).lower(), "tty": str(tty).lower()}
    query = urlencode([*flags.items(), *(("command", argument) for argument in command)])
    with _connected(access, f"{path}/exec", query, protocols) as connection:
        yield ExecStream(connection, path.rpartition("/")[2])


def exit_code(status: Mapping[str, Any], where: str) -> int:
    """Return the exit code of a command from the status that ends its stream.

    Raises:
        ClusterError: The command did not run.
    """
    if status.get("status") == "Success":
        return 0
    if status.get("reason") == "NonZeroExitCode":
        for cause in (status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
    raise ClusterError(f"The command did not run in {where}: {status.get('message') or status}")


def forward(access: ClusterAccess, path: str, port: int, local: socket.socket, *, linger_s: float = LINGER_S) -> None:
    """Connect a local connection to a port of a pod until either side closes it; closes the local one.

    The protocol cannot signal the end of the local input without also ending the response, so the response may continue
    until it has been silent for ``linger_s`` seconds.

    Raises:
        ClusterError: The API server refuses, or no process listens on the port.
    """
    from websockets.exceptions import ConnectionClosed

    with local, _connected(access, f"{path}/portforward", f"ports={port}", (V4,)) as connection:
        way = _Way(local, connection, linger_s)
        sender = threading.Thread(target=way.send_all, name="forward", daemon=True)
        sender.start()
        greeted = set()
        try:
            while True:
                message = connection.recv()
                way.heard.set()
                data = message.encode() if isinstance(message, str) else message
                channel, content = data[0], data[1:]
                if channel not in greeted:  # the first message of each channel is the number of the port
                    greeted.add(channel)
                elif channel == 1:
                    raise ClusterError(f"Port {port} of {path.rpartition('/')[2]}: {content.decode(errors='replace')}")
                else:
                    local.sendall(content)
        except (ConnectionClosed, OSError):
            # Either side closed the connection, which is its normal end.
            return
        finally:
            way.over.set()
            way.heard.set()
            _hang_up(local)
            connection.close()
            sender.join(timeout=JOIN_S)


class _Way:
    """The direction from this machine to the pod."""

    def __init__(self, local: socket.socket, connection: "ClientConnection", linger_s: float) -> None:
        self._local, self._connection, self._linger_s = local, connection, linger_s
        self.heard = threading.Event()
        self.over = threading.Event()

    def send_all(self) -> None:
        """Send all local input, then wait until the pod is silent or the other direction has ended."""
        from websockets.exceptions import ConnectionClosed

        try:
            while data := self._local.recv(PIECE_BYTES):
                self._connection.send(b"\x00" + data)
            while not self.over.is_set():
                self.heard.clear()
                if not self.heard.wait(self._linger_s):
                    break
        except (ConnectionClosed, OSError):
            # The other side is closed below.
            self.over.set()
        self._connection.close()


def _hang_up(local: socket.socket) -> None:
    try:
        local.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is already closed


@contextmanager
def _connected(
    access: ClusterAccess, path: str, query: str, protocols: tuple[str, ...]
) -> Iterator["ClientConnection"]:
    from websockets.exceptions import InvalidStatus, WebSocketException
    from websockets.sync.client import ClientConnection, connect
    from websockets.typing import Subprotocol

    class Connection(ClientConnection):
        """One that a thread of the library reads while others write."""

        def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
            super().__init__(serial(sock), *arguments, **named)

    check_path("GET", path)
    certificate = access.certificate or access.credentials.certificate()
    is_safe = access.server.startswith("https:")
    try:
        connection = connect(
            f"{access.server.replace('http', 'ws', 1)}{path}?{query}",
            ssl=tls_context(access, certificate) if is_safe else None,
            server_hostname=access.tls_server_name if is_safe else None,
            subprotocols=[Subprotocol(protocol) for protocol in protocols],
            additional_headers=identity_headers(access),
            proxy=access.proxy or proxy_of_environment(access.server),
            compression=None,
            open_timeout=OPEN_S,
            ping_interval=PING_S,
            ping_timeout=None,
            close_timeout=2.0,
            max_size=MOST_MESSAGE_BYTES,
            create_connection=Connection,
        )
    except InvalidStatus as error:
        status, body = error.response.status_code, bytes(error.response.body or b"")
        raise (NotAllowed if status == 403 else ClusterError)(_refusal(path, status, body)) from error
    except TimeoutError as error:
        raise ClusterError(
            f"{access.server} opened no stream to {path} within {OPEN_S:g} s; whether it was begun there is not known."
        ) from error
    except (WebSocketException, OSError) as error:
        raise ClusterError(
            f"{access.server} opens no stream to {path}: {error}. Does a proxy stand between that knows no WebSocket?"
        ) from error
    with connection:
        yield connection


def _refusal(what: str, status: int, body: bytes) -> str:
    try:
        message = parse_object(body, max_bytes=MOST_STATUS_BYTES).get("message")
    except ValueError:
        message = body.decode(errors="replace").strip()[:300]
    return f"{what} was refused: {message or 'no reason was given'} (HTTP {status})"
