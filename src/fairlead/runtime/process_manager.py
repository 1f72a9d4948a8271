"""A process manager for MPI: gives ranks their numbers and each other's addresses, by PMI version 1 over TCP.

MPICH and its derivatives start through PMI, the protocol between a rank and its process manager: each rank connects,
publishes the address at which it listens, and reads the others' addresses after a barrier. A request is one line,
`cmd=put key=... value=...`, and so is its response (MPICH's `src/pmi`, wire protocol 1.1).

Shims start their ranks as `PYTHON process_manager.py COMMAND...`. Rank 0's process forks the manager, the others wait
until it listens, because MPI itself does not wait, and each then becomes the command. There is neither `mpirun` nor
ssh. Standard library only.

PMI has no authentication, so beside each rank is a relay on loopback, which takes connections of its user only and
begins each connection to the manager with the token of the attempt.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
import types
from collections.abc import Callable

if __name__ == "__main__":
    # Started by path: Fairlead's modules are found without running fairlead/__init__.py.
    del sys.path[0]
    _here = os.path.dirname(os.path.abspath(__file__))
    for _name, _path in (("fairlead", os.path.dirname(_here)), ("fairlead.runtime", _here)):
        sys.modules[_name] = types.ModuleType(_name)
        sys.modules[_name].__path__ = [_path]
from fairlead.errors import RuntimeFault
from fairlead.runtime import processes
from fairlead.runtime.admission import PeerAdmission, greet
from fairlead.runtime.peer_users import is_known_user
from fairlead.runtime.run_key import token_here

LOOPBACK = "127.0.0.1"
# The same limits as those of MPICH's own manager.
MAXES = "kvsname_max=256 keylen_max=64 vallen_max=4096"
LINE_MOST = 64 * 1024
# A rank that leaves so many bytes of answers unread is stopped, or is none.
UNREAD_MOST = 1024 * 1024
END_WITHIN_S = 5.0
# Pods of a gang start within seconds of each other, but pulling an image may take minutes.
LISTEN_WITHIN_S = 1_800.0
_RETRY_S = 0.2


def main(command: list[str]) -> None:
    """Make sure that the manager listens, start this rank's relay to it, and become the command."""
    env = os.environ
    host, _, port = env["PMI_PORT"].rpartition(":")
    try:
        token = token_here(env, "mpi")
    except RuntimeFault as error:
        sys.exit(f"fairlead: {error}")
    manager = _Address(host, int(port), token, env["PMI_RANK"].encode())
    if env["PMI_RANK"] == "0":
        _start(manager)
    else:
        _await(manager)
    env["PMI_PORT"] = f"{LOOPBACK}:{_start_relay(manager)}"
    processes.become(command)


class _Address:
    """The address of the manager, with the token by which it knows this rank."""

    def __init__(self, host: str, port: int, token: bytes, rank: bytes) -> None:
        self.host, self.port, self.token, self._rank = host, port, token, rank

    def connect(self) -> socket.socket:
        """Return a connection that the manager admits.

        Raises:
            OSError: It cannot be reached.
        """
        connection = socket.create_connection((self.host, self.port), timeout=10.0)
        greet(connection, self.token, self._rank)
        connection.settimeout(None)
        return connection


def _start(manager: _Address) -> None:
    """Fork the manager, which already listens when this returns and ends with this process."""
    env = os.environ
    # A pod's own name may not resolve yet, so this listens on all addresses.
    listener = socket.create_server((LOOPBACK if manager.host == LOOPBACK else "", manager.port), backlog=1024)
    parent, num_ranks = os.getpid(), int(env["PMI_SIZE"])
    if os.fork() == 0:
        processes.die_with_parent(parent)
        name = f"{env['FAIRLEAD_RUN_UID']}-{env['FAIRLEAD_ATTEMPT']}"
        serve(listener, ProcessManager(num_ranks, int(env["FAIRLEAD_RANKS_PER_HOST"]), name), manager.token)
        os._exit(0)
    listener.close()


def _await(manager: _Address) -> None:
    until = time.monotonic() + LISTEN_WITHIN_S
    while True:
        try:
            manager.connect().close()
            return
        except OSError as error:
            if time.monotonic() >= until:
                sys.exit(
                    f"fairlead: rank 0 does not listen at {manager.host}:{manager.port} after {LISTEN_WITHIN_S:g} s: "
                    f"{error}"
                )
            time.sleep(_RETRY_S)


def _start_relay(manager: _Address) -> int:
    """Fork the relay of this rank, which ends with it, and return its port."""
    listener = socket.create_server((LOOPBACK, 0), backlog=16)
    port: int = listener.getsockname()[1]
    parent = os.getpid()
    if os.fork() == 0:
        processes.die_with_parent(parent)
        try:
            relay(listener, manager.connect)
        finally:
            os._exit(1)
    listener.close()
    return port


