"""Paces requests: a bucket of tokens that fills at a steady rate; and waits that differ."""

import random
import threading
import time


class Pace:
    """Lets ``burst`` through at once and ``per_second`` in the long run. Safe to use from several threads."""

    def __init__(self, *, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._lock = threading.Lock()
        self._tokens = float(burst)
        self._at = time.monotonic()

    def wait(self) -> None:
        """Return when one more may go. Those that wait go in the order in which they came."""
        with self._lock:
            now = time.monotonic()
            self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._per_second) - 1.0
            self._at = now
            wait_s = -self._tokens / self._per_second
        if wait_s > 0:
            time.sleep(wait_s)


# Numbers of our own: a program that talks to a cluster keeps those that its seed promises.
_draws = random.Random()


def jittered(seconds: float) -> float:
    """From half of a wait to all of it, so that many who wait do not come back together."""
    return _draws.uniform(0.5, 1.0) * seconds


def between(low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return _draws.randint(low, high)
