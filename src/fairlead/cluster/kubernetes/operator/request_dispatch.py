"""Runs requests in several threads: round-robin over the runs, so that large runs delay no small ones, or at once."""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from fairlead.errors import ClusterError

log = logging.getLogger(__name__)

Job = Callable[[], None]
T = TypeVar("T")
R = TypeVar("R")
# Work that follows from the first of many writes does not wait for the last of them.
MEANWHILE_S = 0.05
# A failed job is retried after this delay, which doubles up to the maximum: what each pass requests costs little
# while it cannot be done, and is late by no longer than it has failed for.
AGAIN_S = 0.2
MOST_AGAIN_S = 5.0


class Dispatcher:
    """A few threads, and a queue for each run.

    A pending or running job is not queued twice, and a failed one not before its delay has passed.

    Args:
        clock: Returns seconds; measures the delay of failed jobs.
    """

    def __init__(self, num_threads: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._given = threading.Condition(self._lock)
        self._empty = threading.Condition(self._lock)
        self._queues: OrderedDict[str, deque[tuple[str, Job]]] = OrderedDict()
        self._names: set[str] = set()
        self._clock = clock
        # By run and name, the oldest first: the delay, and its end.
        self._failed: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"requests {number}", daemon=True) for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, run: str, name: str, job: Job) -> bool:
        """Queue a job; return False if one of that name is queued or running, or is delayed after a failure."""
        with self._lock:
            _, until = self._failed.get((run, name), (0.0, 0.0))
            if name in self._names or self._stopping or self._clock() < until:
                return False
            self._names.add(name)
            self._queues.setdefault(run, deque()).append((name, job))
            self._given.notify()
            return True

    @property
    def num_waiting(self) -> int:
        """The number of pending and running jobs."""
        with self._lock:
            return len(self._names)

    def is_waiting(self, run: str) -> bool:
        """Return whether jobs of a run are queued that no thread has taken yet."""
        with self._lock:
            return run in self._queues

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
            self._given.notify_all()
        for thread in self._threads:
            thread.join(timeout=wait_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._given.wait_for(lambda: self._queues or self._stopping)
                if self._stopping:
                    return
                # The first run gives one job and goes to the end of the queue.
                run, queue = self._queues.popitem(last=False)
                name, job = queue.popleft()
                if queue:
                    self._queues[run] = queue
            is_done = False
            try:
                job()
                is_done = True
            except ClusterError as error:
                log.warning("%s: %s", name, error)
            except Exception:
                # A worker thread can report to nobody; a later pass finds the work undone and retries it.
                log.exception("%s: internal error", name)
            finally:
                with self._lock:
                    self._note(run, name, is_done=is_done)
                    self._names.discard(name)
                    if not self._names:
                        self._empty.notify_all()

    def _note(self, run: str, name: str, *, is_done: bool) -> None:
        left_alone_s, _ = self._failed.pop((run, name), (AGAIN_S / 2, 0.0))
        if is_done:
            return
        now = self._clock()
        left_alone_s = min(2 * left_alone_s, MOST_AGAIN_S)
        self._failed[run, name] = (left_alone_s, now + left_alone_s)
        # Delays of jobs that are no longer requested are forgotten.
        while next(iter(self._failed.values()))[1] < now - MOST_AGAIN_S:
            self._failed.popitem(last=False)


def at_once(
    work: Callable[[T], R], items: Sequence[T], *, num_threads: int, meanwhile: Callable[[], None]
) -> tuple[R, ...]:
    """Return the results of the work on all items, done by so many threads; ``meanwhile`` is called repeatedly until
    they finish."""
    with ThreadPoolExecutor(num_threads, thread_name_prefix="at once") as threads:
        given = [threads.submit(work, item) for item in items]
        while wait(given, timeout=MEANWHILE_S).not_done:
            meanwhile()
    return tuple(each.result() for each in given)
