"""Computes how much main memory may still be used, within the machine's memory and this process's cgroup limits.

Pages of ``/dev/shm`` count towards the limit of the cgroup that writes them. A pod with ``resources.memory`` can
therefore be killed for the files that it holds there, however much memory the machine has left.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

KEPT_FREE = 0.1
"""Fraction of the memory, and of each limit, that stays free for other processes and for peaks of the ranks."""
CGROUPS, OWN, MEMORY = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")


def room_in_memory(*, memory: Path = MEMORY, own: Path = OWN, cgroups: Path = CGROUPS) -> int:
    """Return the bytes that may still be used; negative if too many are used already."""
    kilobytes = {line.partition(":")[0]: int(line.split()[1]) for line in memory.read_text().splitlines()}
    total, available = kilobytes["MemTotal"] * 1024, kilobytes["MemAvailable"] * 1024
    rooms = [available - int(KEPT_FREE * total)]
    for limit, used in _limits(own, cgroups):
        if limit < total:
            rooms.append(limit - used - int(KEPT_FREE * limit))
    return min(rooms)


def _limits(own: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit and the usage in bytes of each limited cgroup that this process is in, innermost first."""
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
    """Return the bytes of file cache that the kernel reclaims before it kills a process."""
    for line in (group / "memory.stat").read_text().splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0
