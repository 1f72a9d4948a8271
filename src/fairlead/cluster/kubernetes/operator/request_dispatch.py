"""Requests by several threads: taken from the runs in turn, so that a large one delays no small one, or all at once."""

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
# What follows from the first of many writes does not wait for the last of them.
MEANWHILE_S = 0.05
# A job that failed is taken again after so long, then after twice that, up to the most: what is asked for at each pass
# costs little while it cannot be done, and is late by no longer than it has failed for.
AGAIN_S = 0.2
MOST_AGAIN_S = 5.0


class Dispatcher:
    """A few threads and a queue for each run.

    A job that waits or runs is not taken twice, and one that failed not before its time.

    Args:
        clock: Seconds, for how long a job that failed is left alone.
    """

    def __init__(self, num_threads: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._given = threading.Condition(self._lock)
        self._empty = threading.Condition(self._lock)
        self._queues: OrderedDict[str, deque[tuple[str, Job]]] = OrderedDict()
        self._names: set[str] = set()
        self._clock = clock
        # By run and name, the oldest first: how long it is left alone, and until when.
        self._failed: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"requests {number}", daemon=True) for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, run: str, name: str, job: Job) -> bool:
        """Do it soon; False when a job of that name is under way, or failed so lately that it is left alone."""
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
        """Jobs that wait or run."""
        with self._lock:
            return len(self._names)

    def is_waiting(self, run: str) -> bool:
        """Return whether jobs of a run wait that no thread has taken yet."""
        with self._lock:
            return run in self._queues

    def drain(self, timeout_s: float) -> bool:
        """Return when nothing waits or runs; False after the timeout."""
        with self._lock:
            return self._empty.wait_for(lambda: not self._names, timeout_s)

    def stop(self, *, wait_s: float = 5.0) -> None:
        """Take no more; what runs is finished, what waits is left to whoever comes next.

        Args:
            wait_s: How long each thread is awaited; they end with the process in any case.
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
                # The first run gives one job and goes to the end of the row.
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
                # A thread of its own has nobody to tell; a later pass finds the work undone and tries again.
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
        # What nobody asks for any more is forgotten.
        while next(iter(self._failed.values()))[1] < now - MOST_AGAIN_S:
            self._failed.popitem(last=False)


def at_once(
    work: Callable[[T], R], items: Sequence[T], *, num_threads: int, meanwhile: Callable[[], None]
) -> tuple[R, ...]:
    """The work done on all items by so many threads; ``meanwhile`` is called now and then until they are through."""
    with ThreadPoolExecutor(num_threads, thread_name_prefix="at once") as threads:
        given = [threads.submit(work, item) for item in items]
        while wait(given, timeout=MEANWHILE_S).not_done:
            meanwhile()
    return tuple(each.result() for each in given)
