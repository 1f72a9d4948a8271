"""A pod's log: the lines of all ranks in one file of bounded size, written by the shim.

A line is `<unix time> <rank> <stream> <text>`. The stream is `o`, `e`, or `f` for Fairlead's own messages about the
output. The remaining files record what rotation dropped: each but the first begins with a line of the stream `c`, whose
text is a JSON object with the number of lines and bytes of each rank before it. The log must never block the program:
lines that cannot be written are dropped, counted, and reported later. Stream splits bytes into lines, Log writes them
and rotates the files.

See decision 7.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlead.runtime.metric_lines import MetricLines

MAX_LINE_BYTES = 1024 * 1024
GOES_ON = b" ... [longer than 1 MiB: the line continues below]"
MAX_TAIL_LINES = 40
MAX_TAIL_LINE_BYTES = 4 * 1024
PROGRESS_PERIOD_S = 0.2
COUNT_EVERY_BYTES = 8 * 1024
COUNT_PER_LINE_BYTES = 16  # so that many short lines are counted in time too
COUNT_TIMES_ITSELF = 50  # so that the counts of a thousand ranks are at most a fiftieth of the output
# Seconds without output after which the counts are repeated: kubelet checks every ten seconds whether to rotate, and
# only the newest file is available, so a file begun after the last output would not show that there was any.
COUNT_AFTER_S = (15.0, 60.0)

_LINE = re.compile(rb"([^\r\n]*)(\r\n|\r|\n)")


class Log:
    """The file output.log with its older parts output.log.1, output.log.2 and so on."""

    def __init__(
        self, path: str, *, max_bytes: int, num_files: int, echo: bool = False, also: str | None = None
    ) -> None:
        """Create the log; nothing is written yet. With ``echo``, lines also go to standard output, and to ``also``.

        Echoed lines are `<rank>| <text>`, or `<rank>! <text>` for standard error. Their reader may have lost the first
        ones, so `-# <counts>` is repeated, as in the files.
        """
        self._echoed = _Counts() if echo else None
        self._outputs = [1]
        if also is not None:
            self._outputs.append(os.open(also, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
        self._said_at: float | None = None
        self._num_quiet = 0
        self._path = path
        self._max_bytes = max_bytes
        self._num_files = max(1, num_files)
        self._fd: int | None = None
        self._size = 0
        self._written = _Counts()
        self._num_dropped = 0
        self._lost = [0, 0]
        self._trouble = ""

    @property
    def lost(self) -> dict[str, int | str] | None:
        """Lines and bytes of text that could not be written, and the last reason; None if there are none."""
        lines, num_bytes = self._lost
        return {"lines": lines, "bytes": num_bytes, "why": self._trouble} if lines else None

    def write(self, now: float, rank: str, stream: str, lines: list[bytes]) -> None:
        """Append whole lines; text that is not UTF-8 is converted with replacement characters."""
        if not lines:
            return
        lines = _as_utf8(lines)
        if self._echoed is not None:
            self._repeat(self._echoed, rank, stream, lines)
            self._said_at, self._num_quiet = now, 0
        if self._num_dropped:
            note = f"{now:.6f} - f {self._num_dropped} lines of output were lost: {self._trouble}\n".encode()
            if self._append(note, len(note), now):
                self._num_dropped = 0
        prefix = f"{now:.6f} {rank} {stream} ".encode()
        while lines:
            data = _joined(prefix, lines)
            size = self._append(data, len(prefix) + len(lines[0]) + 1, now)
            # All lines, except when a file is full.
            num = len(lines) if size in (0, len(data)) else data.count(b"\n", 0, size)
            if size:
                self._written.add(rank, num, size - num * len(prefix))
            else:
                self._num_dropped += num
                self._lost[0] += num
                self._lost[1] += len(data) - num * len(prefix)
            lines = lines[num:]

    def tick(self, now: float) -> None:
        """Repeat the counts of echoed lines if none followed for a while; call this regularly."""
        if self._echoed is None or self._said_at is None or not self._echoed.was_told:
            return
        if self._num_quiet < len(COUNT_AFTER_S) and now - self._said_at >= COUNT_AFTER_S[self._num_quiet]:
            self._num_quiet += 1
            self._tell(self._echoed)

    def close(self) -> None:
        """Stop writing; the final counts of echoed lines are written first."""
        if self._echoed is not None and self._echoed.was_told:
            self._tell(self._echoed)
        self._close_file()

    def _repeat(self, counts: _Counts, rank: str, stream: str, lines: list[bytes]) -> None:
        prefix = f"{rank}{'!' if stream == 'e' else '|'} ".encode()
        data = _joined(prefix, lines)
        self._say(data)
        # Lines that could not be written are counted, because they are missing too.
        counts.add(rank, len(lines), len(data) - len(lines) * len(prefix))
        if counts.num_new_bytes >= max(COUNT_EVERY_BYTES, COUNT_TIMES_ITSELF * counts.told_size):
            self._tell(counts)

    def _tell(self, counts: _Counts) -> None:
        self._say(b"-# " + counts.tell() + b"\n")

    def _say(self, data: bytes) -> None:
        for output in self._outputs:
            _write(output, data)

    def _append(self, data: bytes, least: int, now: float) -> int:
        """Append whole lines, as many as fit into the file but at least the first, and return the bytes written.

        Args:
            least: The size of the first line.
        """
        try:
            if self._fd is not None and self._size and self._size + least > self._max_bytes:
                self._rotate()
            fd = self._open(now) if self._fd is None else self._fd
            room = max(least, self._max_bytes - self._size)
            if len(data) > room:
                data = data[: data.rindex(b"\n", 0, room) + 1]
            self._write_all(fd, data)
        except OSError as error:
            self._trouble = error.strerror or str(error)
            return 0
        return len(data)

    def _open(self, now: float) -> int:
        """Open the file; one that follows others begins with the counts of the lines before it."""
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._size = os.fstat(fd).st_size
            if self._written and not self._size:
                self._write_all(fd, f"{now:.6f} - c ".encode() + self._written.tell() + b"\n")
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return fd

    def _write_all(self, fd: int, data: bytes) -> None:
        left = data
        try:
            while left:
                left = left[os.write(fd, left) :]
        except OSError:
            # Remove the partial line, so that the next one does not continue it.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self._size)
            raise
        self._size += len(data)

    def _rotate(self) -> None:
        self._close_file()
        names = [self._path, *(f"{self._path}.{i}" for i in range(1, self._num_files))]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(names[-1])
        for older, newer in zip(reversed(names), list(reversed(names))[1:]):  # noqa: B905 (strict= needs Python 3.10)
            with contextlib.suppress(FileNotFoundError):
                os.rename(newer, older)
        self._size = 0

    def _close_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class _Counts:
    """Lines and bytes of each rank so far."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self.num_new_bytes = 0
        self.told_size = 0
        self.was_told = False

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, rank: str, num_lines: int, num_bytes: int) -> None:
        counts = self._counts.setdefault(rank, [0, 0])
        counts[0] += num_lines
        counts[1] += num_bytes
        self.num_new_bytes += num_bytes + COUNT_PER_LINE_BYTES * num_lines

    def tell(self) -> bytes:
        counts = json.dumps(self._counts, separators=(",", ":")).encode()
        self.num_new_bytes, self.told_size, self.was_told = 0, len(counts), True
        return counts


