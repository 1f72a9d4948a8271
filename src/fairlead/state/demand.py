"""Requests for an endpoint, as the gateway in front of its replicas counts them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """One second of the clock.

    Attributes:
        at: Unix time at which it began.
        arrivals: Requests that came in it, those that were refused too.
        in_flight: The most that were in flight or waiting at once.
    """

    at: int
    arrivals: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Ten seconds of the clock.

    Attributes:
        at: Unix time at which it began.
        arrivals: Requests that came in it, those that were refused too.
        ended: Requests that a replica had and that ended in it.
        busy_s: Seconds for which places of replicas were taken until these ended.
        took_s: Seconds that these took together.
        took_s2: The sum of the squares of these.
    """

    at: int
    arrivals: int = 0
    ended: int = 0
    busy_s: float = 0.0
    took_s: float = 0.0
    took_s2: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionTraffic:
    """Outcomes of the requests that one revision got, since the gateway has counted.

    Attributes:
        errors: Of ``requests``, those that were answered with a status of 500 or more, or not at all.
        latency_s: Of all of them together, in seconds.
    """

    name: str
    requests: int = 0
    errors: int = 0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTraffic:
    """Outcomes of the requests of a canary beside those of the old revision, since the gateway has counted.

    Attributes:
        trial: Which trial it is.
        pairs: Of a request of each.
        worse: By criterion, pairs in which only the canary's request was bad; none where one is missing.
        better: Those in which only the old one's was.
    """

    trial: str
    pairs: int = 0
    worse: Mapping[str, int] = field(default_factory=dict)
    better: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests for one endpoint.

    Attributes:
        since: When it began to be counted.
        in_flight: Requests that are not answered yet.
        queued: Those of them that wait for a replica.
        wake: Since when the first of them waits for there to be any replica; None while none does.
        last_request: When the newest request came; None before the first.
        seconds: The last ones, oldest first; those without a request may be missing.
        intervals: Those of the last quarter of an hour, oldest first; those without a request may be missing.
        revisions: By revision.
        canary: Of the trial that is under way; None for none.
    """

    since: float = 0.0
    in_flight: int = 0
    queued: int = 0
    wake: float | None = None
    last_request: float | None = None
    seconds: tuple[Second, ...] = ()
    intervals: tuple[Interval, ...] = ()
    revisions: tuple[RevisionTraffic, ...] = ()
    canary: CanaryTraffic | None = None

    def rate(self, now: float, window_s: float = 10.0) -> float:
        """Return requests a second over the last whole seconds of a window."""
        last = int(now)
        counted = sum(each.arrivals for each in self.seconds if last - window_s <= each.at < last)
        return counted / window_s
