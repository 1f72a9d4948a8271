"""Measures the peak usage of a pod's processes: memory, and cores over a minute. Standard library only.

Memory is sampled regularly, as proportional set size, so that pages shared between processes count once. Peaks between
two samples are covered by each rank's maximum resident size, which the kernel records. Sampling takes at most a
hundredth of a core. On systems other than Linux only the kernel's records are known.
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
_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss


class PeakRecorder:
    """Records the peak usage of this process's descendants."""

    def __init__(self) -> None:
        self._look_at = 0.0
        self._sampled = 0
        self._largest: dict[int, int] = {}
        self._cpu_peak = 0.0
        self.begin()

    def begin(self) -> None:
        """Start counting processor time, as the ranks are about to start."""
        self._begun = self._window_at = time.monotonic()
        self._cpu_begun = self._window_cpu = _reaped_cpu_s()

    def look(self, now: float) -> None:
        """Take a sample if one is due; ``now`` is a time of the monotonic clock."""
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
        """Record the maximum size of a rank, or of a process that it has waited for, in the kernel's unit."""
        self._largest[rank] = max_rss * _UNIT

    def record(self) -> dict[str, Any]:
        """Return the peaks, for the record of the pod's end."""
        lasted_s = max(0.001, time.monotonic() - self._begun)
        mean = (_reaped_cpu_s() - self._cpu_begun) / lasted_s
        memory = max(self._sampled, sum(self._largest.values()))
        return {"memory_bytes": memory, "cpu_milli": round(1000 * max(self._cpu_peak, mean))}


def _reaped_cpu_s() -> float:
    """Return the processor time in seconds of all descendants that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _memory_bytes(pid: int) -> int:
    """Return the proportional set size of a process in bytes; 0 once it is gone."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _cpu_s(pid: int) -> float:
    """Return the processor time in seconds of a process and the children that it waited for; 0 once it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_S
    return 0.0