class RankOutput:
    """Splits the output of one rank on one pipe into lines for the log.

    A carriage return also ends a line, as progress bars use it; of such lines only the newest is kept, at most five a
    second.

    Args:
        metrics: Also reads the lines; may be None.
    """

    def __init__(self, log: Log, rank: str, name: str, metrics: MetricLines | None = None) -> None:
        self._log = log
        self._metrics = metrics
        self._rank = rank
        self._name = name
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._progress: bytes | None = None
        self._progress_at = 0.0
        self._tail: deque[bytes] = deque(maxlen=MAX_TAIL_LINES)

    def feed(self, data: bytes, now: float) -> None:
        is_joined = self._rest_size + len(data) > MAX_LINE_BYTES or b"\n" in data or b"\r" in data
        if not is_joined and not (self._rest and self._rest[-1].endswith(b"\r")):
            # Joined only when the line ends, as a program may write byte by byte.
            self._rest.append(data)
            self._rest_size += len(data)
            return
        if self._rest:
            data = b"".join((*self._rest, data))
        if b"\r" in data:
            lines, rest = self._split_progress(data, now)
        else:
            lines = data.split(b"\n")
            rest = lines.pop()
            if lines:
                self._progress = None
        while len(rest) > MAX_LINE_BYTES:
            piece, rest = _cut(rest)
            lines.append(piece)
        self._rest, self._rest_size = [rest] if rest else [], len(rest)
        self._emit(lines, now)

    def tick(self, now: float) -> None:
        """Write the newest progress line if it has waited long enough."""
        if self._progress is not None and now - self._progress_at >= PROGRESS_PERIOD_S:
            self._emit([self._progress], now)
            self._progress, self._progress_at = None, now
        if self._metrics is not None:
            self._metrics.tick(now)

    @property
    def is_waiting(self) -> bool:
        return self._progress is not None or (self._metrics is not None and self._metrics.is_waiting)

    def finish(self, now: float) -> None:
        """Write the remaining output although it does not end with a newline."""
        lines = [self._progress] if self._progress is not None else []
        rest = b"".join(self._rest).rstrip(b"\r")
        if rest:
            lines.append(rest)
        self._rest, self._rest_size, self._progress = [], 0, None
        self._emit(lines, now)
        if self._metrics is not None:
            self._metrics.finish(now)

    def tail(self) -> list[str]:
        return [line.decode("utf-8", "replace") for line in self._tail]

    def _split_progress(self, data: bytes, now: float) -> tuple[list[bytes], bytes]:
        lines: list[bytes] = []
        end = 0
        for match in _LINE.finditer(data):
            text, terminator = match.groups()
            if terminator == b"\r":
                if match.end() == len(data):
                    break  # A newline may follow and make it an ordinary line.
                if text:
                    self._progress = text
            else:
                if text or self._progress is None:
                    lines.append(text)
                else:
                    lines.append(self._progress)
                self._progress = None
            end = match.end()
        if self._progress is not None and now - self._progress_at >= PROGRESS_PERIOD_S:
            lines.append(self._progress)
            self._progress, self._progress_at = None, now
        return lines, data[end:]

    def _emit(self, lines: list[bytes], now: float) -> None:
        if not lines:
            return
        if max(map(len, lines)) > MAX_LINE_BYTES + len(GOES_ON):
            lines = [piece for line in lines for piece in _pieces(line)]
        self._tail.extend(
            line if len(line) <= MAX_TAIL_LINE_BYTES else line[:MAX_TAIL_LINE_BYTES] + b"..."
            for line in lines[-MAX_TAIL_LINES:]
        )
        self._log.write(now, self._rank, self._name, lines)
        if self._metrics is not None:
            self._metrics.feed(lines, now)


def _pieces(line: bytes) -> Iterator[bytes]:
    while len(line) > MAX_LINE_BYTES + len(GOES_ON):
        piece, line = _cut(line)
        yield piece
    yield line


def _cut(line: bytes) -> tuple[bytes, bytes]:
    """Return the first part of an overlong line with a note that it continues, and the rest; characters stay whole."""
    at = MAX_LINE_BYTES
    while at > MAX_LINE_BYTES - 4 and line[at] & 0xC0 == 0x80:
        at -= 1
    return line[:at] + GOES_ON, line[at:]


def _joined(prefix: bytes, lines: list[bytes]) -> bytes:
    return prefix + (b"\n" + prefix).join(lines) + b"\n"


def _as_utf8(lines: list[bytes]) -> list[bytes]:
    block = b"\n".join(lines)
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return block.decode("utf-8", "replace").encode().split(b"\n")
    return lines


def _write(output: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the reader is gone
        while data:
            data = data[os.write(output, data) :]
