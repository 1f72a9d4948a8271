"""Reads progress and metrics from a program's output: lines in which a pattern finds numbers.

The shim passes lines to it as it splits the output, and it writes the same files as a rank that reports itself:
`rank-N.json` and the rank's series. It stops for a rank that begins to report itself.

See decision 153.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
from contextlib import suppress

from fairlead.runtime.printed_numbers import number, pairs, widened, without_controls
from fairlead.runtime.series import SeriesFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any, List, NoReturn, Tuple

    Numbers = List[Tuple[str, float]]

WRITE_EVERY_S = 0.2
SEARCHED_BYTES = 4096
# Processor time that a pattern may take for one line; a sensible one takes microseconds.
SEARCH_S = 0.25
MOST_METRICS = 100
SOURCE = "output"
STEP_NAMES = ("step", "iter", "iteration", "global_step")
FACTS = {"total": "total_steps", "total_steps": "total_steps", "epoch": "epoch"}
COUNTERS = (*STEP_NAMES, "epoch")  # of `step=10/100` the first number is meant, of `correct=9/10` neither


class _TooSlowError(Exception):
    """A pattern takes too long for a line."""


def _too_slow(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _TooSlowError


def _search(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    """Return the first match in a line; give up after ``SEARCH_S`` of processor time."""
    try:
        before = signal.signal(signal.SIGVTALRM, _too_slow)
    except ValueError:  # not in the main thread, which alone has handlers
        return pattern.search(line)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_S)
        return pattern.search(line)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


class MetricLines:
    """Reads the lines of one rank.

    A pattern that takes too long for a line is given up, since the shim that waits for it could neither pass on output
    nor stop the ranks. Python's matcher looks for signals while it works, so a timer of processor time ends it.

    Args:
        pattern: A regular expression with named groups; None for every `name=value`.
    """

    def __init__(self, pattern: str | None, pod_dir: str, rank: int, now: float) -> None:
        self._pattern = None if pattern is None else re.compile(pattern)
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
                    numbers = _numbers_of_pairs(_text(line))
                    if numbers:
                        self._take(numbers, now)
                continue
            try:
                numbers = _numbers_of_groups(pattern, _text(line))
            except _TooSlowError:
                self._is_left_alone = True
                self._tell_slowness(now)
                return
            if numbers:
                self._take(numbers, now)
        self.tick(now)

    def _tell_slowness(self, now: float) -> None:
        """Record an event of the rank: no metrics are read from now on."""
        message = (
            f"the pattern of `metrics` took more than {SEARCH_S:g} s for one line and is not used any more: "
            "a repetition within a repetition, such as `(a+)+`, tries all ways to divide a line; write it without one"
        )
        event = {"at": round(now, 3), "type": "MetricsStopped", "message": message}
        with suppress(OSError), open(f"{self._path[: -len('.json')]}.events.jsonl", "ab", buffering=0) as file:
            file.write(json.dumps(event).encode() + b"\n")  # on a full disk the event is lost

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

    def _take(self, numbers: Numbers, now: float) -> None:
        """Take the numbers of one line; one that is not finite clears the last value of its name."""
        values: dict[str, float] = {}
        step: int | None = None
        for name, value in numbers:
            if name in STEP_NAMES:
                step = int(value) if value.is_integer() and value >= 0 else None
            elif name in FACTS and math.isfinite(value):
                self._facts[FACTS[name]] = int(value) if FACTS[name] == "total_steps" else value
            else:
                values[name] = value
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


def _text(line: bytes) -> str:
    """Return the searched part of a line as text, without a number of which the end would be missing."""
    if len(line) > SEARCHED_BYTES:
        line = line[:SEARCHED_BYTES].rstrip(b"0123456789.,_'+-eE")
    return without_controls(line.decode("utf-8", "replace"))


def _numbers_of_pairs(line: str) -> Numbers:
    values = ((name, number(value)) for name, value, rest in pairs(line) if not rest or name in COUNTERS)
    return [(name, value) for name, value in values if value is not None]


def _numbers_of_groups(pattern: re.Pattern[str], line: str) -> Numbers:
    match = _search(pattern, line)
    if match is None:
        return []
    values = ((name, number(_whole(pattern, match, name))) for name in pattern.groupindex if match[name])
    return [(name, value) for name, value in values if value is not None]


def _whole(pattern: re.Pattern[str], match: re.Match[str], group: str) -> str:
    """Return the text of a group with the rest of its number, as `[0-9.]+` takes 1 of `1,234`.

    A pattern may divide a number on purpose, as `([0-9]+),([0-9]+)` does: then another group is in it, or the pattern
    does not match any more if what follows is another character.
    """
    line = match.string
    start, end = match.span(group)
    first, last = widened(line, start, end)
    if (first, last) == (start, end):
        return match[group]
    others = (match.start(index) for index in range(1, pattern.groups + 1) if match.span(index) != (start, end))
    if any(first <= other < last for other in others):
        return match[group]
    before = line[: start - 1] + "#" if start > first else line[:start]
    after = "#" + line[end + 1 :] if end < last else line[end:]
    again = _search(pattern, before + line[start:end] + after)
    is_cut = again is not None and again.start(group) <= start and end <= again.end(group)
    return line[first:last] if is_cut else match[group]
