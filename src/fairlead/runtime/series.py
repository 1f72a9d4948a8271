"""The metrics of one rank over time: an append-only file with one point a line, `[time, step, {name: value}]`.

After the first thousand, points become sparser: t seconds after the start of an attempt, two points are at least t /
1,000 apart. The file of a day has several thousand lines, and that of a year at most twice as many. The newest point is
always written in the end. A full disk raises no error here: points are lost, and training continues.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Optional, Tuple

    _Point = Tuple[float, Optional[int], Mapping[str, float]]

POINTS_PER_E_FOLD = 1_000
MOST_WAITING = 5_000


class SeriesFile:
    """Points of one rank, buffered until the next write. Not thread-safe."""

    def __init__(self, path: str, began_at: float) -> None:
        """Create the buffer; nothing is written yet.

        Args:
            began_at: The time from which points become sparser, on the clock of ``add``.
        """
        self._path = path
        self._began_at = began_at
        self._waiting: list[_Point] = []
        self._passed_over: _Point | None = None
        self._num_taken = 0
        self._next_at = 0.0

    def add(self, at: float, step: int | None, values: Mapping[str, float]) -> None:
        """Add a point, which the next write takes along; writing stays with the caller, who knows what it costs."""
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

    def write(self) -> None:
        """Append the waiting points, as whole lines only; without space they keep waiting."""
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

    def finish(self) -> None:
        """Write the waiting points and the newest one, however close it is to the one before it."""
        if self._passed_over is not None:
            self._waiting.append(self._passed_over)
            self._passed_over = None
        self.write()
