"""Runs requests in several threads: round-robin over the runs, so that large runs delay no small ones.

What failed before has half of the threads at most, so that requests which take long to fail delay no others.
"""

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from fairlead.cluster.kubernetes.operator.retry_delays import RetryDelays
from fairlead.errors import ClusterError

log = logging.getLogger(__name__)

Job = Callable[[], None]
Refused = Callable[[str, str], None]
# A refusal that stands this often in a row is told; a single one may be of an API server that restarts.
TOLD_AT = 2


class Dispatcher:
    """A few threads, and a queue for each run.

    A pending or running job is not queued twice, and a failed one not before its delay has passed.

    Args:
        most_of_team: The most jobs of one team that run at once; all threads if None.
        clock: Returns seconds; measures the delay of failed jobs.
        refused: Called with the run of a job that the API server has refused twice, and what it said.
    """

    def __init__(
        self,
        num_threads: int,
        *,
        most_of_team: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        refused: Refused = lambda _run, _said: None,
    ) -> None:
        self._lock = threading.Lock()
        self._available = threading.Condition(self._lock)
        self._empty = threading.Condition(self._lock)
        self._queues: _Queues = OrderedDict()
        self._retries: _Queues = OrderedDict()
        self._num_retrying, self._most_retrying = 0, max(1, num_threads // 2)
        self._most_of_team, self._num_of_team = most_of_team or num_threads, Counter[str]()
        self._num_of_run = Counter[str]()
        self._names: set[str] = set()
        self._delays = RetryDelays[tuple[str, str]](clock)
        self._refused = refused
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"requests {number}", daemon=True) for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, run: str, name: str, job: Job, *, team: str = "", most: int | None = None) -> bool:
        """Queue a job; return False if one of that name is queued or running, or is delayed after a failure.

        Args:
            team: The team of the run, where jobs of a team are limited.
            most: The most jobs of this run that run at once; all threads if None.
        """
        with self._lock:
            if name in self._names or self._stopping or self._delays.is_delayed((run, name)):
                return False
            self._names.add(name)
            queues = self._retries if self._delays.has_failed((run, name)) else self._queues
            queues.setdefault(run, deque()).append((name, job, team, most))
            self._available.notify()
            return True

    @property
    def num_waiting(self) -> int:
        """The number of pending and running jobs."""
        with self._lock:
            return len(self._names)

    def is_waiting(self, run: str) -> bool:
        """Return whether jobs of a run are queued that no thread has taken yet."""
        with self._lock:
            return run in self._queues or run in self._retries

    @property
    def refused(self) -> set[str]:
        """The runs of the jobs whose latest try failed."""
        with self._lock:
            return {run for run, _ in self._delays.failed()}

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or running; return False after the timeout."""
        with self._lock:
            return self._empty.wait_for(lambda: not self._names, timeout_s)

    def stop(self, *, wait_s: float = 5.0) -> None:
        """Accept no more jobs; running ones are finished, queued ones are left to the next operator.

        Args:
            wait_s: How long to wait for each thread, in seconds; threads end with the process in any case.
        """
        with self._lock:
            self._stopping = True
            self._queues.clear()
            self._retries.clear()
            self._available.notify_all()
        for thread in self._threads:
            thread.join(timeout=wait_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._available.wait_for(lambda: self._stopping or self._next() is not None)
                following = self._next()
                if self._stopping or following is None:
                    return
                queues, run = following
                is_retry = queues is self._retries
                name, job, team = _take(queues, run)
                self._num_retrying += is_retry
                self._num_of_team[team] += 1
                self._num_of_run[run] += 1
            error: Exception | None = None
            try:
                job()
            except Exception as failure:  # noqa: BLE001
                # A worker thread can report to nobody; a later pass finds the work undone and retries it.
                error = failure
            with self._lock:
                num_failures = self._note(run, name, is_done=error is None)
                self._num_retrying -= is_retry
                self._num_of_team[team] -= 1
                if not self._num_of_team[team]:
                    del self._num_of_team[team]
                self._num_of_run[run] -= 1
                if not self._num_of_run[run]:
                    del self._num_of_run[run]
                self._available.notify()
            if error is not None:
                self._tell(run, name, error, num_failures)
            with self._lock:
                self._names.discard(name)
                if not self._names:
                    self._empty.notify_all()

    def _next(self) -> "tuple[_Queues, str] | None":
        """Return the run whose job is next, and its queues; None if no job may run. Call with the lock held."""
        may_retry = self._num_retrying < self._most_retrying
        for queues in (self._queues, self._retries) if may_retry else (self._queues,):
            for run, queue in queues.items():
                _, _, team, most = queue[0]
                is_full = most is not None and self._num_of_run[run] >= most
                if not is_full and self._num_of_team[team] < self._most_of_team:
                    return queues, run
        return None

    def _note(self, run: str, name: str, *, is_done: bool) -> int:
        """Record the end of a job; return its failures in a row. Call with the lock held."""
        if is_done:
            self._delays.succeed((run, name))
            return 0
        return self._delays.fail((run, name))

    def _tell(self, run: str, name: str, error: Exception, num_failures: int) -> None:
        """Log a failure once, and tell of a refusal that stands."""
        if num_failures == 1:
            if isinstance(error, ClusterError):
                log.warning("%s: %s", name, error)
            else:
                log.error("%s: internal error", name, exc_info=error)
        if num_failures == TOLD_AT and isinstance(error, ClusterError) and not error.concerns_all:
            self._refused(run, f"{name}: {error}")


_Queues = OrderedDict[str, deque[tuple[str, Job, str, int | None]]]


def _take(queues: _Queues, run: str) -> tuple[str, Job, str]:
    """Take a job of a run, which goes to the end of the queue; return its name and its team too."""
    queue = queues.pop(run)
    name, job, team, _ = queue.popleft()
    if queue:
        queues[run] = queue
    return name, job, team
