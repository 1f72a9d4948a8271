"""The process group of an epoch: it can be created, aborted while a collective waits, and created again.

A gloo collective may wait for half an hour for a rank that is gone, or for one that has given up. So a thread watches
for members that are gone and shuts down the connections of the group: every collective of this process then fails at
once, and so do those of the other members.

On a busy machine gloo has been seen to wait on all the same, about once in twenty-five times. The thread kills such a
process, as the other members wait a minute for it and then fail; its shim starts it again, and it returns in place.

See decision 88.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fairlead.runtime.elastic.membership import Epoch, Membership

CONNECT_WITHIN_S = 30.0
STEP_WITHIN_S = 1800.0
WATCH_EVERY_S = 0.05
STUCK_AFTER_S = 30.0
"""For so long a thread may wait where a collective may be, without computing, after its connections were shut down."""

STUCK_CPU_S = 0.1
"""Processor time in seconds by which it computes."""

STUCK = "fairlead: a collective did not fail when a rank was gone; this rank starts again"


class EpochGroup:
    """torch.distributed's default group, over the members of the newest epoch.

    Attributes:
        is_in_use: Whether the program is where it may wait for other members.
    """

    def __init__(self, membership: Membership) -> None:
        self.is_in_use = False
        self._membership = membership
        self._hosted: dist.TCPStore | None = None
        self._sockets: set[tuple[int, str]] = set()
        self._before_more: set[tuple[int, str]] | None = None
        self._over: threading.Event | None = None

    def host(self) -> int:
        """Open the store at which the members of the next epoch meet, and return its port."""
        self._hosted = dist.TCPStore(self._membership.host, 0, is_master=True, wait_for_workers=False)
        return self._hosted.port

    def form(self, epoch: Epoch, rank: int) -> None:
        """Create the group of an epoch; collective.

        Raises:
            RuntimeError: A member is already gone.
        """
        self.end()
        place = epoch.members.index(rank)
        limit = timedelta(seconds=CONNECT_WITHIN_S)
        before = _open_sockets()
        store = self._hosted
        if store is None or (self._membership.host, store.port) != (epoch.host, epoch.port):
            store = dist.TCPStore(epoch.host, epoch.port, timeout=limit)
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(f"epoch-{epoch.number}", store),
            rank=place,
            world_size=len(epoch.members),
            timeout=limit,
        )
        _allow(timedelta(seconds=STEP_WITHIN_S))
        self._sockets = _open_sockets() - before
        self._over = threading.Event()
        clock = time.pthread_getcpuclockid(threading.get_ident())
        threading.Thread(target=self._watch, args=(self._over, clock), name="fairlead-members", daemon=True).start()

    def opening(self, open_more: Callable[[], object]) -> None:
        """Call a function that creates more groups; their connections end with those of this one."""
        self._before_more = _open_sockets()
        open_more()
        self._sockets |= _open_sockets() - self._before_more
        self._before_more = None

    def abort(self) -> None:
        """Shut down the group's connections, so that every collective that waits for another rank fails."""
        still, before = _open_sockets(), self._before_more
        opening = set() if before is None else still - before
        for number, _ in self._sockets & still | opening:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                connection.getpeername()  # fails for a listening socket, which gloo needs to stay open
                connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Destroy the group; no collective of it may be in progress."""
        if self._over is not None:
            self._over.set()
            self._over = None
        if dist.is_initialized():
            dist.destroy_process_group()
        self._sockets = set()

    def _watch(self, over: threading.Event, clock: int) -> None:
        while not over.wait(WATCH_EVERY_S):
            if self._membership.lost_members() and not over.is_set():
                self.abort()
                with contextlib.suppress(OSError):  # that thread is over
                    self._kill_if_stuck(over, clock)
                return

    def _kill_if_stuck(self, over: threading.Event, clock: int) -> None:
        """Kill this process if a collective has not failed.

        Args:
            clock: The processor time of the thread that uses the group.
        """
        since, used_s = time.monotonic(), time.clock_gettime(clock)
        while not over.wait(WATCH_EVERY_S):
            now_used_s = time.clock_gettime(clock)
            if not self.is_in_use or now_used_s > used_s + STUCK_CPU_S:
                since, used_s = time.monotonic(), now_used_s
            elif time.monotonic() > since + STUCK_AFTER_S:
                print(STUCK, file=sys.stderr)
                sys.stderr.flush()
                os.kill(os.getpid(), signal.SIGKILL)


def move_to_group(module: torch.nn.Module) -> None:
    """Make every DDP in a module reduce over the current default group, without state of a failed step.

    Its reducer is created again, as by unpickling: a reducer that has run has sorted its buckets by the arrival of
    gradients and a new one has not, so the two would add gradients of different parameters.
    """
    for item in module.modules():
        if isinstance(item, DistributedDataParallel):
            ddp: Any = item
            ddp.process_group = dist.group.WORLD
            ddp.__setstate__(ddp.__getstate__())


def _allow(limit: timedelta) -> None:
    """Set the timeout of collectives, as the group was created with the timeout for connecting."""
    made: Any = dist
    if hasattr(made, "set_timeout"):
        made.set_timeout(limit)
    else:  # torch before 2.10 or so
        made.distributed_c10d._set_pg_timeout(limit)


def _open_sockets() -> set[tuple[int, str]]:
    """Return the descriptors of sockets, each with its link, which tells it from a later socket of the same number."""
    sockets = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:"):
                sockets.add((int(name), link))
    return sockets
