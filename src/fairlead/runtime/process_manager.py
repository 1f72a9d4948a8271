"""A process manager for MPI: gives ranks their numbers and each other's addresses, by PMI version 1 over TCP.

MPICH and its derivatives start through PMI, the protocol between a rank and its process manager: each rank connects,
publishes the address at which it listens, and reads the others' addresses after a barrier. A request is one line,
`cmd=put key=... value=...`, and so is its response (MPICH's `src/pmi`, wire protocol 1.1).

Shims start their ranks as `PYTHON process_manager.py COMMAND...`. Rank 0's process forks the manager, the others wait
until it listens, because MPI itself does not wait, and each then becomes the command. There is neither `mpirun` nor
ssh. Standard library only, one thread.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
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
from fairlead.runtime import processes

# The same limits as those of MPICH's own manager.
MAXES = "kvsname_max=256 keylen_max=64 vallen_max=4096"
LINE_MOST = 64 * 1024
# Pods of a gang start within seconds of each other, but pulling an image may take minutes.
LISTEN_WITHIN_S = 1_800.0
_RETRY_S = 0.2


def main(command: list[str]) -> None:
    """Make sure that the manager listens, and become the command."""
    env = os.environ
    host, _, port = env["PMI_PORT"].rpartition(":")
    if env["PMI_RANK"] == "0":
        _start(host, int(port))
    else:
        _await(host, int(port))
    processes.become(command)


def _start(host: str, port: int) -> None:
    """Fork the manager, which already listens when this returns and ends with this process."""
    env = os.environ
    # A pod's own name may not resolve yet, so this listens on all addresses; only pods of the run can reach it.
    listener = socket.create_server((host if host == "127.0.0.1" else "", port), backlog=1024)
    parent, num_ranks = os.getpid(), int(env["PMI_SIZE"])
    if os.fork() == 0:
        processes.die_with_parent(parent)
        name = f"{env['FAIRLEAD_RUN_UID']}-{env['FAIRLEAD_ATTEMPT']}"
        serve(listener, ProcessManager(num_ranks, int(env["FAIRLEAD_RANKS_PER_HOST"]), name))
        os._exit(0)
    listener.close()


def _await(host: str, port: int) -> None:
    until = time.monotonic() + LISTEN_WITHIN_S
    while True:
        try:
            socket.create_connection((host, port), timeout=10.0).close()
            return
        except OSError as error:
            if time.monotonic() >= until:
                sys.exit(f"fairlead: rank 0 does not listen at {host}:{port} after {LISTEN_WITHIN_S:g} s: {error}")
            time.sleep(_RETRY_S)


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
            found = self._values.get(fields["key"])
            missing = "cmd=get_result rc=-1 msg=key_not_found value=unknown\n"
            reply(missing if found is None else f"cmd=get_result rc=0 msg=success value={found}\n")
        elif command == "cmd=barrier_in":
            self._at_barrier.append(reply)
            if len(self._at_barrier) == self._size:
                waiting, self._at_barrier = self._at_barrier, []
                for each in waiting:
                    each("cmd=barrier_out rc=0\n")
        elif command == "cmd=finalize":
            self._at_end.append(reply)
            if len(self._at_end) == self._size:
                # Rank 0 is answered last, because the manager ends with it.
                for each in sorted(self._at_end, key=lambda each: each is self._rank_0):
                    each("cmd=finalize_ack rc=0\n")
                self.is_over = True
        elif command != "cmd=abort":  # the rank exits with the given code, which its shim records
            raise ValueError(f"{line[:200]!r} is not a request of PMI 1.1")


def serve(listener: socket.socket, manager: ProcessManager) -> None:
    """Serve the ranks until all have finalized."""
    clients = selectors.DefaultSelector()
    clients.register(listener, selectors.EVENT_READ)
    unread: dict[socket.socket, bytes] = {}
    replies: dict[socket.socket, Callable[[str], None]] = {}
    while not manager.is_over:
        for key, _ in clients.select():
            if key.fileobj is listener:
                new, _ = listener.accept()
                clients.register(new, selectors.EVENT_READ)
                unread[new], replies[new] = b"", _sender(new)
                continue
            client = key.fileobj
            assert isinstance(client, socket.socket)
            with contextlib.suppress(ConnectionError):
                if data := client.recv(1 << 16):
                    *lines, unread[client] = (unread[client] + data).split(b"\n")
                    for line in lines:
                        manager.answer(line.decode(), replies[client])
                    if len(unread[client]) <= LINE_MOST:
                        continue
            # A rank that disconnected without finalizing was killed, which its shim reports.
            clients.unregister(client)
            del unread[client], replies[client]
            client.close()
    for client in unread:
        client.close()
    clients.close()


def _sender(client: socket.socket) -> Callable[[str], None]:
    def send(text: str) -> None:
        with contextlib.suppress(OSError):
            client.sendall(text.encode())

    return send


if __name__ == "__main__":
    main(sys.argv[1:])
