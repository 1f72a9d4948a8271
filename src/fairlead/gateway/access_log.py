"""The access log: one JSON object a line, in a file that is rotated by size."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

KEPT_FILES = 3
"""Number of rotated files; access.log.1 is the latest."""
_FLUSH_BYTES = 64 * 1024


@dataclass(slots=True)
class AccessLogEntry:
    """A logged request.

    Attributes:
        status: 499 if the client disconnected first.
        queue_s: Seconds spent waiting for a replica.
        tries: Number of replicas tried.
    """

    began: float
    request_id: str = ""
    remote: str = ""
    method: str = ""
    path: str = ""
    service: str = ""
    revision: str = ""
    replica: str = ""
    team: str = ""
    status: int = 0
    seconds: float = 0.0
    queue_s: float = 0.0
    tries: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    error: str = ""


class AccessLog:
    """Buffers lines and writes them in `flush`; a kill loses the buffered lines."""

    def __init__(self, path: Path, *, most_bytes: int) -> None:
        self._path = path
        self._most = most_bytes
        self._lines: list[str] = []
        self._waiting = 0
        self._second = 0
        self._stamp = ""
        self._file: int | None = None
        self._size = 0
        self.lost = 0
        """Number of lines that could not be written, as on a full disk."""

    def add(self, entry: AccessLogEntry) -> None:
        second = int(entry.began)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        path, revision, replica = entry.path, entry.revision, entry.replica
        team, error = entry.team, entry.error
        # A single check covers all fields, as hardly any needs escaping.
        if not _is_plain(f"{path}{revision}{replica}{team}{error}"):
            path, revision, replica = _escaped(path), _escaped(revision), _escaped(replica)
            team, error = _escaped(team), _escaped(error)
        line = (
            f'{{"time":"{self._stamp}.{int((entry.began - second) * 1000):03d}Z","request_id":"{entry.request_id}",'
            f'"remote":"{entry.remote}","method":"{entry.method}","path":"{path}",'
            f'"service":"{entry.service}","revision":"{revision}","replica":"{replica}",'
            f'"team":"{team}","status":{entry.status},"seconds":{entry.seconds:.6f},'
            f'"queue_s":{entry.queue_s:.6f},"tries":{entry.tries},"bytes_in":{entry.bytes_in},'
            f'"bytes_out":{entry.bytes_out},"error":"{error}"}}\n'
        )
        self._lines.append(line)
        self._waiting += len(line)
        if self._waiting > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered lines. Failed lines are counted; no request fails because of them."""
        if not self._lines:
            return
        lines, self._lines, self._waiting = self._lines, [], 0
        data = "".join(lines).encode()
        try:
            if self._file is None:
                self._open()
            if self._size and self._size + len(data) > self._most:
                self._rotate()
            assert self._file is not None
            written = os.write(self._file, data)
            self._size += written
            self.lost += data[written:].count(b"\n")
        except OSError:
            self.lost += len(lines)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        self.close()
        for number in range(KEPT_FILES, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number - 1}") if number > 1 else self._path
            if older.exists():
                older.replace(self._path.with_name(f"{self._path.name}.{number}"))
        self._open()


def _is_plain(text: str) -> bool:
    """Return whether the text needs no escaping within a JSON string."""
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text


def _escaped(text: str) -> str:
    """Escape a text for use within a JSON string."""
    return "".join(_code(character) if not _is_plain(character) else character for character in text)


def _code(character: str) -> str:
    number = ord(character)
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
