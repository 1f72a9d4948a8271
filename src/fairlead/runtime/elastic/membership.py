"""Decides which ranks are in the gang, by what the ranks of one attempt post for each other.

A rank holds its place for as long as its process lives, so a kill always frees it. The ranks that train together form
an epoch: a number, its members, and the address at which they meet. The lowest living member of the newest epoch makes
the next one once every living member waits for it; ranks that arrived in the meantime are included. No rank
coordinates, so any of them may be killed at any time: the remaining ones read the same values, and the next lowest
takes over. Standard library only.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from fairlead.runtime.elastic.beginnings import EPOCH
from fairlead.runtime.elastic.boards import LOOK_EVERY_S, Board
from fairlead.runtime.errors import ReformFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The ranks that train together until one leaves or another joins.

    Attributes:
        number: From 1 on; 0 before the first epoch.
        tokens: The identity of each member's process, by rank.
        host: The address at which the members meet.
        port: The port there.
    """

    number: int
    tokens: dict[int, str]
    host: str = ""
    port: int = 0

    @property
    def members(self) -> tuple[int, ...]:
        """Return the ranks in order; the index of each is its rank in the epoch's group."""
        return tuple(sorted(self.tokens))


class Membership:
    """One rank's part in the epochs of an attempt."""

    def __init__(self, board: Board, token: str, rank: int, world_size: int) -> None:
        """Take part, with the board on which this process holds the rank's place by its token."""
        self._board = board
        self._rank = rank
        self._world_size = world_size
        self._token = token
        self.epoch = Epoch(number=0, tokens={})
        """The epoch that this process is in; number 0 before its first."""

    def close(self) -> None:
        """Leave; the other ranks detect it at once."""
        self._board.close()

    @property
    def host(self) -> str:
        """Return the address at which the other ranks reach this one."""
        return self._board.host

    @property
    def is_cut_off(self) -> bool:
        """Return whether this rank no longer learns of the others."""
        return self._board.is_cut_off

    def lost_members(self) -> list[int]:
        """Return the members of this process's epoch that are no longer alive."""
        return [rank for rank, token in self.epoch.tokens.items() if not self._is_alive(rank, token)]

    def has_left(self) -> bool:
        """Return whether a member already waits for the next epoch."""
        reports = (self._board.read(f"ready-{rank}.json") for rank in self.epoch.members if rank != self._rank)
        return any(report is not None and report["epoch"] == self.epoch.number for report in reports)

    def newcomers(self) -> list[int]:
        """Return the ranks outside the epoch that wait to join the next one."""
        return [
            rank for rank in range(self._world_size) if rank not in self.epoch.tokens and self._waiting_token(rank, 0)
        ]

    @property
    def is_whole(self) -> bool:
        """Return whether all ranks are in the epoch."""
        return len(self.epoch.tokens) == self._world_size

    def plan_resize(self, step: int) -> None:
        """Record, as the first member, the step at which all members form the next epoch."""
        self._board.post("resize.json", {"after": self.epoch.number, "at": step})

    def resize_at(self) -> int | None:
        """Return the step of the planned resize; None if none is planned."""
        planned = self._board.read("resize.json")
        return int(planned["at"]) if planned is not None and planned["after"] == self.epoch.number else None

    def finish(self) -> None:
        """Record that the training is over, for ranks that arrive later."""
        self._board.post("finished.json", {"epoch": self.epoch.number})

    @property
    def is_finished(self) -> bool:
        """Return whether the training is over."""
        return self._board.read("finished.json") is not None

    def next_epoch(self, open_store: Callable[[], int], *, within_s: float, check: Callable[[], None]) -> Epoch | None:
        """Wait for the next epoch that includes this rank, and create it if this rank leads.

        Args:
            open_store: Opens the store at which the members meet and returns its port.
            check: Called repeatedly while waiting; an exception from it ends the wait.

        Returns:
            The epoch; None if the training is over.

        Raises:
            ReformFailed: The wait exceeded ``within_s``, no member of the last epoch is alive, or this rank is cut off.
        """
        ready = {"token": self._token, "epoch": self.epoch.number}
        self._board.post(f"ready-{self._rank}.json", ready)
        deadline = time.monotonic() + within_s
        while True:
            check()
            # The leader is determined before the epoch is read: a process that is gone by then publishes nothing later.
            is_leader = self._is_leader()
            newest = self._newest_epoch()
            if newest.number > self.epoch.number and newest.tokens.get(self._rank) == self._token:
                self.epoch = newest
                return newest
            if self.is_finished:
                return None
            if self._board.is_cut_off:
                self._board.exit_if_partitioned()
            if newest.number and not any(self._is_alive(rank, token) for rank, token in newest.tokens.items()):
                raise ReformFailed("no rank is left that has the state of the training")
            if is_leader:
                self._publish_next(newest, open_store)
            if time.monotonic() > deadline:
                raise ReformFailed(f"the ranks did not come together within {within_s:g} s; {self._missing(newest)}")
            time.sleep(LOOK_EVERY_S)

    def _is_leader(self) -> bool:
        newest = self._newest_epoch()
        if newest.number == 0:
            return self._rank == 0
        return self._rank == min(
            (rank for rank, token in newest.tokens.items() if self._is_alive(rank, token)), default=-1
        )

    def _publish_next(self, newest: Epoch, open_store: Callable[[], int]) -> None:
        """Publish the next epoch if all ranks that have to be in it wait for it."""
        if newest.number == 0:
            if not all(self._waiting_token(rank, 0) for rank in range(self._world_size)):
                return
        elif not all(self._waiting_token(rank, newest.number) for rank in self._living(newest)):
            return
        ranks = range(self._world_size)
        tokens = {
            rank: token
            for rank in ranks
            if (token := self._waiting_token(rank, newest.number) or self._waiting_token(rank, 0))
        }
        record = {"number": newest.number + 1, "tokens": {str(rank): token for rank, token in tokens.items()}}
        self._board.post(EPOCH, {**record, "host": self._board.host, "port": open_store()})

    def _missing(self, newest: Epoch) -> str:
        expected = self._living(newest) if newest.number else list(range(self._world_size))
        missing = [str(rank) for rank in expected if not self._waiting_token(rank, newest.number)]
        return f"rank {', '.join(missing)} did not come" if missing else "no rank created the next epoch"

    def _living(self, epoch: Epoch) -> list[int]:
        return [rank for rank, token in epoch.tokens.items() if self._is_alive(rank, token)]

    def _newest_epoch(self) -> Epoch:
        record = self._board.read(EPOCH)
        if record is None:
            return Epoch(number=0, tokens={})
        tokens = {int(rank): str(token) for rank, token in record["tokens"].items()}
        return Epoch(number=int(record["number"]), tokens=tokens, host=str(record["host"]), port=int(record["port"]))

    def _waiting_token(self, rank: int, after: int) -> str | None:
        """Return the token of a living rank that waits for the epoch after the given one; None for any other rank."""
        ready = self._board.read(f"ready-{rank}.json")
        if ready is None or ready["epoch"] != after or not self._is_alive(rank, str(ready["token"])):
            return None
        return str(ready["token"])

    def _is_alive(self, rank: int, token: str) -> bool:
        return token == self._token if rank == self._rank else self._board.is_alive(rank, token)