def relay(listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
    """Pass on what connections of this user send, each through one of its own, until the listener is closed."""
    while True:
        try:
            client, address = listener.accept()
        except OSError:
            if listener.fileno() < 0:
                return
            time.sleep(_RETRY_S)  # the other side was faster to leave
            continue
        if not is_known_user(address[:2], client.getsockname()[:2]):
            client.close()
            continue
        try:
            upstream = connect()
        except OSError as error:
            print(f"fairlead: the process manager of MPI cannot be reached: {error}", file=sys.stderr, flush=True)
            client.close()
            continue
        for source, sink in ((client, upstream), (upstream, client)):
            threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
    source.close()


class ProcessManager:
    """The ranks of one attempt and the values that they have published.

    Args:
        num_ranks: Number of ranks.
        ranks_per_host: Number of consecutive ranks that share a host, and so its memory.
        name: Name of the group, different for each attempt on a host, because MPICH names shared memory by it.
    """

    def __init__(self, num_ranks: int, ranks_per_host: int, name: str) -> None:
        self._size, self._name = num_ranks, name
        hosts = -(-num_ranks // ranks_per_host)
        self._values = {"PMI_process_mapping": f"(vector,(0,{hosts},{ranks_per_host}))"}
        self._at_barrier: list[Callable[[str], None]] = []
        self._at_end: list[Callable[[str], None]] = []
        self._rank_0: Callable[[str], None] | None = None
        self.is_over = False

    def answer(self, line: str, reply: Callable[[str], None]) -> None:
        """Answer one request; a barrier is answered once the last rank reaches it.

        Raises:
            ValueError: The line is not a request of this version.
        """
        command, _, rest = line.partition(" ")
        # The value is the last field and may contain anything but a line break.
        rest, has_value, value = rest.partition("value=")
        fields = dict(part.split("=", 1) for part in rest.split() if "=" in part)
        if command == "cmd=initack":
            rank = int(fields["pmiid"])
            if rank == 0:
                self._rank_0 = reply
            reply(f"cmd=initack rc=0\ncmd=set size={self._size}\ncmd=set rank={rank}\ncmd=set debug=0\n")
        elif command == "cmd=init":
            reply("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n")
        elif command == "cmd=get_maxes":
            reply(f"cmd=maxes {MAXES}\n")
        elif command == "cmd=get_appnum":
            reply("cmd=appnum appnum=0\n")
        elif command == "cmd=get_my_kvsname":
            reply(f"cmd=my_kvsname kvsname={self._name}\n")
        elif command == "cmd=get_universe_size":
            reply(f"cmd=universe_size size={self._size}\n")
        elif command == "cmd=put" and has_value:
            self._values[fields["key"]] = value
            reply("cmd=put_result rc=0 msg=success\n")
        elif command == "cmd=get":
            stored = self._values.get(fields["key"])
            missing = "cmd=get_result rc=-1 msg=key_not_found value=unknown\n"
            reply(missing if stored is None else f"cmd=get_result rc=0 msg=success value={stored}\n")
        elif command in ("cmd=barrier_in", "cmd=finalize") and reply in (*self._at_barrier, *self._at_end):
            raise ValueError("a rank that waits makes no request")
        elif command == "cmd=barrier_in":
            self._at_barrier.append(reply)
            if len(self._at_barrier) == self._size:
                waiting, self._at_barrier = self._at_barrier, []
                for send in waiting:
                    send("cmd=barrier_out rc=0\n")
        elif command == "cmd=finalize":
            self._at_end.append(reply)
            if len(self._at_end) == self._size:
                # Rank 0 is answered last, because the manager ends with it.
                for send in sorted(self._at_end, key=lambda send: send is self._rank_0):
                    send("cmd=finalize_ack rc=0\n")
                self.is_over = True
        elif command != "cmd=abort":  # the rank exits with the given code, which its shim records
            raise ValueError(f"{line[:200]!r} is not a request of PMI 1.1")


def serve(listener: socket.socket, manager: ProcessManager, token: bytes) -> None:
    """Serve the ranks until all have finalized; any error of one of them closes its connection only."""
    with selectors.DefaultSelector() as selector:
        admission = PeerAdmission(listener, token, selector)
        clients: set[_Client] = set()
        while not manager.is_over:
            for key, events in selector.select(admission.timeout_s):
                if key.data is admission:
                    admitted = admission.handle(key)
                    if admitted is not None:
                        clients.add(_Client(admitted[0], selector))
                    continue
                client: _Client = key.data
                if events & selectors.EVENT_READ and not client.is_over:
                    client.read(manager)
                if events & selectors.EVENT_WRITE and not client.is_over:
                    client.flush()
            admission.expire()
            for client in [client for client in clients if client.is_over]:
                # A rank that disconnected without finalizing was killed, which its shim reports.
                clients.remove(client)
                client.close()
        for client in clients:
            client.finish()
        admission.close()


class _Client:
    """A connection of a rank; requests are read and answers written as its other side takes them."""

    def __init__(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        connection.setblocking(False)
        self.is_over = False
        self._connection = connection
        self._selector = selector
        self._unread = b""
        self._unsent = bytearray()
        selector.register(connection, selectors.EVENT_READ, self)

    def read(self, manager: ProcessManager) -> None:
        try:
            data = self._connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                manager.answer(line.decode(), self.reply)
            self.is_over = self.is_over or len(self._unread) > LINE_MOST
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, OverflowError):  # it is gone, or no rank of MPI
            self.is_over = True

    def reply(self, text: str) -> None:
        """Send an answer as far as the other side takes it now, and the rest later."""
        self._unsent += text.encode()
        self.flush()

    def flush(self) -> None:
        if self.is_over:
            return
        try:
            del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()
            self.is_over = True
        if len(self._unsent) > UNREAD_MOST:
            self.is_over = True
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self._connection).events != events:
            self._selector.modify(self._connection, events, self)

    def finish(self) -> None:
        """Send what is left and close."""
        with contextlib.suppress(OSError):
            self._connection.settimeout(END_WITHIN_S)
            self._connection.sendall(self._unsent)
        self.close()

    def close(self) -> None:
        self._selector.unregister(self._connection)
        self._connection.close()


if __name__ == "__main__":
    main(sys.argv[1:])
