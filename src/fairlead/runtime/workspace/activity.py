"""Observes the activity in a workspace: busy kernels, commands and input in terminals, and saved files.

A page that is only open asks the server for lists and keeps its connections, and none of that counts. An answer that
does not come counts as activity: nobody may lose work because a server was slow.
"""

from __future__ import annotations

import os
import stat
import subprocess
import time
import urllib.request
from datetime import datetime
from itertools import islice

from fairlead.untrusted_json import fields, items, parse_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, NamedTuple

    class SystemProcess(NamedTuple):
        """A process: its parent, its session, and the number of its terminal, 0 for none."""

        parent: int
        session: int
        tty: int
else:
    from collections import namedtuple

    SystemProcess = namedtuple("SystemProcess", ["parent", "session", "tty"])

ANSWER_S = 10.0
MOST_BYTES = 1 << 20
# Of the files and directories of the root, by breadth, whose times are looked at.
MOST_ENTRIES = 2_000
GPU_QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
GPU_USED_PERCENT = 2.0
NOT_WORK = frozenset({"node_modules", "__pycache__"})


def newest_of_jupyter(url: str, token: str, now: float) -> float:
    """Return when a kernel or a terminal of a Jupyter server was last used; ``now`` while a kernel is busy."""
    try:
        kernels, terminals = _get(f"{url}api/kernels", token), _get(f"{url}api/terminals", token)
    except (OSError, ValueError):
        return now
    signs = [_moment(fields(entry).get("last_activity"), now) for entry in (*items(kernels), *items(terminals))]
    if any(fields(kernel).get("execution_state") == "busy" for kernel in items(kernels)):
        return now
    return max(signs, default=0.0)


def _get(url: str, token: str) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"token {token}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=ANSWER_S) as answer:
        return parse_json(answer.read(MOST_BYTES + 1), max_bytes=MOST_BYTES)


def _moment(text: object, now: float) -> float:
    """Return a time of the API in Unix seconds, at most ``now``; 0 for none."""
    if not isinstance(text, str):
        return 0.0
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return 0.0 if at.tzinfo is None else min(now, at.timestamp())


def newest_of_shells(server: int, processes: Mapping[int, SystemProcess], now: float) -> float:
    """Return when a shell below a process was last used; ``now`` while one runs a command.

    Args:
        server: The process id of the server.
        processes: All processes by id.
    """
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    newest, left = 0.0, list(children.get(server, ()))
    while left:
        pid = left.pop()
        left += children.get(pid, ())
        process = processes[pid]
        if not process.tty or process.session != pid:
            continue
        if children.get(pid):
            return now
        newest = max(newest, min(now, _last_input(process.tty)))
    return newest


def _last_input(tty: int) -> float:
    """Return when something was last read from a pseudo terminal of Linux, whose numbers begin at 136:0."""
    major = (tty >> 8) & 0xFFF
    minor = (tty & 0xFF) | ((tty >> 12) & 0xFFF00)
    if not 136 <= major <= 143:
        return 0.0
    try:
        return os.stat(f"/dev/pts/{minor + ((major - 136) << 8)}").st_atime
    except OSError:
        return 0.0


def running_processes() -> dict[int, SystemProcess]:
    """Return all processes of this system; none where it has no ``/proc``, as on macOS."""
    processes = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                # A program's name may have spaces and brackets in it.
                words = file.read().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if words[0] != "Z":
            processes[int(name)] = SystemProcess(parent=int(words[1]), session=int(words[3]), tty=int(words[4]))
    return processes


def newest_file(root: str, now: float) -> float:
    """Return when a file below a directory was last written, as far as the first ``MOST_ENTRIES`` are concerned.

    Hidden ones do not count: servers, shells and editors write these by themselves.
    """
    newest = 0.0
    for entry in islice(_entries(root), MOST_ENTRIES):
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_mtime <= now:
            newest = max(newest, status.st_mtime)
    return newest


def _entries(root: str) -> Iterator[os.DirEntry[str]]:
    directories = [root]
    while directories:
        try:
            entries = [entry for entry in os.scandir(directories.pop(0)) if not entry.name.startswith(".")]
        except OSError:
            continue
        for entry in entries:
            yield entry
            if entry.name not in NOT_WORK and entry.is_dir(follow_symlinks=False):
                directories.append(entry.path)


def newest_of_gpus(now: float) -> float:
    """Return ``now`` while a GPU of this container is in use; 0 if none is, or where the driver does not tell.

    The driver tells nothing of a MIG instance, and of a GPU in time slices the use by all that share it.
    """
    try:
        answer = subprocess.run(GPU_QUERY, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except subprocess.TimeoutExpired:
        return now
    except OSError:  # an image without nvidia-smi
        return 0.0
    percentages = (line.strip() for line in answer.stdout.splitlines())
    used = any(text.isascii() and text.isdigit() and int(text) > GPU_USED_PERCENT for text in percentages)
    return now if used else 0.0


class Observer:
    """The activity in one workspace.

    Args:
        server: The process id of its server.
        jupyter: URL and token of a Jupyter server; None for another one.
        root: The directory that it opens.
        watches_gpus: Use of the GPUs of this container counts.
    """

    def __init__(self, server: int, jupyter: tuple[str, str] | None, root: str, *, watches_gpus: bool = False) -> None:
        self._server = server
        self._jupyter = jupyter
        self._root = root
        self._watches_gpus = watches_gpus
        self.began_at = time.time()

    def newest(self) -> float:
        """Return the time of the last activity, in Unix seconds; not before the workspace was started."""
        now = time.time()
        signs = [self.began_at, newest_file(self._root, now)]
        signs.append(newest_of_shells(self._server, running_processes(), now))
        if self._jupyter is not None:
            signs.append(newest_of_jupyter(*self._jupyter, now))
        if self._watches_gpus:
            signs.append(newest_of_gpus(now))
        return max(signs)
