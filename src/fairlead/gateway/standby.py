"""Keeps a standby: a second gateway process, imported and waiting, that takes over at once if this one is killed.

The two hold the ends of a socket pair. Either learns of the other's death by the end of its stream, which the kernel
delivers with a kill as well. The standby holds the listening socket too, so that connections wait in its backlog and
none is refused in between. An orderly end kills the standby first.

See decision 130.
"""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

AFTER_S = 1.0
"""Seconds of serving after which a standby is started, so that a gateway that fails at once has none."""
LONGEST_S = 60.0
"""Longest delay before the next start of a standby that keeps ending."""
STEADY_S = 30.0
"""A standby that lived so many seconds resets the delay."""


class StandbyProcess:
    """The standby of this process.

    Args:
        arguments: Command line of this process.
        pass_fds: Descriptors that the arguments name.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        arguments: Sequence[str],
        pass_fds: Sequence[int],
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._command = [sys.executable, "-X", "utf8", "-m", "fairlead.gateway", *arguments]
        self._pass_fds = pass_fds
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._wait_s = AFTER_S
        self._started = 0.0
        self._timer = loop.call_later(self._wait_s, self._start)

    def end(self) -> None:
        """Kill the standby; no other follows."""
        self._timer.cancel()
        self._forget()

    def _start(self) -> None:
        self._started = self._loop.time()
        link, its = socket.socketpair()
        try:
            with its:
                self._process = subprocess.Popen(
                    [*self._command, "--after", str(its.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[*self._pass_fds, its.fileno()],
                )
            socket.send_fds(link, [b"door"], [self._listening.fileno()])
        except OSError as error:
            print(f"gateway: no standby: {error}", file=sys.stderr, flush=True)
            link.close()
            self._forget()
            self._start_later()
            return
        link.setblocking(False)
        self._link = link
        self._loop.add_reader(link, self._ended)

    def _ended(self) -> None:
        if self._loop.time() - self._started >= STEADY_S:
            self._wait_s = AFTER_S
        self._forget()
        self._start_later()

    def _start_later(self) -> None:
        self._timer = self._loop.call_later(self._wait_s, self._start)
        self._wait_s = min(LONGEST_S, 2 * self._wait_s)

    def _forget(self) -> None:
        if self._link is not None:
            self._loop.remove_reader(self._link)
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def wait_to_take_over(link: socket.socket) -> socket.socket:
    """Wait until the process at the other end is gone, and return the listening socket that it sent.

    Raises:
        OSError: It ended before it had sent one.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to finish yet
    with link:
        _, fds, _, _ = socket.recv_fds(link, 16, 1)
        if not fds:
            raise OSError("the gateway before it sent no listening socket")
        gc.collect()
        gc.freeze()  # what is imported; a collection after the takeover would delay the first requests by milliseconds
        with suppress(ConnectionResetError):
            link.recv(1)
    return socket.socket(fileno=fds[0])


def sign(lock: int) -> None:
    """Write the id of this process into the lock file, as of the one that answers now."""
    text = str(os.getpid()).encode()
    with suppress(OSError):  # on a full disk; overwriting needs no room where the length stays
        os.pwrite(lock, text, 0)
        os.ftruncate(lock, len(text))
