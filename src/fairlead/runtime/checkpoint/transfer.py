"""Transfers files between the memories of a run's nodes, over sockets.

Every rank has a server, which receives drafts from ranks of another node and sends files that it has. The server
authenticates the peer and checks nothing else: the manifest defines which files belong to a checkpoint and their
checksums.
"""

import hmac
import os
import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fairlead.runtime.channels import receive, send
from fairlead.runtime.errors import StoreUnavailable

TIMEOUT_S = 120.0
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a rank's server, and the token by which it recognizes ranks of its run."""

    host: str
    port: int
    token: str


class Server:
    """Serves the directory of this rank's node until it is closed, on its own threads, which end with the process."""

    def __init__(self, root: Path, *, host: str, token: str) -> None:
        self._root = root
        self._token = token
        self._listener = socket.create_server((host, 0), backlog=128)
        self.address = Address(host=host, port=self._listener.getsockname()[1], token=token)
        threading.Thread(target=self._listen, name="fairlead-memory", daemon=True).start()

    def close(self) -> None:
        """Stop answering requests."""
        # Only a shutdown wakes a thread that waits in accept.
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # closed before
        finally:
            self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), name="fairlead-memory", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(TIMEOUT_S)
            try:
                asked = receive(connection)
                if not isinstance(asked, dict) or not hmac.compare_digest(str(asked.get("token")), self._token):
                    return
                try:
                    self._do(connection, asked)
                except (OSError, KeyError, TypeError, ValueError) as error:
                    send(connection, {"problem": _told(error)})
            except (OSError, ValueError):
                return  # the peer is gone; it detects the same and reports it to its own ranks

    def _do(self, connection: socket.socket, asked: dict[str, Any]) -> None:
        if "put" in asked:
            for name, size in asked["files"]:
                goal = _below(self._root, asked["put"], name)
                goal.parent.mkdir(parents=True, exist_ok=True)
                _receive_file(connection, goal, size)
            send(connection, {"problem": None})
            return
        with _below(self._root, asked["get"], asked["name"]).open("rb") as file:
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
            send(connection, {"token": address.token, "put": draft, "files": sizes})
            for path in files.values():
                with path.open("rb") as file:
                    connection.sendfile(file)
            problem = receive(connection)["problem"]
    except (OSError, ValueError) as error:
        raise StoreUnavailable(f"a neighbour's memory cannot be reached: {_told(error)}") from error
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
                send(connection, {"token": address.token, "get": directory, "name": name})
                answer = receive(connection)
                if answer["problem"] is not None:
                    raise StoreUnavailable(f"a neighbour's memory cannot give {name}: {answer['problem']}")
                path = _below(goal, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                _receive_file(connection, path, answer["size"])
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"a neighbour's memory cannot be reached: {_told(error)}") from error


def _connected(address: Address) -> socket.socket:
    connection = socket.create_connection((address.host, address.port), timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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


def _below(root: Path, *parts: str) -> Path:
    """Return a path below a directory; refuse a name that leads out of it."""
    path = PurePosixPath(*parts)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{path} is not below the memory's directory")
    return root / path


def _told(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
