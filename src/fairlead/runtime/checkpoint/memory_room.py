"""Finds how much main memory may still be taken: of the machine, and of the limit that this process is under.

Pages of ``/dev/shm`` count towards the limit of the cgroup that writes them, so that a pod with ``resources.memory`` is
killed by what it holds there, however much the machine has left.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

KEPT_FREE = 0.1
"""This part of the memory, and of a limit, is left: to others, and to what the ranks take for a moment."""
CGROUPS, OWN, MEMORY = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")


def room_in_memory(*, memory: Path = MEMORY, own: Path = OWN, cgroups: Path = CGROUPS) -> int:
    """Return the bytes that may be taken; below 0 where too many are already."""
    kilobytes = {line.partition(":")[0]: int(line.split()[1]) for line in memory.read_text().splitlines()}
    total, available = kilobytes["MemTotal"] * 1024, kilobytes["MemAvailable"] * 1024
    rooms = [available - int(KEPT_FREE * total)]
    for limit, used in _limits(own, cgroups):
        if limit < total:
            rooms.append(limit - used - int(KEPT_FREE * limit))
    return min(rooms)


def _limits(own: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit and the use of each cgroup with a limit that this process is in, innermost first."""
    for line in own.read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers == "":
            root, names = cgroups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = cgroups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = root / place.lstrip("/")
        while group.is_relative_to(root):
            with contextlib.suppress(OSError, ValueError):  # not mounted here, or `max`, which is no limit
                limit, used = int((group / names[0]).read_text()), int((group / names[1]).read_text())
                yield limit, max(0, used - _cached(group, names[2]))
            group = group.parent


def _cached(group: Path, name: str) -> int:
    """The bytes of files that the kernel gives back before it kills anybody."""
    for line in (group / "memory.stat").read_text().splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0
