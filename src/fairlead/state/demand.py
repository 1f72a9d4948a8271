"""Requests for an endpoint, as the gateway in front of its replicas counts them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from fairlead.frozen import dataclass


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
class TextRequest:
    """A request that a replica of a text server was given. Times are Unix times.

    Attributes:
        sent: When it was.
        prompt: Its tokens.
        output: Those that have come out.
        first: When the first one did; None before, and where the answer came at once.
        last: When the last one did; None before.
    """

    replica: str
    sent: float
    prompt: int
    output: int
    first: float | None = None
    last: float | None = None

    @property
    def is_timed(self) -> bool:
        """Tell whether it says how long tokens took: it has ended, and several came one by one."""
        return self.output > 1 and self.first is not None and self.last is not None and self.first < self.last


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
        gateway: Which gateway has counted, and since when: the same name counts on, another one from nothing.
        pairs: Of a request of each.
        worse: By criterion, pairs in which only the canary's request was bad; none where one is missing.
        better: Those in which only the old one's was.
    """

    trial: str
    gateway: str = ""
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
        canaries: Of the trial that is under way, by each gateway.
        latest_text: Requests that a replica was given of late, of a text server that scales by its tokens' times.
        busiest_text: Those from when there were most of them.
    """

    since: float = 0.0
    in_flight: int = 0
    queued: int = 0
    wake: float | None = None
    last_request: float | None = None
    seconds: tuple[Second, ...] = ()
    intervals: tuple[Interval, ...] = ()
    revisions: tuple[RevisionTraffic, ...] = ()
    canaries: tuple[CanaryTraffic, ...] = ()
    latest_text: tuple[TextRequest, ...] = ()
    busiest_text: tuple[TextRequest, ...] = ()

    def rate(self, now: float, window_s: float = 10.0) -> float:
        """Return requests a second over the last whole seconds of a window."""
        last = int(now)
        counted = sum(each.arrivals for each in self.seconds if last - window_s <= each.at < last)
        return counted / window_s


def merge(demands: Sequence[Demand]) -> Demand:
    """Return what is asked of an endpoint through several gateways, one at least, as if it came through one.

    It counts as counted since the youngest has counted: of the time before, a part is not known.
    """
    if len(demands) == 1:
        return demands[0]
    seconds: dict[int, Second] = {}
    for second in (each for demand in demands for each in demand.seconds):
        there = seconds.get(second.at, Second(at=second.at, arrivals=0, in_flight=0))
        seconds[second.at] = Second(
            at=second.at, arrivals=there.arrivals + second.arrivals, in_flight=there.in_flight + second.in_flight
        )
    intervals: dict[int, Interval] = {}
    for interval in (each for demand in demands for each in demand.intervals):
        so_far = intervals.get(interval.at, Interval(at=interval.at))
        intervals[interval.at] = Interval(
            at=interval.at, arrivals=so_far.arrivals + interval.arrivals, ended=so_far.ended + interval.ended,
            busy_s=so_far.busy_s + interval.busy_s, took_s=so_far.took_s + interval.took_s,
            took_s2=so_far.took_s2 + interval.took_s2,
        )  # fmt: skip
    revisions: dict[str, RevisionTraffic] = {}
    for revision in (each for demand in demands for each in demand.revisions):
        known = revisions.get(revision.name, RevisionTraffic(name=revision.name))
        revisions[revision.name] = RevisionTraffic(
            name=revision.name, requests=known.requests + revision.requests, errors=known.errors + revision.errors,
            latency_s=known.latency_s + revision.latency_s,
        )  # fmt: skip
    return Demand(
        since=max(each.since for each in demands),
        in_flight=sum(each.in_flight for each in demands),
        queued=sum(each.queued for each in demands),
        wake=min((each.wake for each in demands if each.wake is not None), default=None),
        last_request=max((each.last_request for each in demands if each.last_request is not None), default=None),
        seconds=tuple(seconds[at] for at in sorted(seconds)),
        intervals=tuple(intervals[at] for at in sorted(intervals)),
        revisions=tuple(revisions[name] for name in sorted(revisions)),
        canaries=tuple(canary for each in demands for canary in each.canaries),
        latest_text=_all_at_once([each.latest_text for each in demands]),
        busiest_text=_all_at_once([each.busiest_text for each in demands]),
    )


def _all_at_once(told: Sequence[tuple[TextRequest, ...]]) -> tuple[TextRequest, ...]:
    """Return the requests of the time of which all gateways tell that tell of any, for a replica has those of all."""
    told = [each for each in told if each]
    begin = max((min(request.sent for request in each) for each in told), default=0.0)
    end = min((max(request.sent for request in each) for each in told), default=0.0)
    there = (request for each in told for request in each if begin <= request.sent <= end)
    return tuple(sorted(there, key=lambda request: request.sent))


def read_demand(document: Mapping[str, Any], gateway: str, names: Iterable[str]) -> dict[str, Demand]:
    """Read what a gateway tells in its demand.json, by the names that it has for endpoints.

    Raises:
        KeyError, TypeError, ValueError: It is no such document.
    """
    since = float(document.get("since") or 0.0)
    services = document["services"]
    # One that nobody has asked for since is not in it.
    return {name: _demand(services.get(name) or {}, since, f"{gateway}@{since}") for name in names}


def _demand(given: Mapping[str, Any], since: float, gateway: str) -> Demand:
    canary, text = given.get("canary"), given.get("text") or {}
    return Demand(
        since=since,
        in_flight=int(given.get("in_flight") or 0),
        queued=int(given.get("queued") or 0),
        wake=given.get("wake"),
        last_request=given.get("last_request"),
        seconds=tuple(
            Second(at=int(at), arrivals=int(arrivals), in_flight=int(most))
            for at, arrivals, most in given.get("seconds") or ()
        ),
        intervals=tuple(
            Interval(
                at=int(at), arrivals=int(arrivals), ended=int(ended), busy_s=busy_s, took_s=took_s, took_s2=took_s2
            )
            for at, arrivals, ended, busy_s, took_s, took_s2 in given.get("intervals") or ()
        ),
        revisions=tuple(
            RevisionTraffic(
                name=name,
                requests=int(each.get("requests") or 0),
                errors=int(each.get("errors") or 0),
                latency_s=float((each.get("latency_ms") or {}).get("sum") or 0.0) / 1000,
            )
            for name, each in (given.get("revisions") or {}).items()
        ),
        canaries=() if canary is None else (_canary(canary, gateway),),
        latest_text=_text_requests(text.get("latest") or ()),
        busiest_text=_text_requests(text.get("busiest") or ()),
    )


def _text_requests(given: Iterable[Any]) -> tuple[TextRequest, ...]:
    return tuple(
        TextRequest(replica=replica, sent=sent, prompt=int(prompt), output=int(output), first=first, last=last)
        for replica, sent, prompt, output, first, last in given
    )


def _canary(given: Mapping[str, Any], gateway: str) -> CanaryTraffic:
    return CanaryTraffic(
        trial=given["trial"],
        gateway=gateway,
        pairs=int(given["pairs"]),
        worse=dict(given["worse"]),
        better=dict(given["better"]),
    )
