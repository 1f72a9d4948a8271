"""Decides which ranks are in the gang, by files and locks in a directory that the ranks of one attempt share.

A rank holds a lock for as long as its process lives, so a kill always releases it. The ranks that train together form
an epoch: a number, its members, and the port at which they meet. The lowest living member of the newest epoch creates
the next one once every living member waits for it; ranks that arrived in the meantime are included. No process
coordinates, so any process may be killed at any time: the remaining ones read the same files, and the next lowest takes
over. Standard library only.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.runtime.elastic.beginnings import EPOCH
from fairlead.runtime.errors import ReformFailed
from fairlead.runtime.podfiles import read_json, write_json

LOOK_EVERY_S = 0.01
# A killed rank releases its locks as soon as the kernel has ended it.
ENTER_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The ranks that train together until one leaves or another joins.

    Attributes:
        number: From 1 on; 0 before the first epoch.
        tokens: The identity of each member's process, by rank.
        port: The port at which the members meet.
    """

    number: int
    tokens: dict[int, str]
    port: int

    @property
    def members(self) -> tuple[int, ...]:
        """Return the ranks in order; the index of each is its rank in the epoch's group."""
        return tuple(sorted(self.tokens))


class Membership:
    """One rank's part in the epochs of an attempt."""

    def __init__(self, directory: Path, rank: int, world_size: int) -> None:
        """Take part, and hold the rank's lock from now on.

        Raises:
            ReformFailed: Another process holds this rank's lock.
        """
        self._directory = directory
        self._rank = rank
        self._world_size = world_size
        self._token = f"{os.getpid()}-{time.monotonic_ns()}"
        self.epoch = Epoch(number=0, tokens={}, port=0)
        """The epoch that this process is in; number 0 before its first."""
        directory.mkdir(parents=True, exist_ok=True)
        self._locks = self._enter()

    def close(self) -> None:
        """Leave; the other ranks detect it at once."""
        for lock in reversed(self._locks):
            os.close(lock)

    def gone(self) -> list[int]:
        """Return the members of this process's epoch that are no longer alive."""
        return [rank for rank, token in self.epoch.tokens.items() if not self._lives(rank, token)]

    def has_left(self) -> bool:
        """Return whether a member already waits for the next epoch."""
        ready = (read_json(self._directory / f"ready-{rank}.json") for rank in self.epoch.members if rank != self._rank)
        return any(each is not None and each["epoch"] == self.epoch.number for each in ready)

    def newcomers(self) -> list[int]:
        """Return the ranks outside the epoch that wait to join the next one."""
        return [rank for rank in range(self._world_size) if rank not in self.epoch.tokens and self._waiting(rank, 0)]

    @property
    def is_whole(self) -> bool:
        """Return whether all ranks are in the epoch."""
        return len(self.epoch.tokens) == self._world_size

    def plan_resize(self, step: int) -> None:
        """Record, as the first member, the step at which all members form the next epoch."""
        write_json(self._directory / "resize.json", {"after": self.epoch.number, "at": step}, durably=False)

    def resize_at(self) -> int | None:
        """Return the step of the planned resize; None if none is planned."""
        planned = read_json(self._directory / "resize.json")
        return int(planned["at"]) if planned is not None and planned["after"] == self.epoch.number else None

    def finish(self) -> None:
        """Record that the training is over, for ranks that arrive later."""
        write_json(self._directory / "finished.json", {"epoch": self.epoch.number}, durably=False)

    @property
    def is_finished(self) -> bool:
        """Return whether the training is over."""
        return (self._directory / "finished.json").exists()

    def next_epoch(self, host: Callable[[], int], *, within_s: float, look: Callable[[], None]) -> Epoch | None:
        """Wait for the next epoch that includes this rank, and create it if this rank leads.

        Args:
            host: Opens the store at which the members meet and returns its port.
            look: Called repeatedly while waiting; an exception from it ends the wait.

        Returns:
            The epoch; None if the training is over.

        Raises:
            ReformFailed: The wait exceeded ``within_s``, or no member of the last epoch is alive.
        """
        ready = {"token": self._token, "epoch": self.epoch.number}
        write_json(self._directory / f"ready-{self._rank}.json", ready, durably=False)
        deadline = time.monotonic() + within_s
        while True:
            look()
            # The leader is determined before the epoch is read: a process that is gone by then publishes nothing later.
            leads = self._lead()
            newest = self._newest()
            if newest.number > self.epoch.number and newest.tokens.get(self._rank) == self._token:
                self.epoch = newest
                return newest
            if self.is_finished:
                return None
            if newest.number and not any(self._lives(rank, token) for rank, token in newest.tokens.items()):
                raise ReformFailed("no rank is left that has the state of the training")
            if leads:
                self._make(newest, host)
            if time.monotonic() > deadline:
                raise ReformFailed(f"the ranks did not come together within {within_s:g} s; {self._missing(newest)}")
            time.sleep(LOOK_EVERY_S)

    def _lead(self) -> bool:
        newest = self._newest()
        if newest.number == 0:
            return self._rank == 0
        return self._rank == min(
            (rank for rank, token in newest.tokens.items() if self._lives(rank, token)), default=-1
        )

    def _make(self, newest: Epoch, host: Callable[[], int]) -> None:
        """Publish the next epoch if all ranks that have to be in it wait for it."""
        if newest.number == 0:
            if not all(self._waiting(rank, 0) for rank in range(self._world_size)):
                return
        elif not all(self._waiting(rank, newest.number) for rank in self._living(newest)):
            return
        ranks = range(self._world_size)
        tokens = {
            rank: token for rank in ranks if (token := self._waiting(rank, newest.number) or self._waiting(rank, 0))
        }
        made = {"number": newest.number + 1, "tokens": {str(rank): token for rank, token in tokens.items()}}
        write_json(self._directory / EPOCH, {**made, "port": host()}, durably=False)

    def _missing(self, newest: Epoch) -> str:
        expected = self._living(newest) if newest.number else list(range(self._world_size))
        missing = [str(rank) for rank in expected if not self._waiting(rank, newest.number)]
        return f"rank {', '.join(missing)} did not come" if missing else "no rank created the next epoch"

    def _living(self, epoch: Epoch) -> list[int]:
        return [rank for rank, token in epoch.tokens.items() if self._lives(rank, token)]

    def _newest(self) -> Epoch:
        found = read_json(self._directory / EPOCH)
        if found is None:
            return Epoch(number=0, tokens={}, port=0)
        tokens = {int(rank): str(token) for rank, token in found["tokens"].items()}
        return Epoch(number=int(found["number"]), tokens=tokens, port=int(found["port"]))

    def _waiting(self, rank: int, after: int) -> str | None:
        """Return the token of a living rank that waits for the epoch after the given one; None for any other rank."""
        ready = read_json(self._directory / f"ready-{rank}.json")
        if ready is None or ready["epoch"] != after or not self._lives(rank, str(ready["token"])):
            return None
        return str(ready["token"])

    def _lives(self, rank: int, token: str) -> bool:
        if rank == self._rank:
            return token == self._token
        try:
            file = os.open(self._path(rank), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            try:
                # A lock of the process, not of the open file, so that a data loader's worker that outlives its rank
                # holds none. It is a shared lock, so that two processes that check at once do not see each other's
                # lock.
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return bool(_token_in(file) == token)
            return False
        finally:
            os.close(file)

    def _enter(self) -> tuple[int, int]:
        """Take the rank's place, and publish the lock that the other ranks look at together with the token in it.

        Published before its token, the lock would make the process that held the place before seem alive again.
        """
        place = os.open(self._directory / f"rank-{self._rank}.place", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + ENTER_WITHIN_S
        while True:
            try:
                fcntl.lockf(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    os.close(place)
                    raise ReformFailed(f"another process is rank {self._rank}") from error
                time.sleep(LOOK_EVERY_S)
        unpublished = self._directory / f"rank-{self._rank}.lock.new"
        unpublished.unlink(missing_ok=True)
        file = os.open(unpublished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(file, fcntl.LOCK_EX)
        os.pwrite(file, json.dumps(self._token).encode(), 0)
        unpublished.rename(self._path(self._rank))
        return place, file

    def _path(self, rank: int) -> Path:
        return self._directory / f"rank-{rank}.lock"


def _token_in(file: int) -> Any:
    return json.loads(os.pread(file, 256, 0))
