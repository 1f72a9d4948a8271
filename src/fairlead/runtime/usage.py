"""Measures what the processes of a pod use at most: memory, and cores over a minute. Standard library only.

Memory is looked at from time to time, in proportional shares so that pages which processes have in common count once;
for a peak between two looks each rank's own greatest resident size, which the kernel keeps, stands in. The looks take
at most a hundredth of a core. Elsewhere than on Linux only what the kernel keeps is known.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time

from fairlead.runtime import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EVERY_S = 2.0
COST_PART = 0.01
WINDOW_S = 60.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


class Usage:
    """The peaks of the processes below this one."""

    def __init__(self) -> None:
        self._look_at = 0.0
        self._sampled = 0
        self._largest: dict[int, int] = {}
        self._cpu_peak = 0.0
        self.begin()

    def begin(self) -> None:
        """Count processor time from now on, as the ranks are about to start."""
        self._begun = self._window_at = time.monotonic()
        self._cpu_begun = self._window_cpu = _reaped_cpu_s()

    def look(self, now: float) -> None:
        """Look once if it is time; ``now`` is of the monotonic clock."""
        if now < self._look_at:
            return
        begun = time.thread_time()
        pids = processes.descendants(os.getpid())
        self._sampled = max(self._sampled, sum(map(_memory_bytes, pids)))
        if now - self._window_at >= WINDOW_S:
            cpu = _reaped_cpu_s() + sum(map(_cpu_s, pids))
            self._cpu_peak = max(self._cpu_peak, (cpu - self._window_cpu) / (now - self._window_at))
            self._window_at, self._window_cpu = now, cpu
        self._look_at = now + max(EVERY_S, (time.thread_time() - begun) / COST_PART)

    def ended(self, rank: int, max_rss: int) -> None:
        """Note the greatest size of a rank, or of a process that it has waited for, in the unit of the kernel."""
        self._largest[rank] = max_rss * _UNIT

    def record(self) -> dict[str, Any]:
        """Return the peaks, for the record of the pod's end."""
        lasted_s = max(0.001, time.monotonic() - self._begun)
        mean = (_reaped_cpu_s() - self._cpu_begun) / lasted_s
        memory = max(self._sampled, sum(self._largest.values()))
        return {"memory_bytes": memory, "cpu_milli": round(1000 * max(self._cpu_peak, mean))}


def _reaped_cpu_s() -> float:
    """Processor time of all processes below this one that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _memory_bytes(pid: int) -> int:
    """Resident memory of a process, with its part of the pages that it shares; 0 once it is gone."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _cpu_s(pid: int) -> float:
    """Processor time of a process and of those it has waited for; 0 once it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return sum(int(each) for each in fields[11:15]) / _TICKS_PER_S
    return 0.0
