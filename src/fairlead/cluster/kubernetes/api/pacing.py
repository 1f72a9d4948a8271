"""Paces requests with a token bucket, and adds jitter to waits."""

import random
import threading
import time


class RateLimiter:
    """Allows ``burst`` requests at once and ``per_second`` in the long run. Thread-safe."""

    def __init__(self, *, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._lock = threading.Lock()
        self._tokens = float(burst)
        self._at = time.monotonic()

    def wait(self) -> None:
        """Wait until the next request may be sent. Waiting callers proceed in order of arrival."""
        with self._lock:
            now = time.monotonic()
            self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._per_second) - 1.0
            self._at = now
            wait_s = -self._tokens / self._per_second
        if wait_s > 0:
            time.sleep(wait_s)


# A separate generator, so that the random numbers of the calling program stay those of its seed.
_draws = random.Random()


def jittered(seconds: float) -> float:
    """Return a random wait of half to all of the seconds, so that many clients do not retry together."""
    return _draws.uniform(0.5, 1.0) * seconds


def between(low: int, high: int) -> int:
    """Return a random whole number from low to high, both included."""
    return _draws.randint(low, high)
