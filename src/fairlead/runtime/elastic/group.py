"""The process group of an epoch: made, ended from outside while a collective waits, and made again.

A gloo collective that waits for a rank that is gone may wait for half an hour, and one that waits for a rank which has
given up does so too. So a thread looks for members that are gone, and ends the connections of the group: every
collective of this process then fails at once, and those of the others by it.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fairlead.runtime.elastic.membership import Epoch, Membership

HOST = "127.0.0.1"
CONNECT_WITHIN_S = 30.0
STEP_WITHIN_S = 1800.0
WATCH_EVERY_S = 0.05


class EpochGroup:
    """torch.distributed's default group, over the members of the newest epoch."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._hosted: dist.TCPStore | None = None
        self._sockets: set[tuple[int, str]] = set()
        self._before_more: set[tuple[int, str]] | None = None
        self._over: threading.Event | None = None

    def host(self) -> int:
        """Open the place where the members of the next epoch meet; returns its port."""
        self._hosted = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        return self._hosted.port

    def form(self, epoch: Epoch, rank: int) -> None:
        """Make the group of an epoch; collective.

        Raises:
            RuntimeError: A member is gone already.
        """
        self.end()
        place = epoch.members.index(rank)
        limit = timedelta(seconds=CONNECT_WITHIN_S)
        before = _open_sockets()
        store = self._hosted
        if store is None or store.port != epoch.port:
            store = dist.TCPStore(HOST, epoch.port, timeout=limit)
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
        threading.Thread(target=self._watch, args=(self._over,), name="fairlead-members", daemon=True).start()

    def opening(self, open_more: Callable[[], object]) -> None:
        """Call what makes further groups, whose connections end with this one's."""
        self._before_more = _open_sockets()
        open_more()
        self._sockets |= _open_sockets() - self._before_more
        self._before_more = None

    def abort(self) -> None:
        """End the group's connections: whatever waits for another rank fails."""
        still, before = _open_sockets(), self._before_more
        opening = set() if before is None else still - before
        for number, _ in self._sockets & still | opening:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                connection.getpeername()  # fails for one that listens, whose end gloo does not survive
                connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Let go of the group, of which no collective is under way."""
        if self._over is not None:
            self._over.set()
            self._over = None
        if dist.is_initialized():
            dist.destroy_process_group()
        self._sockets = set()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(WATCH_EVERY_S):
            if self._membership.gone() and not over.is_set():
                self.abort()
                return


def move_to_group(module: torch.nn.Module) -> None:
    """Have every DDP in a module reduce over the default group of now, with nothing left of a step that failed.

    Its reducer is made anew, as by unpickling: one that has run has put its buckets into the order in which gradients
    came, and one that has not would add to each other's gradients of other parameters.
    """
    for item in module.modules():
        if isinstance(item, DistributedDataParallel):
            ddp: Any = item
            ddp.process_group = dist.group.WORLD
            ddp.__setstate__(ddp.__getstate__())


def _allow(limit: timedelta) -> None:
    """Give collectives so long; the limit of making a group is that of connecting."""
    made: Any = dist
    if hasattr(made, "set_timeout"):
        made.set_timeout(limit)
    else:  # torch before 2.10 or so
        made.distributed_c10d._set_pg_timeout(limit)


def _open_sockets() -> set[tuple[int, str]]:
    """Return the descriptors of sockets with what tells a socket from the next one of that number."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:"):
                found.add((int(name), link))
    return found
