"""Decides which changes the next pass begins at once for, and which wait until more have come.

A pass costs what the whole cluster holds, so that changes are gathered. Each team has an allowance of passes that do
not wait, so that the changes of one team, however many, delay no other one; and who has used it up waits as before.

See decision 217.
"""

import threading
import time
from collections.abc import Callable, Collection

PER_S, BURST = 4.0, 20.0
"""The allowance of a team: a start takes two passes, or three where its pods come one by one."""


class UrgentPasses:
    """The teams for which a pass is to begin at once. Thread-safe.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._teams: set[str] = set()
        self._allowances: dict[str, tuple[float, float]] = {}
        self._is_ended = False

    def request(self, team: str) -> None:
        """Let the next pass begin at once, if the team has allowance left: one for each pass, whatever its changes."""
        with self._changed:
            if team in self._teams:
                return
            now = self._clock()
            left, at = self._allowances.get(team, (BURST, now))
            left = min(BURST, left + (now - at) * PER_S)
            if left < 1.0:
                return
            self._allowances[team] = left - 1.0, now
            self._teams.add(team)
            self._changed.notify_all()

    def begin(self) -> None:
        """Note that a pass begins, which regards all changes so far."""
        with self._changed:
            self._teams.clear()
            now = self._clock()
            full = [team for team, (left, at) in self._allowances.items() if left + (now - at) * PER_S >= BURST]
            for team in full:
                del self._allowances[team]

    def are_there(self) -> bool:
        """Return whether a pass is to begin at once."""
        return bool(self._teams) or self._is_ended

    def are_beside(self, teams: Collection[str]) -> bool:
        """Return whether a pass is to begin at once for another team than these."""
        with self._changed:
            return not self._teams.issubset(teams)

    @property
    def num_known(self) -> int:
        """The number of teams of which anything is remembered."""
        return len(self._allowances)

    def wait(self, timeout_s: float) -> None:
        """Wait until a pass is to begin at once, or the timeout has passed."""
        with self._changed:
            self._changed.wait_for(self.are_there, timeout_s)

    def end(self) -> None:
        """Let nothing wait any more."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
