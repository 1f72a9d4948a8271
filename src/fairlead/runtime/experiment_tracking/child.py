"""The exporter process as the shim manages it: started beside the ranks, and restarted when it is killed."""

from __future__ import annotations

import contextlib
import os
import signal

from fairlead.runtime import processes, ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_STARTS = 5
# The kernel kills it first when memory is short, and schedules it last.
OUT_OF_MEMORY_SCORE = b"1000"
NICE = 10


class ExporterChild:
    """Manages at most one exporter process at a time.

    Attributes:
        pid: The process's id; None while there is none.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], workdir: str) -> None:
        self._argv = argv
        self._env = env
        self._workdir = workdir
        self._pipe: int | None = None
        self._num_starts = 0
        self.pid: int | None = None

    def tick(self, cgroup: str | None) -> None:
        """Start the process if there is none, at most ``MOST_STARTS`` times."""
        if self.pid is None and self._num_starts < MOST_STARTS:
            self._start(cgroup)

    def reaped(self, pid: int) -> None:
        """Record that a child of the shim has ended."""
        if pid == self.pid:
            self.pid = None
            self._close()

    def end(self, status: str) -> None:
        """Send the process the run's final status."""
        if self._pipe is not None:
            with contextlib.suppress(OSError):  # the process has ended by itself
                os.write(self._pipe, f"{status}\n".encode())
            self._close()

    def kill(self) -> None:
        """Kill the process."""
        if self.pid is not None:
            processes.kill([self.pid], signal.SIGKILL)
        self._close()

    def _start(self, cgroup: str | None) -> None:
        self._num_starts += 1
        read, write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        shim = os.getpid()
        pid = ranks.fork_with_signals_held()
        if pid == 0:
            try:
                ranks.enter(shim, cgroup, null, null, stdin=read)
                _give_way()
            except OSError as error:
                ranks.give_up(error)
            ranks.become(self._argv, self._env, self._workdir)
        ranks.release_signals()
        os.close(read)
        os.close(null)
        os.set_blocking(write, False)
        self.pid, self._pipe = pid, write

    def _close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def _give_way() -> None:
    os.nice(NICE)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(OUT_OF_MEMORY_SCORE)
