"""The metrics of one rank over time: a file that only grows, a point a line, `[time, step, {name: value}]`.

Beyond the first thousand, points come ever more rarely: of a start that began t seconds ago two are t / 1,000 apart or
more. So the file of a day has some thousand lines, and that of a year no more than twice as many. The newest point is
always written in the end. Nothing here raises because of a full disk: it costs the points, not the training.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Optional, Tuple

    _Point = Tuple[float, Optional[int], Mapping[str, float]]

WRITE_EVERY_S = 0.2
POINTS_PER_E_FOLD = 1_000
MOST_WAITING = 5_000


class SeriesFile:
    """Points of one rank, buffered for a moment. Not safe for threads."""

    def __init__(self, path: str, began_at: float) -> None:
        """Args:
        began_at: The time from which points become rarer, on the clock of ``add``.
        """
        self._path = path
        self._began_at = began_at
        self._waiting: list[_Point] = []
        self._passed_over: _Point | None = None
        self._num_taken = 0
        self._next_at = 0.0
        self._write_at = 0.0

    def add(self, at: float, step: int | None, values: Mapping[str, float]) -> None:
        """Takes a point; written at once when the last write is old enough, else with one of the next."""
        point = at, step, values
        if at < self._next_at:
            self._passed_over = point
            return
        self._passed_over = None
        self._num_taken += 1
        if self._num_taken >= POINTS_PER_E_FOLD:
            self._next_at = at + max(0.0, at - self._began_at) / POINTS_PER_E_FOLD
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(point)
        if at >= self._write_at:
            self.write(at)

    def write(self, at: float) -> None:
        """Appends what waits, whole lines only; without room it goes on waiting."""
        self._write_at = at + WRITE_EVERY_S
        if not self._waiting:
            return
        lines = (json.dumps([round(at, 3), *rest], separators=(",", ":")) for at, *rest in self._waiting)
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(fd).st_size
                if os.write(fd, data) == len(data):
                    self._waiting.clear()
                else:
                    os.ftruncate(fd, size)
            finally:
                os.close(fd)
        except OSError:  # a full disk, or the run was deleted; the next write tries again
            return

    def finish(self, at: float) -> None:
        """Writes what waits and the newest point, however near the one before it is."""
        if self._passed_over is not None:
            self._waiting.append(self._passed_over)
            self._passed_over = None
        self.write(at)
