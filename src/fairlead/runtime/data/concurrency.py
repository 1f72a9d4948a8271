"""Number of requests that are on their way to a store at a time, from how fast it answers."""

THREADS = 128
"""Most requests at a time."""
LEAST_THREADS = 32
WINDOW_S = 0.2


class RequestLimit:
    """Twice as many requests as the fastest one so far takes of the requests that are answered a second (Little's law).

    Fewer would leave a distant store idle, and more would only wait for each other in a near one. Not for several
    threads at once.
    """

    def __init__(self, now: float, most: int = THREADS) -> None:
        self._most = most
        self.value = min(LEAST_THREADS, most)
        self._fastest_s = float("inf")
        self._num_done = 0
        self._since = now

    def count(self, now: float, begun: float) -> bool:
        """Count a request that was answered; return whether the limit was adapted."""
        self._num_done += 1
        self._fastest_s = min(self._fastest_s, now - begun)
        elapsed = now - self._since
        if elapsed <= WINDOW_S:
            return False
        at_a_time = int(2 * self._fastest_s * self._num_done / elapsed) + 1
        self.value = max(min(LEAST_THREADS, self._most), min(self._most, at_a_time))
        self._num_done, self._since = 0, now
        return True
