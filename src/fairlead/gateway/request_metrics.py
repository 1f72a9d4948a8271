"""Counts requests by second, revision and status, and their latencies."""

from bisect import bisect_left
from collections import Counter, deque
from typing import Any

BOUNDS_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 3e4, 6e4, 3e5)
"""Upper bounds of the latency buckets; longer durations are in the total count only."""
SECONDS_KEPT = 120
INTERVAL_S, INTERVALS_KEPT = 10, 91
"""History for scaling by latency: a quarter of an hour, and the current interval."""


class LatencyHistogram:
    """A histogram of durations in milliseconds."""

    __slots__ = ("count", "counts", "sum_ms")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self.counts = [0] * (len(BOUNDS_MS) + 1)

    def add(self, duration_ms: float) -> None:
        self.count += 1
        self.sum_ms += duration_ms
        self.counts[bisect_left(BOUNDS_MS, duration_ms)] += 1

    def cumulative(self) -> list[tuple[float, int]]:
        """Return the cumulative count for each bound, as Prometheus expects."""
        buckets, so_far = [], 0
        for bound, count in zip(BOUNDS_MS, self.counts, strict=False):
            so_far += count
            buckets.append((bound, so_far))
        return buckets


class RevisionMetrics:
    """Requests that a revision answered or failed.

    Attributes:
        errors: Requests answered with 500 or more, or broken off by the replica.
        latency: From the choice of a replica to the last byte of the response.
    """

    __slots__ = ("errors", "latency", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.latency = LatencyHistogram()

    def add(self, *, failed: bool, duration_ms: float) -> None:
        self.requests += 1
        self.errors += failed
        self.latency.add(duration_ms)


class ServiceMetrics:
    """Counts of one service since this gateway began. Times are seconds since the epoch.

    Attributes:
        in_flight: Requests that have arrived and not ended, waiting ones included.
        proxied: Requests in flight that a proxy forwards by itself, as of the last poll.
        wake: Time of the first request that found no replica; None once there is one.
        intervals: By ten seconds: start, arrivals, responses, seconds for which requests occupied slots of replicas,
            the sum of response times in seconds and the sum of their squares.
        cold_starts: Waits for a first replica, from the first request that found none.
        codes: Responses by revision (empty: the gateway's own) and status.
    """

    __slots__ = (
        "codes", "cold_starts", "in_flight", "intervals", "last_request", "proxied", "queue", "retries", "revisions",
        "seconds", "shadows", "wake",
    )  # fmt: skip

    def __init__(self) -> None:
        self.in_flight = 0
        self.proxied = 0
        self.wake: float | None = None
        self.last_request: float | None = None
        self.seconds: deque[list[int]] = deque(maxlen=SECONDS_KEPT)
        self.intervals: deque[list[float]] = deque(maxlen=INTERVALS_KEPT)
        self.revisions: dict[str, RevisionMetrics] = {}
        self.codes: Counter[tuple[str, int]] = Counter()
        self.queue = LatencyHistogram()
        self.cold_starts = LatencyHistogram()
        self.retries = 0
        self.shadows: Counter[str] = Counter()

    @property
    def present(self) -> int:
        """Return the requests in flight, by the gateway and by the proxy."""
        return self.in_flight + self.proxied

    def arrive(self, epoch: float) -> None:
        self.in_flight += 1
        self._arrive(epoch, 1)

    def record_proxied(self, epoch: float, *, arrivals: int, in_flight: int) -> None:
        """Record the proxy's arrivals since the last poll, and its requests in flight."""
        self.proxied = in_flight
        if arrivals:
            self._arrive(epoch, arrivals)

    def look(self, epoch: float, arrivals: int = 0) -> None:
        """Count arrivals in the current second."""
        second = int(epoch)
        if not self.seconds or self.seconds[-1][0] < second:
            self.seconds.append([second, arrivals, self.present])
        else:
            now = self.seconds[-1]
            now[1] += arrivals
            now[2] = max(now[2], self.present)

    def end(self, epoch: float, *, busy_s: float, took_s: float) -> None:
        """Count a completed request, with its duration at the replica and the slot time attributed to it."""
        now = self._interval(epoch)
        now[2] += 1
        now[3] += busy_s
        now[4] += took_s
        now[5] += took_s * took_s

    def _arrive(self, epoch: float, arrivals: int) -> None:
        self.last_request = epoch
        self.look(epoch, arrivals=arrivals)
        self._interval(epoch)[1] += arrivals

    def _interval(self, epoch: float) -> list[float]:
        at = int(epoch) // INTERVAL_S * INTERVAL_S
        if not self.intervals or self.intervals[-1][0] < at:
            self.intervals.append([at, 0, 0, 0.0, 0.0, 0.0])
        return self.intervals[-1]

    def revision(self, name: str) -> RevisionMetrics:
        metrics = self.revisions.get(name)
        if metrics is None:
            metrics = self.revisions[name] = RevisionMetrics()
        return metrics

    def demand(self, *, queued: int, epoch: float) -> dict[str, Any]:
        """Return the counts in the format of demand.json."""
        oldest = int(epoch) - SECONDS_KEPT
        while self.seconds and self.seconds[0][0] <= oldest:
            self.seconds.popleft()
        while self.intervals and self.intervals[0][0] <= epoch - INTERVAL_S * INTERVALS_KEPT:
            self.intervals.popleft()
        return {
            "in_flight": self.present,
            "queued": queued,
            "wake": self.wake,
            "last_request": self.last_request,
            "seconds": list(self.seconds),
            "intervals": list(self.intervals),
            "revisions": {
                name: {
                    "requests": metrics.requests,
                    "errors": metrics.errors,
                    "latency_ms": {
                        "count": metrics.latency.count,
                        "sum": metrics.latency.sum_ms,
                        "buckets": metrics.latency.cumulative(),
                    },
                }
                for name, metrics in self.revisions.items()
            },
        }
