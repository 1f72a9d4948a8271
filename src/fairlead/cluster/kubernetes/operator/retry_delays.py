"""The delays after which failed work is tried again: each doubles the one before, up to a maximum."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from fairlead.frozen import dataclass

# What each pass requests costs little while it cannot be done, and is late by no longer than it has failed for.
AGAIN_S = 0.2
MOST_AGAIN_S = 5.0
FORGOTTEN_S = 60.0

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delay:
    """The failures of one piece of work; ``ends_at`` is on the clock of its ``RetryDelays``."""

    num_failures: int
    delay_s: float
    ends_at: float


class RetryDelays(Generic[Key]):
    """The delays of pieces of work by their keys. Not thread-safe.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._delays: OrderedDict[Key, _Delay] = OrderedDict()  # the oldest first

    def fail(self, key: Key) -> int:
        """Record a failure; return how many there were in a row."""
        now, before = self._clock(), self._delays.pop(key, _Delay(num_failures=0, delay_s=AGAIN_S / 2, ends_at=0.0))
        delay_s = min(2 * before.delay_s, MOST_AGAIN_S)
        self._delays[key] = _Delay(num_failures=before.num_failures + 1, delay_s=delay_s, ends_at=now + delay_s)
        # Work that is no longer requested is forgotten.
        while next(iter(self._delays.values())).ends_at < now - FORGOTTEN_S:
            self._delays.popitem(last=False)
        return before.num_failures + 1

    def succeed(self, key: Key) -> None:
        """Forget the failures of a piece of work."""
        self._delays.pop(key, None)

    def has_failed(self, key: Key) -> bool:
        """Return whether the latest try failed."""
        return key in self._delays

    def is_delayed(self, key: Key) -> bool:
        """Return whether a piece of work is not to be tried yet."""
        return key in self._delays and self._clock() < self._delays[key].ends_at

    def failed(self) -> list[Key]:
        """Return the keys of the work whose latest try failed, unless it is no longer requested."""
        now = self._clock()
        return [key for key, delay in self._delays.items() if now <= delay.ends_at + FORGOTTEN_S]

    def delayed(self) -> list[Key]:
        """Return the keys of the work that is not to be tried yet."""
        now = self._clock()
        return [key for key, delay in self._delays.items() if now < delay.ends_at]
