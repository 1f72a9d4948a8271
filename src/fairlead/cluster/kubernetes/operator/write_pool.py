"""Writes objects in a few threads, of one team after the other.

A write that takes long, as behind a slow webhook, keeps no other one waiting; and many writes of one team do not keep
the next pass waiting, which may be about others.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
# Work that follows from the first of many writes does not wait for the last of them.
MEANWHILE_S = 0.05
SLOW_S = 1.0
TURN_S = 0.5
"""Seconds after which no further write of a pass begins; the next pass asks for what is left.

It is less where the next pass is urgent for another team: each team has its first write then.
"""
LONG_S, LONG_TIMES = 0.1, 4.0
"""A write that takes longer, and so many times as long as the fastest of late, waited for others in the API server."""
LATELY = 100
"""So many writes are of late."""
MOST_SLOW = 64
"""Writes that are left to themselves at once; with more of them the API server is slow for everybody."""


class WritePool(Generic[T]):
    """Threads that write items. It is used by one thread.

    Args:
        work: Writes an item; returns whether it was written.
        key: Returns the name of an item.
        team_of: Returns the team of an item.
        wake: Called when a write ends that was left to itself, and when items are left to the next pass.
        is_urgent: Returns whether the next pass is to begin at once, for another team than those given.
        slow_s: Seconds after which a write is left to itself; by default ``SLOW_S``.
    """

    def __init__(
        self,
        work: Callable[[T], bool],
        key: Callable[[T], str],
        *,
        team_of: Callable[[T], str],
        num_threads: int,
        wake: Callable[[], None],
        is_urgent: Callable[[Collection[str]], bool] = lambda _: False,
        slow_s: float | None = None,
    ) -> None:
        self._work = work
        self._key = key
        self._team_of = team_of
        self._num_threads = num_threads
        self._wake = wake
        self._is_urgent = is_urgent
        self._slow_s = SLOW_S if slow_s is None else slow_s
        self._threads = ThreadPoolExecutor(num_threads + MOST_SLOW, thread_name_prefix="writes")
        self._slow: dict[str, tuple[Future[bool], T]] = {}
        self._most_of_team = float(num_threads)
        self._took_s = deque[float](maxlen=LATELY)

    def slow(self) -> Mapping[str, T]:
        """Return the items whose writes have no answer yet, by their names."""
        for key, (write, _) in list(self._slow.items()):
            if write.done():
                del self._slow[key]
                if (error := write.exception()) is not None:
                    log.warning("%s", error)
        return {key: item for key, (_, item) in self._slow.items()}

    def write(self, items: Sequence[T], meanwhile: Callable[[], None]) -> tuple[bool, ...]:
        """Write the items; return for each whether it was written.

        It is False also where there is no answer yet, and where its turn did not come within ``TURN_S``.

        Args:
            meanwhile: Called repeatedly until the writes have ended.
        """
        slow = self.slow()
        results = [False] * len(items)
        queue = self._by_turns(items, slow)
        left = Counter(self._team_of(items[index]) for index in queue)
        num_later = len(queue) - len(left)
        running: dict[Future[bool], tuple[int, float]] = {}
        begun_at = looked_at = time.monotonic()
        errors = []
        while queue or running:
            is_late = time.monotonic() > begun_at + TURN_S
            if queue and (is_late or (len(queue) <= num_later and self._is_urgent(+left))):
                queue.clear()
                self._wake()
            while (
                len(running) < self._num_threads and (index := self._take(queue, items, running.values())) is not None
            ):
                left[self._team_of(items[index])] -= 1
                running[self._threads.submit(self._work, items[index])] = index, time.monotonic()
            ended = wait(running, timeout=MEANWHILE_S, return_when="FIRST_COMPLETED").done
            for write in ended:
                index, begun = running.pop(write)
                self._note(time.monotonic() - begun)
                if (error := write.exception()) is not None:
                    errors.append(error)
                else:
                    results[index] = write.result()
            if time.monotonic() >= looked_at + MEANWHILE_S:
                meanwhile()
                self._leave(running, items)
                looked_at = time.monotonic()
        if errors:
            raise errors[0]
        return tuple(results)

    def _take(self, queue: deque[int], items: Sequence[T], running: Iterable[tuple[int, float]]) -> int | None:
        """Take the first place whose team has fewer writes at once than a team may have; None if there is none."""
        of_team = Counter(self._team_of(items[index]) for index, _ in running)
        for place, index in enumerate(queue):
            if of_team[self._team_of(items[index])] < int(self._most_of_team):
                del queue[place]
                return index
        return None

    def _note(self, took_s: float) -> None:
        """Let a team have fewer writes at once while they wait in the API server, and one more after some that do not.

        Additive increase and multiplicative decrease, as TCP has it (Jacobson, Congestion avoidance and control, 1988).
        """
        self._took_s.append(took_s)
        if took_s > max(LONG_S, LONG_TIMES * min(self._took_s)):
            self._most_of_team = max(1.0, self._most_of_team * 0.75)
        else:
            self._most_of_team = min(float(self._num_threads), self._most_of_team + 1.0 / self._most_of_team)

    def _by_turns(self, items: Sequence[T], slow: Mapping[str, T]) -> deque[int]:
        """Return the places of the items that may be written, one of each team in turn."""
        by_team: dict[str, deque[int]] = {}
        for index, item in enumerate(items):
            if self._key(item) not in slow:
                by_team.setdefault(self._team_of(item), deque()).append(index)
        turns = deque(by_team.values())
        queue = deque[int]()
        while turns:
            indices = turns.popleft()
            queue.append(indices.popleft())
            if indices:
                turns.append(indices)
        return queue

    def _leave(self, running: dict[Future[bool], tuple[int, float]], items: Sequence[T]) -> None:
        """Leave writes to themselves that take long."""
        late = time.monotonic() - self._slow_s
        for write, (index, begun) in list(running.items()):
            if begun < late and len(self._slow) < MOST_SLOW:
                del running[write]
                item = items[index]
                self._slow[self._key(item)] = write, item
                log.warning("the API server has not answered for %g s: %s", self._slow_s, self._key(item))
                write.add_done_callback(lambda _: self._wake())
