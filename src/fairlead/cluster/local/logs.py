"""Reads the output of a run from the log files of its pods, merged by time, across rotation and restarts.

Files are opened one after the other and read in chunks, from either end, so that the first and the last lines of a long
log come at once. A reader keeps its file open: a file rotated away meanwhile is still read to its end.
"""

import heapq
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from fairlead.cluster.local.pod_files import read_lost_output
from fairlead.cluster.output import (
    EVERYTHING,
    NOTE,
    Counts,
    Dropped,
    LogQuery,
    Watermark,
    describe_dropped,
    local_limit,
    missing,
    read_counts,
)
from fairlead.cluster.port import LogLine
from fairlead.frozen import dataclass
from fairlead.runtime.podfiles import read_json
from fairlead.untrusted_json import fields, moment

POLL_S = 0.1
CATCH_UP_S = 0.01
CHUNK = 1 << 16
MOST_COUNTS = 1 << 16
COUNTS = b"c"
"""The stream of the first line of a file, which counts what was written before it."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file as listed."""

    inode: int
    path: Path
    size: int


class PodLog:
    """Reads the log of one pod, each line once."""

    def __init__(self, attempt: int, directory: Path, query: LogQuery, max_bytes: int) -> None:
        self.attempt = attempt
        self._directory = directory
        self._query = query
        self._why = local_limit(max_bytes)
        self._fd: int | None = None
        self._inode = -1
        self._offset = 0
        self._before: Counts | None = None  # counts of what was read before this file, if earlier files may be gone
        self._has_end = False

    def read(self) -> Iterator[LogLine]:
        """Yield unread lines, up to the end of the log as it was when the call began, and in the end a note of lost
        lines."""
        ended = {} if self._has_end else fields(read_json(self._directory / "exit.json"))
        yield from self._read_files()
        yield from self._note_of_lost(ended)

    def _note_of_lost(self, ended: dict[str, Any]) -> Iterator[LogLine]:
        """Yield a note once if the pod has ended and lines of its output were lost."""
        self._has_end = self._has_end or bool(ended)
        at, lost = moment(ended.get("at")), self._lost(ended)
        if at is None or not lost:
            return
        text = f"... in all {describe_dropped(lost)}"
        note = LogLine(at=at, attempt=self.attempt, rank=-1, stream=NOTE, text=text)
        if self._query.is_wanted(note):
            yield note

    def _lost(self, ended: dict[str, Any]) -> list[Dropped]:
        lost = read_lost_output(ended)
        if lost is None:
            return []
        lines, num_bytes, why = lost
        return [Dropped(attempt=self.attempt, rank=None, lines=lines, num_bytes=num_bytes, why=why)]

    def _read_files(self) -> Iterator[LogLine]:
        end = next(iter(self._files()[-1:]), None)
        if end is None or (self._fd is None and not self._go_to(_oldest)):
            return
        while True:
            yield from self._new_lines(end)
            if self._inode == end.inode or not any(file.inode != self._inode for file in self._files()):
                return
            # A rotated file no longer grows; its last lines are read before the next file.
            yield from self._new_lines(end)
            if not self._go_to(self._next):
                return

    def last(self) -> Iterator[LogLine]:
        """Yield the current lines, newest first; ``read`` continues after them."""
        yield from self._note_of_lost(fields(read_json(self._directory / "exit.json")))
        if not self._go_to(_newest) or self._fd is None:
            return
        self._before = None
        self._offset = _end_of_lines(self._fd)
        fd, inode, end = os.dup(self._fd), self._inode, self._offset
        try:
            while True:
                for line in _reversed_lines(fd, end):
                    parsed = _parse(line, self.attempt)
                    if parsed is None:
                        continue
                    if self._query.since is not None and parsed.at < self._query.since:
                        return
                    if self._query.is_wanted(parsed):
                        yield parsed
                older = self._older(inode)
                if older is None:
                    yield from self._notes(_first_line(fd), {})
                    return
                os.close(fd)
                fd, inode = older
                end = os.fstat(fd).st_size
        finally:
            os.close(fd)

    def dropped(self) -> tuple[Dropped, ...]:
        """Return the output that was dropped by the limit, or lost on a full disk."""
        lost = self._lost(fields(read_json(self._directory / "exit.json")))
        if not self._go_to(_oldest) or self._fd is None:
            return tuple(lost)
        _, counts = _counts(_first_line(self._fd))
        self.close()
        return (*missing(counts, {}, self.attempt, self._why), *lost)

    def close(self) -> None:
        """Close the open file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _go_to(self, choose: Callable[[list[LogFile]], LogFile | None]) -> bool:
        """Open a file, at its beginning or at the first line that is new enough; False if there is none."""
        while True:
            file = choose(self._files())
            if file is None:
                return False
            fd = _open(file)
            if fd is not None:
                break
        if file.inode != self._inode and choose == _oldest:
            self._before = {}
        self.close()
        self._fd, self._inode = fd, file.inode
        self._offset = 0 if self._query.since is None else _first_since(fd, self._query.since)
        return True

    def _next(self, files: list[LogFile]) -> LogFile | None:
        """Return the file after the open one; the oldest, with the counts read so far, if the open one is gone."""
        inodes = [file.inode for file in files]
        if self._inode in inodes:
            self._before = None
            return next(iter(files[inodes.index(self._inode) + 1 :]), None)
        # More files may have been rotated away entirely; the oldest remaining one has the counts.
        self._before = self._counted()
        return _oldest(files)

    def _older(self, inode: int) -> tuple[int, int] | None:
        """Return a descriptor and the inode of the file before another; None when it is gone."""
        while True:
            files = self._files()
            inodes = [file.inode for file in files]
            place = inodes.index(inode) if inode in inodes else 0
            if place == 0:
                return None
            fd = _open(files[place - 1])
            if fd is not None:
                return fd, files[place - 1].inode

    def _new_lines(self, end: LogFile) -> Iterator[LogLine]:
        """Yield complete selected lines beyond the offset; in the last file, only up to its listed size."""
        assert self._fd is not None
        until, is_wanted = self._query.until, self._query.is_wanted
        takes_all = self._query == EVERYTHING
        most = end.size if end.inode == self._inode else None
        # The offset is that of the next line; a yielded line counts as read.
        at, rest = self._offset, b""
        while most is None or at < most:
            chunk = os.pread(self._fd, CHUNK if most is None else min(CHUNK, most - at), at)
            if not chunk:
                return
            at += len(chunk)
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            for line in lines:
                self._offset += len(line) + 1
                parsed = _parse(line, self.attempt)
                if parsed is None:
                    if self._before is not None:
                        yield from self._notes(line, self._before)
                        self._before = None
                elif takes_all or is_wanted(parsed):
                    yield parsed
                elif until is not None and parsed.at > until:
                    return

    def _counted(self) -> Counts:
        """Return the counts up to the end of the open file, from its first line and the lines after it."""
        assert self._fd is not None
        counts = dict(_counts(_first_line(self._fd))[1])
        for line in _reversed_lines(self._fd, _end_of_lines(self._fd)):
            parsed = _parse(line, self.attempt)
            if parsed is not None and parsed.stream != NOTE:
                lines, num_bytes = counts.get(parsed.rank, (0, 0))
                counts[parsed.rank] = lines + 1, num_bytes + len(line.split(b" ", 3)[3]) + 1
        return counts

    def _notes(self, first_line: bytes, before: Counts) -> list[LogLine]:
        """Return notes of the output dropped before a file, from its first line."""
        at, counts = _counts(first_line)
        notes = [loss.line(at) for loss in missing(counts, before, self.attempt, self._why)]
        return [note for note in notes if self._query.is_wanted(note)]

    def _files(self) -> list[LogFile]:
        """Return the log files, oldest first."""
        files: list[tuple[int, LogFile]] = []
        for path in self._directory.glob("output.log*"):
            suffix = path.name.removeprefix("output.log").removeprefix(".")
            if suffix == "" or suffix.isdigit():
                try:
                    stat = path.stat()
                except FileNotFoundError:  # rotated at this moment: the next listing finds it under its new name
                    continue
                files.append((-int(suffix or 0), LogFile(stat.st_ino, path, stat.st_size)))
        return [file for _, file in sorted(files, key=itemgetter(0))]


def read_logs(
    directories: Callable[[], Iterable[tuple[int, Path]]],
    query: LogQuery,
    *,
    max_bytes: int,
    follow: bool,
    over: Callable[[], bool],
    watermark: Watermark | None = None,
) -> Iterator[LogLine]:
    """Yield the selected lines of all pods.

    Args:
        directories: Returns attempt and directory of each pod, attempts in order; called again while following.
        max_bytes: The limit of each pod's log, for notes about dropped lines.
    """
    logs: dict[Path, PodLog] = {}
    is_first, is_drained = True, -1
    try:
        while True:
            began, last = time.time(), not follow or over() or (query.until is not None and time.time() > query.until)
            for number, directory in directories():
                if number > is_drained and query.attempt in (None, number) and directory not in logs:
                    logs[directory] = PodLog(number, directory, query, max_bytes)
            has_any = False
            for line in _tail(logs.values(), query.tail) if is_first and query.tail else _merged(logs.values()):
                has_any = True
                yield line
            if watermark is not None:
                watermark.reached = began
            if last:
                return
            # A gang restarts only when the previous attempt is over.
            is_drained = max((log.attempt for log in logs.values()), default=0) - 1
            for directory in [directory for directory, log in logs.items() if log.attempt <= is_drained]:
                logs.pop(directory).close()
            is_first = False
            if not has_any and watermark is None:
                time.sleep(POLL_S)
            elif not has_any and watermark is not None:
                watermark.pause(POLL_S if watermark.wanted <= began else CATCH_UP_S)
    finally:
        for log in logs.values():
            log.close()


def dropped_output(directories: Iterable[tuple[int, Path]], max_bytes: int) -> tuple[Dropped, ...]:
    """Return the output of these pods that was dropped, by attempt and directory."""
    return tuple(
        loss
        for attempt, directory in directories
        for loss in PodLog(attempt, directory, EVERYTHING, max_bytes).dropped()
    )


def _merged(logs: Iterable[PodLog]) -> Iterator[LogLine]:
    """Yield unread lines by attempt and time; the pods of an attempt are opened when the previous attempt is read."""
    for _, group in groupby(logs, attrgetter("attempt")):
        pods = list(group)
        yield from pods[0].read() if len(pods) == 1 else heapq.merge(*(pod.read() for pod in pods), key=_at)


def _tail(logs: Iterable[PodLog], num_lines: int) -> list[LogLine]:
    """Return the last lines, in order."""
    lines: list[LogLine] = []
    for _, group in groupby(reversed(list(logs)), attrgetter("attempt")):
        newest_first = heapq.merge(*(pod.last() for pod in group), key=_at, reverse=True)
        lines.extend(islice(newest_first, num_lines - len(lines)))
    return lines[::-1]


_at: Callable[[LogLine], float] = attrgetter("at")


def _oldest(files: list[LogFile]) -> LogFile | None:
    return files[0] if files else None


def _newest(files: list[LogFile]) -> LogFile | None:
    return files[-1] if files else None


def _open(file: LogFile) -> int | None:
    """Open the very file that was listed; None when it has been rotated meanwhile."""
    try:
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if os.fstat(fd).st_ino != file.inode:
        os.close(fd)
        return None
    return fd


def _end_of_lines(fd: int) -> int:
    """Return the offset after the last complete line."""
    end = os.fstat(fd).st_size
    while end > 0:
        begin = max(0, end - CHUNK)
        newline = os.pread(fd, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _reversed_lines(fd: int, end: int) -> Iterator[bytes]:
    """Yield complete lines before an offset, last one first."""
    rest = b""
    is_first = True
    while end > 0:
        begin = max(0, end - CHUNK)
        lines = (os.pread(fd, end - begin, begin) + rest).split(b"\n")
        end = begin
        rest = lines.pop(0)
        if is_first and lines:
            lines.pop()  # after the last newline
            is_first = False
        yield from reversed(lines)
    if not is_first:
        yield rest


def _first_line(fd: int) -> bytes:
    """Return the first line of a file; empty while it is incomplete."""
    line, newline, _ = os.pread(fd, MOST_COUNTS, 0).partition(b"\n")
    return line if newline else b""


def _first_since(fd: int, since: float) -> int:
    """Return the offset of a line such that all earlier lines are older than a time."""
    low, high = 0, os.fstat(fd).st_size
    while high - low > CHUNK:
        middle = (low + high) // 2
        begin = os.pread(fd, CHUNK, middle)
        line = begin.find(b"\n") + 1
        time_of, space, _ = begin[line : line + 40].partition(b" ")
        if not line or not space or not _is_before(time_of, since):
            high = middle
        else:
            low = middle + line
    return low


def _is_before(time_of: bytes, since: float) -> bool:
    try:
        return float(time_of) < since
    except ValueError:
        return False


def _parse(line: bytes, attempt: int) -> LogLine | None:
    try:
        at, who, stream, text = line.split(b" ", 3)
        if stream == COUNTS:
            return None
        return LogLine(
            at=float(at),
            attempt=attempt,
            rank=int(who) if who.isdigit() else -1,
            stream=stream.decode(),
            text=text.decode(errors="replace"),
        )
    except ValueError:  # a line truncated by a full disk
        return None


def _counts(line: bytes) -> tuple[float, Counts]:
    """Parse time and counts from a file's first line; empty counts if it is another kind of line."""
    parts = line.split(b" ", 3)
    if len(parts) < 4 or parts[2] != COUNTS:
        return 0.0, {}
    return float(parts[0]), read_counts(parts[3]) or {}
