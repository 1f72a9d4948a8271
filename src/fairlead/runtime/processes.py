"""Asks the kernel about processes: tie one to its parent, adopt orphans, find and end descendants.

Linux gives all of it; elsewhere the ties are missing and only what is found by process group ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process as soon as its parent ends; ends it now if that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def become(command: list[str], env: Mapping[str, str] | None = None) -> None:
    """Replaces this process's program by a command, with this environment or its own; says why if that cannot be."""
    try:
        os.execvpe(command[0], command, os.environ if env is None else env)
    except OSError as error:
        sys.exit(f"fairlead: {command[0]} cannot be started: {error.strerror or error}")


def adopt_orphans(adopt: bool = True) -> None:
    """Makes this process the parent of every descendant whose own parent ends, or no longer."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def name_process(name: str) -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def num_threads() -> int:
    """Threads of this process that the kernel knows, Python's or not; 1 where the kernel does not say."""
    try:
        return len(os.listdir("/proc/self/task"))
    except FileNotFoundError:
        return 1


def descendants(pid: int) -> list[int]:
    """The living processes below pid, zombies left out, parents before their children."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for name in _processes():
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(name)
        if fields[0] in (b"Z", b"X"):
            zombies.add(name)
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return [each for each in found if each not in zombies]


def members(cgroup: str | None) -> list[int]:
    """The processes in a cgroup, this one left out; none without a cgroup."""
    if cgroup is None:
        return []
    try:
        with open(os.path.join(cgroup, "cgroup.procs"), "rb") as file:
            pids = [int(line) for line in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid for pid in pids if pid != os.getpid()]


def processes_with(variable: str, value: str) -> list[int]:
    """Every living process that was started with this environment variable, as far as we may look."""
    wanted = f"{variable}={value}".encode()
    found = []
    for pid in _processes():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if wanted in environment.split(b"\0"):
            found.append(pid)
    return found


def show_in_environment(variable: str, value: str) -> None:
    """Makes /proc/PID/environ of this process say VARIABLE=value where it has room for that variable.

    The kernel shows the memory in which a process's first environment was laid. A forked process shares its parent's
    text there, so it writes its own. Without the file or the room nothing changes.
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
    """Count the processes that the kernel has killed in the cgroup for want of memory, v1 or v2."""
    for name in ("memory.events", "memory.oom_control") if cgroup is not None else ():
        with contextlib.suppress(OSError), open(os.path.join(str(cgroup), name)) as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    return 0


def join(cgroup: str) -> None:
    """Moves this process into the cgroup."""
    with open(os.path.join(cgroup, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))


def kill(pids: list[int], signum: int = signal.SIGKILL) -> None:
    """Signals those that still live and are ours to signal."""
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
