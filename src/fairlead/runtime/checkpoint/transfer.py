"""Transfers files between the memories of a run's nodes, over sockets.

Every rank has a server, which receives drafts from ranks of another node and sends files that it has. The server
admits those that have the token of the ranks, and checks nothing else: the manifest defines which files belong to a
checkpoint and their checksums.
"""

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.runtime.admission import PeerAdmission, greet
from fairlead.runtime.channels import receive, send
from fairlead.runtime.errors import StoreUnavailable
from fairlead.runtime.paths import below

TIMEOUT_S = 120.0
REQUEST_BYTES = 16 << 20
"""The longest request, which names all files of a rank's part."""
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a rank's server, and the token by which it recognizes ranks of its run."""

    host: str
    port: int
    token: str


class TransferServer:
    """Serves the directory of this rank's node until it is closed, on its own threads, which end with the process."""

    def __init__(self, root: Path, *, host: str, token: str) -> None:
        self._root = root
        self._token = bytes.fromhex(token)
        self._listener = socket.create_server((host, 0), backlog=128)
        self.address = Address(host=host, port=self._listener.getsockname()[1], token=token)
        self._closing, self._close = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="fairlead-memory", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering requests."""
        with contextlib.suppress(OSError):  # closed before
            self._close.send(b"c")
        self._thread.join()

    def _listen(self) -> None:
        with self._listener, self._closing, self._close, selectors.DefaultSelector() as selector:
            admission = PeerAdmission(self._listener, self._token, selector)
            selector.register(self._closing, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(admission.timeout_s):
                    if key.fileobj is self._closing:
                        admission.close()
                        return
                    admitted = admission.handle(key)
                    if admitted is not None:
                        answer = partial(self._answer, admitted[0])
                        threading.Thread(target=answer, name="fairlead-memory", daemon=True).start()
                admission.expire()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(TIMEOUT_S)
            try:
                request = receive(connection, max_bytes=REQUEST_BYTES)
                try:
                    self._do(connection, request)
                except (OSError, KeyError, TypeError, ValueError, OverflowError) as error:
                    send(connection, {"problem": _message_of(error)})
            except (OSError, ValueError):
                return  # the peer is gone; it detects the same and reports it to its own ranks

    def _do(self, connection: socket.socket, request: dict[str, Any]) -> None:
        if "put" in request:
            for name, size in request["files"]:
                goal = below(self._root, request["put"], name)
                goal.parent.mkdir(parents=True, exist_ok=True)
                _receive_file(connection, goal, size)
            send(connection, {"problem": None})
            return
        with below(self._root, request["get"], request["name"]).open("rb") as file:
            send(connection, {"problem": None, "size": os.fstat(file.fileno()).st_size})
            connection.sendfile(file)


def put(address: Address, draft: str, files: Mapping[str, Path]) -> None:
    """Send files into a draft in another node's memory.

    Raises:
        StoreUnavailable: The node cannot be reached or cannot store the files.
    """
    sizes = [[name, path.stat().st_size] for name, path in files.items()]
    try:
        with _connected(address) as connection:
            send(connection, {"put": draft, "files": sizes})
            for path in files.values():
                with path.open("rb") as file:
                    connection.sendfile(file)
            problem = receive(connection, max_bytes=REQUEST_BYTES)["problem"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreUnavailable(f"a neighbour's memory cannot be reached: {_message_of(error)}") from error
    if problem is not None:
        raise StoreUnavailable(f"a neighbour's memory cannot take it: {problem}")


def get(address: Address, directory: str, names: Iterable[str], goal: Path) -> None:
    """Fetch files of a directory in another node's memory.

    Raises:
        StoreUnavailable: The node cannot be reached or cannot send a file.
    """
    for name in names:
        try:
            with _connected(address) as connection:
                send(connection, {"get": directory, "name": name})
                answer = receive(connection, max_bytes=REQUEST_BYTES)
                if answer["problem"] is not None:
                    raise StoreUnavailable(f"a neighbour's memory cannot give {name}: {answer['problem']}")
                path = below(goal, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                _receive_file(connection, path, answer["size"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreUnavailable(f"a neighbour's memory cannot be reached: {_message_of(error)}") from error


def _connected(address: Address) -> socket.socket:
    connection = socket.create_connection((address.host, address.port), timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    greet(connection, bytes.fromhex(address.token))
    return connection


def _receive_file(connection: socket.socket, path: Path, size: int) -> None:
    buffer = memoryview(bytearray(min(CHUNK_BYTES, max(size, 1))))
    with path.open("wb", buffering=0) as file:
        while size:
            count = connection.recv_into(buffer, min(size, len(buffer)))
            if not count:
                raise ConnectionResetError("the connection was closed")
            part = buffer[:count]
            while part:
                part = part[file.write(part) :]
            size -= count


def _message_of(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
