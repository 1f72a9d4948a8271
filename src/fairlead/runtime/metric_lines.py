"""Reads progress and metrics from a program's output: lines in which a pattern finds numbers.

The shim passes lines to it as it splits the output, and it writes the same files as a rank that reports itself:
`rank-N.json` and the rank's series. It stops for a rank that begins to report itself.
"""

from __future__ import annotations

import json
import math
import os
import re

from fairlead.runtime.series import SeriesFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

WRITE_EVERY_S = 0.2
SEARCHED_BYTES = 4096
MOST_METRICS = 100
SOURCE = "output"
STEP_NAMES = ("step", "iter", "iteration", "global_step")
FACTS = {"total": "total_steps", "total_steps": "total_steps", "epoch": "epoch"}
_PAIR = re.compile(rb"(?<![\w.-])([A-Za-z_][\w./-]*)[ \t]*=[ \t]*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])")
_AROUND = b" \t,;:%()[]'\""


class MetricLines:
    """Reads the lines of one rank.

    Args:
        pattern: A regular expression with named groups; None for every `name=value`.
    """

    def __init__(self, pattern: str | None, pod_dir: str, rank: int, now: float) -> None:
        self._pattern = None if pattern is None else re.compile(pattern.encode())
        self._path = os.path.join(pod_dir, f"rank-{rank}.json")
        # The metrics of rank 0 are those of the run.
        self._series = None if rank else SeriesFile(os.path.join(pod_dir, "rank-0.series.jsonl"), now)
        self._facts: dict[str, Any] = {}
        self._loss: float | None = None
        self._metrics: dict[str, float] = {}
        self._num_found = 0
        self._tells_steps = False
        self._first: tuple[float, int] | None = None
        self._updated_at = now
        self._unwritten = False
        self._next_write = 0.0
        self._is_left_alone = False

    @property
    def is_waiting(self) -> bool:
        return self._unwritten

    def feed(self, lines: Sequence[bytes], now: float) -> None:
        """Search lines of output; numbers that are found are written a few times a second."""
        if self._is_left_alone:
            return
        pattern = self._pattern
        for line in lines:
            if pattern is None:
                if b"=" in line:
                    pairs = _PAIR.findall(line[:SEARCHED_BYTES])
                    if pairs:
                        self._take([(name.decode("ascii", "replace"), value) for name, value in pairs], now)
                continue
            match = pattern.search(line, 0, SEARCHED_BYTES)
            if match is not None:
                self._take([(name, value) for name, value in match.groupdict().items() if value is not None], now)
        self.tick(now)

    def tick(self, now: float) -> None:
        """Write the numbers found, if the last write was at least ``WRITE_EVERY_S`` seconds ago."""
        if self._unwritten and now >= self._next_write:
            self._write(now)

    def finish(self, now: float) -> None:
        """Write the remaining numbers, as the rank has ended."""
        if self._unwritten:
            self._write(now)
        if self._series is not None and not self._is_left_alone:
            self._series.finish()

    def _take(self, found: Sequence[tuple[str, bytes]], now: float) -> None:
        """Take the numbers of one line; a loss that is not finite clears the loss, and other words are ignored."""
        values: dict[str, float] = {}
        step: int | None = None
        for name, text in found:
            number = _number(text)
            if number is None:
                continue
            if name in STEP_NAMES:
                step = int(number) if math.isfinite(number) else None
            elif name in FACTS and math.isfinite(number):
                self._facts[FACTS[name]] = int(number) if FACTS[name] == "total_steps" else number
            else:
                values[name] = number
        if not values and step is None:
            return
        self._num_found += 1
        self._tells_steps = self._tells_steps or step is not None
        if step is not None:
            self._facts["step"] = step
        elif not self._tells_steps:
            self._facts["step"] = self._num_found  # without steps in the output, each such line counts as one step
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        if "loss" in values:
            self._loss = finite.get("loss")
        for name, value in finite.items():
            if name != "loss" and (name in self._metrics or len(self._metrics) < MOST_METRICS):
                self._metrics[name] = value
        for name in values.keys() - finite.keys():
            self._metrics.pop(name, None)
        if finite and self._series is not None:
            self._series.add(now, self._facts["step"], finite)
        if self._first is None:
            self._first = (now, self._facts["step"])
            self._facts["first_step_at"] = round(now, 3)
        self._updated_at = now
        self._unwritten = True

    def _write(self, now: float) -> None:
        self._next_write = now + WRITE_EVERY_S
        self._unwritten = False
        if self._is_of_program():
            self._is_left_alone = True
            return
        report = {
            **self._facts,
            "source": SOURCE,
            "updated_at": self._updated_at,
            "loss": self._loss,
            "throughput": self._throughput(),
            "throughput_unit": "steps/s",
            "metrics": self._metrics,
        }
        temporary = f"{self._path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(json.dumps(report))
            os.replace(temporary, self._path)
        except OSError:  # a full disk, or the run was deleted; the next numbers are written again
            self._unwritten = True
        if self._series is not None:
            self._series.write()

    def _throughput(self) -> float | None:
        if self._first is None or self._updated_at <= self._first[0]:
            return None
        steps: int = self._facts["step"] - self._first[1]
        return max(0.0, steps / (self._updated_at - self._first[0]))

    def _is_of_program(self) -> bool:
        """Return whether the rank reports by itself, in which case its report must not be replaced."""
        try:
            with open(self._path, encoding="utf-8") as file:
                return bool(json.loads(file.read()).get("source") != SOURCE)
        except (OSError, ValueError, AttributeError):
            return False


def _number(text: bytes) -> float | None:
    try:
        return float(text.strip(_AROUND))
    except ValueError:
        return None
