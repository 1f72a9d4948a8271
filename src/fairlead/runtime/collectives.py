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
    from collections.abc import Mapping

    # group, last entered, first pending, operation, rank of the process, its place, the call in which it waits
    Row = tuple[str, int, int | None, str | None, int | None, str | None, str | None]

MOST_BYTES = 16 * 1024  # of one process's answer
MOST_GROUPS = 8
MOST_WORKERS = 16
"""Processes of one rank that answer, as those behind a launcher such as torchrun."""
MOST_ROWS = MOST_GROUPS * MOST_WORKERS
_MOST_TEXT = 60
_MOST_PLACE = 120


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


def answers(path: str, places: Mapping[int, Mapping[str, str | None]]) -> list[Row]:
    """Return the process groups of each process of a rank, as they report them; empty while none has answered.

    Of several processes that report the same rank of the gang the one furthest behind counts in each group.

    Args:
        places: `place` and `waits_in` of processes, by pid, as far as known.
    """
    rows: dict[tuple[str, int | None], Row] = {}
    for name in sorted(glob.glob(answer_of(glob.escape(path), "*")))[:MOST_WORKERS]:
        pid = name.split(".")[-2]
        at = places.get(int(pid), {}) if pid.isdecimal() else {}
        with contextlib.suppress(OSError, ValueError):
            for value in items(parse_json(podfiles.read_regular(name, 0, MOST_BYTES + 1), max_bytes=MOST_BYTES)):
                row = row_of([*items(value)[:5], at.get("place"), at.get("waits_in")])
                if row is not None:
                    key = row[0], row[4]
                    rows[key] = row if key not in rows else _furthest_behind(row, rows[key])
    return of_first_groups(list(rows.values()), MOST_GROUPS)


def of_first_groups(rows: list[Row], number: int) -> list[Row]:
    """Return the rows of so many groups, those in which a process waits first."""
    ordered = dict.fromkeys(row[0] for row in sorted(rows, key=lambda row: row[2] is None))
    return [row for group in list(ordered)[:number] for row in rows if row[0] == group]


def row_of(value: object) -> Row | None:
    """Return a process group as a rank told it; None if that is malformed."""
    parts = items(value)
    if len(parts) not in (4, 7):  # four of a pod that an older version started
        return None
    group, entered, pending, operation = text(parts[0], _MOST_TEXT), *map(whole, parts[1:3]), text(parts[3], _MOST_TEXT)
    if group is None or entered is None:
        return None
    if pending is None or operation is None:
        pending = operation = None
    rank, place, call = (*parts[4:], None, None, None)[:3]
    return group, entered, pending, operation, whole(rank), text(place, _MOST_PLACE), text(call, _MOST_TEXT)


def _furthest_behind(one: Row, other: Row) -> Row:
    first, second = sorted((one, other), key=lambda row: row[1])
    return first if first[2] is not None else (*first[:2], *second[2:])


def line(row: Row) -> str:
    """Return what the log says of a process group of a rank."""
    group, entered, pending, operation, rank, *_ = row
    state = f"waits in {operation}, number {pending}" if pending is not None else "waits in none"
    who = "this rank" if rank is None else f"rank {rank}"
    return f"fairlead: collectives of {group}: {state}; the last that {who} entered is number {entered}"
