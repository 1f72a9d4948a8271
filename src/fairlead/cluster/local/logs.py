"""Output of a run, read from the log files of its pods: merged in order of time, through rotation and restarts."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fairlead.cluster.port import LogLine

POLL_S = 0.1
CHUNK = 1 << 20


class Tail:
    """Reads the log of one pod from its oldest file on, each line once."""

    def __init__(self, attempt: int, directory: Path) -> None:
        self._attempt = attempt
        self._directory = directory
        self._inode: int | None = None
        self._offset = 0

    def read(self) -> Iterator[LogLine]:
        """Complete lines that were not read before."""
        files = self._files()
        inodes = [inode for inode, _ in files]
        # A file that was rotated away altogether is lost; what is left follows it.
        start = inodes.index(self._inode) if self._inode in inodes else 0
        for inode, path in files[start:]:
            if inode != self._inode:
                self._inode, self._offset = inode, 0
            yield from self._read_file(path)

    def _files(self) -> list[tuple[int, Path]]:
        """Log files with their inodes, oldest first."""
        found: list[tuple[int, int, Path]] = []
        for path in self._directory.glob("output.log*"):
            suffix = path.name.removeprefix("output.log").removeprefix(".")
            if suffix == "" or suffix.isdigit():
                try:
                    found.append((int(suffix or 0), path.stat().st_ino, path))
                except FileNotFoundError:  # rotated at this moment: the next look finds it under its new name
                    continue
        return [(inode, path) for _, inode, path in sorted(found, reverse=True)]

    def _read_file(self, path: Path) -> Iterator[LogLine]:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return
        with file:
            if os.fstat(file.fileno()).st_ino != self._inode:
                return
            file.seek(self._offset)
            rest = b""
            while chunk := file.read(CHUNK):
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    self._offset += len(line) + 1
                    parsed = _parse(line, self._attempt)
                    if parsed is not None:
                        yield parsed


def read_logs(
    directories: Callable[[], Iterable[tuple[int, Path]]],
    *,
    rank: int | None,
    attempt: int | None,
    follow: bool,
    over: Callable[[], bool],
) -> Iterator[LogLine]:
    """Lines of all pods; ``directories`` gives attempt and directory of each, and is asked again while following."""
    tails: dict[Path, Tail] = {}
    while True:
        last = not follow or over()
        batch: list[LogLine] = []
        for number, directory in directories():
            if attempt is None or number == attempt:
                tail = tails.setdefault(directory, Tail(number, directory))
                batch.extend(line for line in tail.read() if rank is None or line.rank == rank)
        yield from sorted(batch, key=lambda line: (line.attempt, line.at))
        if last:
            return
        if not batch:
            time.sleep(POLL_S)


def _parse(line: bytes, attempt: int) -> LogLine | None:
    parts = line.decode(errors="replace").split(" ", 3)
    try:
        at, who, stream = float(parts[0]), parts[1], parts[2]
    except (ValueError, IndexError):  # the end of a line that a full disk cut
        return None
    rank = int(who) if who.isdigit() else -1
    return LogLine(at=at, attempt=attempt, rank=rank, stream=stream, text=parts[3] if len(parts) > 3 else "")
