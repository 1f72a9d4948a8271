"""Chooses the processes of a rank that get its stop notice: all but those that the program needs to stop in order.

A command may be a shell, a pipe, a launcher or a script, so the notice is for every process of the rank's session, in
whatever process group. Left out are the worker processes of a program that catches SIGTERM, such as those of a data
loader, and filters of the output, such as `tee`: the program could not finish its step or print without them. Linux
only; elsewhere a rank's process group gets the notice. Standard library only, Python 3.9 or newer.

See decision 161.
"""

from __future__ import annotations

import contextlib
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlead.runtime.processes import Relative


def divide(session: Sequence[Relative]) -> tuple[list[int], set[int]]:
    """Return the processes of a session that get the notice, and the workers, which do not.

    Parents come before their children: in that order a shell does not run its next command because the first has ended.

    Args:
        session: The processes, parents before their children.
    """
    workers = _workers(session)
    spared = _filters([process.pid for process in session]) | workers
    return [process.pid for process in session if process.pid not in spared], workers


def _workers(session: Sequence[Relative]) -> set[int]:
    """Return the processes that Python has forked or spawned below a program that catches SIGTERM."""
    programs: dict[int, str] = {}  # command line of the program that a process belongs to
    workers = set()
    for process in session:
        command = _command(process.pid)
        program = programs.get(process.parent)
        if program is not None and (command == program or "multiprocessing." in command):
            workers.add(process.pid)
            programs[process.pid] = program
        elif _catches_sigterm(process.pid):
            programs[process.pid] = command
    return workers


def _filters(pids: Iterable[int]) -> set[int]:
    """Return the processes that read what others of them print, and do not catch SIGTERM; they end with the others."""
    printed: dict[str, set[int]] = {}
    read: dict[int, str] = {}
    for pid in pids:
        for number in (0, 1, 2):
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{number}")
                if not link.startswith("pipe:"):
                    continue
                if number == 0:
                    read[pid] = link
                else:
                    printed.setdefault(link, set()).add(pid)
    return {pid for pid, link in read.items() if printed.get(link, set()) - {pid} and not _catches_sigterm(pid)}


def _catches_sigterm(pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().decode("utf-8", "replace")
    return ""
