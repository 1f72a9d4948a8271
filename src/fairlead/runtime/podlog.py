"""A pod's log: the lines of all ranks in one bounded file, written by the shim.

A line is `<unix time> <rank> <o|e> <text>`. The log must never hold the program up: what cannot be written is dropped,
counted, and said later. Stream cuts bytes into lines, Log writes them and rotates.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque

MAX_LINE_BYTES = 64 * 1024
MAX_TAIL_LINES = 40
MAX_TAIL_LINE_BYTES = 4 * 1024
PROGRESS_PERIOD_S = 0.2

_LINE = re.compile(rb"([^\r\n]*)(\r\n|\r|\n)")


class Log:
    """The file output.log with its older parts output.log.1, output.log.2 and so on."""

    def __init__(self, path: str, *, max_bytes: int, num_files: int, echo: bool = False) -> None:
        """With echo, lines go to standard output too, as `<rank>| <text>`, or `<rank>! <text>` from standard error."""
        self._echo = echo
        self._path = path
        self._max_bytes = max_bytes
        self._num_files = max(1, num_files)
        self._fd: int | None = None
        self._size = 0
        self._num_dropped = 0
        self._trouble = ""

    def write(self, now: float, rank: str, stream: str, lines: list[bytes]) -> None:
        """Appends whole lines; text is UTF-8 or is made so."""
        if self._echo:
            self._repeat(rank, stream, lines)
        prefix = f"{now:.6f} {rank} {stream} ".encode()
        if self._num_dropped and lines:
            note = f"{now:.6f} - e {self._num_dropped} lines of output were lost: {self._trouble}\n"
            self._append(note.encode(), is_note=True)
        batch: list[bytes] = []
        num_bytes = 0
        for line in lines:
            batch.append(prefix + _as_utf8(line) + b"\n")
            num_bytes += len(batch[-1])
            if self._size + num_bytes > self._max_bytes and len(batch) > 1:
                last = batch.pop()
                self._append(b"".join(batch))
                batch, num_bytes = [last], len(last)
        if batch:
            self._append(b"".join(batch))

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _repeat(self, rank: str, stream: str, lines: list[bytes]) -> None:
        prefix = f"{rank}{'!' if stream == 'e' else '|'} ".encode()
        data = b"".join(prefix + _as_utf8(line) + b"\n" for line in lines)
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(1, data) :]

    def _append(self, data: bytes, *, is_note: bool = False) -> None:
        try:
            if self._fd is not None and self._size and self._size + len(data) > self._max_bytes:
                self._rotate()
            if self._fd is None:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._size = os.fstat(self._fd).st_size
            self._write_all(self._fd, data)
        except OSError as error:
            self._trouble = error.strerror or str(error)
            if not is_note:
                self._num_dropped += data.count(b"\n")
            return
        self._size += len(data)
        if is_note:
            self._num_dropped = 0

    def _write_all(self, fd: int, data: bytes) -> None:
        left = data
        try:
            while left:
                left = left[os.write(fd, left) :]
        except OSError:
            # Half a line must not run into the next one.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self._size)
            raise

    def _rotate(self) -> None:
        self.close()
        names = [self._path, *(f"{self._path}.{i}" for i in range(1, self._num_files))]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(names[-1])
        for older, newer in zip(reversed(names), list(reversed(names))[1:]):  # noqa: B905 (strict= needs Python 3.10)
            with contextlib.suppress(FileNotFoundError):
                os.rename(newer, older)
        self._size = 0


class Stream:
    """Cuts what one rank writes to one pipe into lines for the log.

    A carriage return ends a line too, as progress bars use it; of such lines the newest is kept, at most five a second.
    """

    def __init__(self, log: Log, rank: str, name: str) -> None:
        self._log = log
        self._rank = rank
        self._name = name
        self._rest = b""
        self._is_cut = False
        self._progress: bytes | None = None
        self._progress_at = 0.0
        self._tail: deque[bytes] = deque(maxlen=MAX_TAIL_LINES)

    def feed(self, data: bytes, now: float) -> None:
        data = self._rest + data
        if b"\r" in data:
            lines, self._rest = self._split_progress(data, now)
        else:
            lines = data.split(b"\n")
            self._rest = lines.pop()
            if lines:
                self._progress = None
        if self._is_cut and lines:
            del lines[0]
            self._is_cut = False
        if len(self._rest) > MAX_LINE_BYTES:
            if not self._is_cut:
                lines.append(self._rest)
            self._is_cut = True
            # A return or newline may follow; nothing else of this line is wanted.
            self._rest = b"\r" if self._rest.endswith(b"\r") else b""
        self._emit(lines, now)

    def tick(self, now: float) -> None:
        """Writes the newest progress line if it has waited long enough."""
        if self._progress is not None and now - self._progress_at >= PROGRESS_PERIOD_S:
            self._emit([self._progress], now)
            self._progress, self._progress_at = None, now

    @property
    def is_waiting(self) -> bool:
        return self._progress is not None

    def finish(self, now: float) -> None:
        """Writes what is left although no newline came."""
        lines = [self._progress] if self._progress is not None else []
        rest = self._rest.rstrip(b"\r")
        if rest and not self._is_cut:
            lines.append(rest)
        self._rest, self._progress = b"", None
        self._emit(lines, now)

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
        lines = [line[:MAX_LINE_BYTES] for line in lines]
        self._tail.extend(line[:MAX_TAIL_LINE_BYTES] for line in lines[-MAX_TAIL_LINES:])
        self._log.write(now, self._rank, self._name, lines)


def _as_utf8(line: bytes) -> bytes:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("utf-8", "replace").encode()
    return line
