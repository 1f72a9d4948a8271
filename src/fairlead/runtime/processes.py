"""Process functions of the kernel: tie a process to its parent, adopt orphans, find and kill descendants.

Linux has all of them. On other systems processes are not tied, and only those found by process group are killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Mapping

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process as soon as its parent ends; kill it now if the parent has already ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def become(command: list[str], env: Mapping[str, str] | None = None) -> None:
    """Replace this process's program by a command, with this environment or its own; exit with a message on failure."""
    try:
        os.execvpe(command[0], command, os.environ if env is None else env)
    except OSError as error:
        sys.exit(f"fairlead: {command[0]} cannot be started: {error.strerror or error}")


def adopt_orphans(adopt: bool = True) -> None:
    """Make this process the parent of every descendant whose own parent ends, or stop that."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def name_process(name: str) -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def num_threads() -> int:
    """Return the number of the process's threads, including non-Python ones; 1 if the kernel does not report it."""
    try:
        return len(os.listdir("/proc/self/task"))
    except FileNotFoundError:
        return 1


def descendants(pid: int) -> list[int]:
    """Return the living descendants of a process, without zombies, parents before their children."""
    return [process.pid for process, _ in _below(pid)]


class Relative:
    """A process and its parent."""

    __slots__ = ("parent", "pid")

    def __init__(self, pid: int, parent: int) -> None:
        self.pid, self.parent = pid, parent


def sessions_below(pid: int) -> dict[int, list[Relative]]:
    """Return the living descendants of a process by their session, parents before their children."""
    sessions: dict[int, list[Relative]] = {}
    for process, session in _below(pid):
        sessions.setdefault(session, []).append(process)
    return sessions


def _below(pid: int) -> list[tuple[Relative, int]]:
    """Return the living descendants of a process and the session of each."""
    children: dict[int, list[int]] = {}
    sessions: dict[int, int] = {}
    for name in _processes():
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(name)
        if fields[0] not in (b"Z", b"X"):
            sessions[name] = int(fields[3])
    relatives, todo = [], [pid]
    while todo:
        parent = todo.pop()
        below = children.get(parent, [])
        relatives += [Relative(child, parent) for child in below]
        todo += below
    return [(relative, sessions[relative.pid]) for relative in relatives if relative.pid in sessions]


def commands(pids: Iterable[int]) -> list[str]:
    """Return the command lines of those of the processes that still exist."""
    lines = []
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            lines.append(file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip())
    return [command for command in lines if command]


def members(cgroup: str | None) -> list[int]:
    """Return the processes in a cgroup except this one; an empty list without a cgroup."""
    if cgroup is None:
        return []
    try:
        with open(os.path.join(cgroup, "cgroup.procs"), "rb") as file:
            pids = [int(line) for line in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid for pid in pids if pid != os.getpid()]


def processes_with(variable: str, value: str) -> list[int]:
    """Return every living process whose initial environment has this variable, as far as it may be read."""
    wanted = f"{variable}={value}".encode()
    pids = []
    for pid in _processes():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if wanted in environment.split(b"\0"):
            pids.append(pid)
    return pids


def show_in_environment(variable: str, value: str) -> None:
    """Make /proc/PID/environ of this process show VARIABLE=value, if it has space for that variable.

    The kernel shows the memory that held the process's first environment. A forked process shares its parent's text
    there, so this writes the process's own. Without the file or the space nothing changes.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[47]), int(fields[48])
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            block = b"\0" + os.pread(memory, end - start, start)
            at = block.index(f"\0{variable}=".encode()) + len(variable) + 2
            room = block.index(b"\0", at) - at
            text = value.encode()
            if len(text) <= room:
                os.pwrite(memory, text.ljust(room, b"\0"), start + at - 1)
        finally:
            os.close(memory)


def num_oom_kills(cgroup: str | None) -> int:
    """Return the number of processes in the cgroup, v1 or v2, that the kernel killed because memory was short."""
    for name in ("memory.events", "memory.oom_control") if cgroup is not None else ():
        with contextlib.suppress(OSError), open(os.path.join(str(cgroup), name)) as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    return 0


def join(cgroup: str) -> None:
    """Move this process into the cgroup."""
    with open(os.path.join(cgroup, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))


def kill(pids: Iterable[int], signum: int = signal.SIGKILL) -> None:
    """Send a signal to those of the processes that are alive and that this user may signal."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []


def _prctl(option: int, value: int) -> None:
    if _LIBC is not None and _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} failed")
