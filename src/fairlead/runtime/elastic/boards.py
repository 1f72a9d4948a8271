"""Posts small values of ranks for each other and tells which of them are alive: by files, or at a server.

On one machine these are files in a directory that all ranks share, and locks, which the kernel releases when it kills
their holder. Pods share no directory: there it is a connection to the server beside the first rank. Standard library
only.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fairlead.runtime.admission import greet
from fairlead.runtime.elastic.beginnings import EPOCH
from fairlead.runtime.elastic.member_server import MOST_UNREAD, notice_silence
from fairlead.runtime.errors import ReformFailed
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.untrusted_json import parse_object

LOOK_EVERY_S = 0.01
# A killed rank releases its place as soon as the kernel has ended it.
ENTER_WITHIN_S = 10.0
# The server starts with the first pod, which may start last.
FIND_WITHIN_S = 60.0
ANSWER_WITHIN_S = 30.0


class Board(Protocol):
    """One rank's view; the rank holds its place from its creation on."""

    host: str
    """Address at which the other ranks reach this one."""

    @property
    def is_cut_off(self) -> bool:
        """Return whether this rank no longer learns of the others."""
        ...

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the value that was posted last; None if none was."""
        ...

    def post(self, name: str, value: dict[str, Any]) -> None:
        """Replace a value; whoever sees this rank leave has seen what it posted before."""
        ...

    def is_alive(self, rank: int, token: str) -> bool:
        """Return whether the process with this token holds the place of another rank."""
        ...

    def exit_if_partitioned(self) -> None:
        """End this process once it is cut off: a rank that can reach the others again begins anew.

        Raises:
            ReformFailed: The others cannot be reached.
        """
        ...

    def close(self) -> None:
        """Leave the place."""
        ...


def open_board(
    directory: Path,
    server: tuple[str, int] | None,
    rank: int,
    token: str,
    replacement: int = 0,
    *,
    admission: Callable[[], bytes],
) -> Board:
    """Take a rank's place.

    Args:
        directory: Directory that the ranks share; with a server only those of this pod.
        server: Host and port of the server; None without one.
        token: Name of this process, by which others tell it from an earlier one of its rank.
        admission: Returns the secret with which the server admits ranks.
        replacement: Number of earlier pods of this rank in the attempt, whose processes get the place no more.

    Raises:
        ReformFailed: Another process holds the place, or the server cannot be reached.
    """
    if server is None:
        return FileBoard(directory, rank, token)
    return ServedBoard(directory, server, admission(), rank, token, replacement)


class FileBoard:
    """Files and locks in a directory that all ranks share."""

    host = "127.0.0.1"
    is_cut_off = False

    def __init__(self, directory: Path, rank: int, token: str) -> None:
        self._directory = directory
        self._rank = rank
        directory.mkdir(parents=True, exist_ok=True)
        self._locks = self._enter(token)

    def read(self, name: str) -> dict[str, Any] | None:
        return read_json(self._directory / name)

    def post(self, name: str, value: dict[str, Any]) -> None:
        write_json(self._directory / name, value, durably=False)

    def is_alive(self, rank: int, token: str) -> bool:
        try:
            lock = os.open(self._path(rank), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            try:
                # A lock of the process, not of the open file, so that a data loader's worker that outlives its rank
                # holds none. It is a shared lock, so that two processes that check at once do not see each other's
                # lock.
                fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return bool(_token_in(lock) == token)
            return False
        finally:
            os.close(lock)

    def exit_if_partitioned(self) -> None:
        raise AssertionError("files are always at hand")

    def close(self) -> None:
        for lock in reversed(self._locks):
            os.close(lock)

    def _enter(self, token: str) -> tuple[int, int]:
        """Take the rank's place, and publish the lock that the other ranks look at together with the token in it.

        Published before its token, the lock would make the process that held the place before seem alive again.
        """
        place_lock = os.open(self._directory / f"rank-{self._rank}.place", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + ENTER_WITHIN_S
        while True:
            try:
                fcntl.lockf(place_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    os.close(place_lock)
                    raise ReformFailed(f"another process is rank {self._rank}") from error
                time.sleep(LOOK_EVERY_S)
        unpublished = self._directory / f"rank-{self._rank}.lock.new"
        unpublished.unlink(missing_ok=True)
        lock = os.open(unpublished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(lock, fcntl.LOCK_EX)
        os.pwrite(lock, json.dumps(token).encode(), 0)
        unpublished.rename(self._path(self._rank))
        return place_lock, lock

    def _path(self, rank: int) -> Path:
        return self._directory / f"rank-{rank}.lock"


class ServedBoard:
    """A connection to `member_server.py`, which sends every change; reading waits for nothing."""

    def __init__(
        self, directory: Path, server: tuple[str, int], secret: bytes, rank: int, token: str, replacement: int = 0
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._server = server
        self._values: dict[str, Any] = {}
        self._living: dict[int, str] = {}
        self._changed = threading.Condition()
        self._num_posted = self._num_done = 0
        self._is_lost = self._is_closed = False
        self._secret = secret
        self._connection, rest = self._enter({"rank": rank, "token": token, "replacement": replacement})
        self.host: str = self._connection.getsockname()[0]
        # A data loader's worker that outlives its rank must not keep the connection open.
        os.register_at_fork(after_in_child=self._connection.close)
        threading.Thread(target=self._follow, args=(rest,), name="fairlead-board", daemon=True).start()

    @property
    def is_cut_off(self) -> bool:
        return self._is_lost

    def read(self, name: str) -> dict[str, Any] | None:
        with self._changed:
            value: dict[str, Any] | None = self._values.get(name)
            return value

    def post(self, name: str, value: dict[str, Any]) -> None:
        """Replace a value; does nothing once this rank is cut off, which it learns when it waits for the others."""
        with self._changed:
            self._num_posted += 1
            number = self._num_posted
        with contextlib.suppress(OSError):  # the connection is gone, which `_follow` records
            self._connection.sendall(json.dumps({"name": name, "value": value, "number": number}).encode() + b"\n")
        with self._changed:
            self._changed.wait_for(lambda: self._is_lost or self._num_done >= number, ANSWER_WITHIN_S)

    def is_alive(self, rank: int, token: str) -> bool:
        with self._changed:
            return self._living.get(rank) == token

    def exit_if_partitioned(self) -> None:
        try:
            socket.create_connection(self._server, timeout=ANSWER_WITHIN_S).close()
        except OSError as error:
            raise ReformFailed(f"the first pod, through which the ranks find each other, is gone: {error}") from error
        # The others have gone on without this rank, whose state is not theirs; its shim starts a killed rank again.
        print("fairlead: this rank was cut off from the others for a while, and starts again", file=sys.stderr)
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):  # the server is gone
            self._connection.shutdown(socket.SHUT_RDWR)

    def _enter(self, hello: Mapping[str, Any]) -> tuple[socket.socket, bytes]:
        """Connect and take the rank's place; return the connection and what it has received of later changes."""
        deadline = time.monotonic() + FIND_WITHIN_S
        place = f"{self._server[0]}:{self._server[1]}"
        while True:
            connection = None
            try:
                connection = socket.create_connection(self._server, timeout=ANSWER_WITHIN_S)
                notice_silence(connection)
                greet(connection, self._secret, json.dumps(hello).encode())
                first, rest = _first_line(connection)
            except (OSError, ValueError) as error:
                problem = f"the ranks' server at {place} cannot be reached: {error}"
                if connection is not None:
                    connection.close()
            else:
                if "values" in first:
                    connection.settimeout(None)
                    for name, value in first["values"].items():
                        self._keep(name, value)
                    self._living = {int(rank): str(token) for rank, token in first["living"].items()}
                    return connection, rest
                connection.close()
                if "replaced" in first:
                    raise ReformFailed(f"the pod of rank {hello['rank']} was taken for lost, and is replaced")
                problem = f"another process is rank {hello['rank']}"
                deadline = min(deadline, time.monotonic() + ENTER_WITHIN_S)
            if time.monotonic() > deadline:
                raise ReformFailed(problem)
            time.sleep(0.05)

    def _follow(self, rest: bytes) -> None:
        """Apply every change, until the connection ends."""
        try:
            while True:
                *lines, rest = rest.split(b"\n")
                if lines:
                    with self._changed:
                        for line in lines:
                            self._apply(parse_object(line, max_bytes=MOST_UNREAD))
                        self._changed.notify_all()
                data = self._connection.recv(1 << 16)
                if not data:
                    break
                rest += data
        except (OSError, ValueError) as error:
            if not self._is_closed:
                print(f"fairlead: the connection to the ranks' server ended: {error}", file=sys.stderr)
        finally:
            with self._changed:
                self._is_lost = True
                self._changed.notify_all()

    def _apply(self, change: Mapping[str, Any]) -> None:
        if "done" in change:
            self._num_done = max(self._num_done, int(change["done"]))
        elif "rank" in change and change["token"] is None:
            self._living.pop(int(change["rank"]), None)
        elif "rank" in change:
            self._living[int(change["rank"])] = str(change["token"])
        else:
            self._keep(change["name"], change["value"])

    def _keep(self, name: str, value: dict[str, Any]) -> None:
        if name == EPOCH:  # for `has_begun`, of this rank's shim and of a rank that comes back
            write_json(self._directory / EPOCH, value, durably=False)
        self._values[name] = value


def _first_line(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Return the first message received and what came after it."""
    received = b""
    while b"\n" not in received:
        data = connection.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the connection was closed")
        received += data
        if len(received) > MOST_UNREAD:
            raise ValueError("another program listens there")
    line, _, rest = received.partition(b"\n")
    return parse_object(line, max_bytes=MOST_UNREAD), rest


def _token_in(file: int) -> Any:
    return json.loads(os.pread(file, 256, 0))
