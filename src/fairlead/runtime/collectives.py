"""Asks the ranks of a pod in which collective of torch.distributed they wait (hook/fairlead_collectives.py answers)."""

from __future__ import annotations

import contextlib
import glob
import os
import stat

from fairlead.runtime import podfiles
from fairlead.runtime.hook.fairlead_collectives import answer_of, fifo_of
from fairlead.untrusted_json import items, parse_json, text, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    Row = tuple[str, int, int | None, str | None]  # group, last entered, first pending, operation

MOST_BYTES = 16 * 1024  # of one process's answer
MOST_GROUPS = 8
_MOST_TEXT = 60


def prepare(path: str) -> None:
    """Create the FIFO of a rank, by which its processes are asked.

    Args:
        path: The rank's file of stacks, as everywhere in this module.

    Raises:
        OSError: It cannot be created.
    """
    forget(path)
    os.mkfifo(fifo_of(path), 0o600)


def forget(path: str) -> None:
    """Remove the FIFO of a rank and all answers; a process that still waits to be asked stays as it is."""
    for name in (fifo_of(path), *glob.glob(answer_of(glob.escape(path), "*"))):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def ask(path: str) -> bool:
    """Wake the processes of a rank that use torch.distributed; return whether there are any."""
    try:
        fd = os.open(fifo_of(path), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # nobody reads it, or the program has removed it
        return False
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def answers(path: str) -> list[Row]:
    """Return the process groups of a rank as its processes tell them; empty while none has answered.

    Where several processes of one rank answer, as behind a launcher, each group counts with the one furthest behind.
    """
    rows: dict[str, Row] = {}
    for name in sorted(glob.glob(answer_of(glob.escape(path), "*")))[:MOST_GROUPS]:
        with contextlib.suppress(OSError, ValueError):
            for value in items(parse_json(podfiles.read_regular(name, 0, MOST_BYTES + 1), max_bytes=MOST_BYTES)):
                row = row_of(value)
                if row is not None:
                    rows[row[0]] = row if row[0] not in rows else _furthest_behind(row, rows[row[0]])
    return sorted(rows.values(), key=lambda row: row[2] is None)[:MOST_GROUPS]


def row_of(value: object) -> Row | None:
    """Return a process group as a rank told it; None if that is malformed."""
    parts = items(value)
    if len(parts) != 4:
        return None
    group, entered, pending, operation = text(parts[0], _MOST_TEXT), *map(whole, parts[1:3]), text(parts[3], _MOST_TEXT)
    if group is None or entered is None:
        return None
    return (
        (group, entered, None, None) if pending is None or operation is None else (group, entered, pending, operation)
    )


def _furthest_behind(one: Row, other: Row) -> Row:
    first, second = sorted((one, other), key=lambda row: row[1])
    return first if first[2] is not None else (first[0], first[1], *second[2:])


def line(row: Row) -> str:
    """Return what the log says of a process group of a rank."""
    group, entered, pending, operation = row
    state = f"waits in {operation}, number {pending}" if pending is not None else "waits in none"
    return f"fairlead: collectives of {group}: {state}; the last that this rank entered is number {entered}"
