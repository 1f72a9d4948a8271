"""Requests for an endpoint, as counted by the gateway in front of its replicas."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """One second of the clock.

    Attributes:
        at: Unix time of its beginning.
        arrivals: Requests that arrived in it, including refused ones.
        in_flight: The maximum in flight or queued at once.
    """

    at: int
    arrivals: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Ten seconds of the clock.

    Attributes:
        at: Unix time of its beginning.
        arrivals: Requests that arrived in it, including refused ones.
        ended: Requests that were forwarded to a replica and ended in it.
        busy_s: Seconds for which these occupied slots of replicas.
        took_s: The sum of the durations of these, in seconds.
        took_s2: The sum of the squares of these durations.
    """

    at: int
    arrivals: int = 0
    ended: int = 0
    busy_s: float = 0.0
    took_s: float = 0.0
    took_s2: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """A request that was forwarded to a replica of a text server. Times are Unix times.

    Attributes:
        sent: When it was forwarded.
        prompt: The number of prompt tokens.
        output: The number of output tokens so far.
        first: When the first output token arrived; None before, and if the answer came at once.
        last: When the last one arrived; None before.
    """

    replica: str
    sent: float
    prompt: int
    output: int
    first: float | None = None
    last: float | None = None

    @property
    def is_timed(self) -> bool:
        """Return whether its token times are known: it has ended, and several tokens came one by one."""
        return self.output > 1 and self.first is not None and self.last is not None and self.first < self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionTraffic:
    """Outcomes of the requests to one revision, since the gateway started counting.

    Attributes:
        errors: The part of ``requests`` that was answered with a status of 500 or more, or not at all.
        latency_s: The sum over all of them, in seconds.
    """

    name: str
    requests: int = 0
    errors: int = 0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTraffic:
    """Outcomes of paired requests to a canary and the old revision, since the gateway started counting.

    Attributes:
        trial: The name of the trial.
        gateway: The gateway and the time since which it counts: under the same name counts continue, under another they
            restart.
        pairs: The number of pairs of one request to each.
        worse: By criterion, pairs in which only the canary's request was bad; zero if missing.
        better: By criterion, pairs in which only the old revision's request was bad.
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
        since: When counting started.
        in_flight: Requests without an answer yet.
        queued: The part of ``in_flight`` that waits for a replica.
        wake: Since when the first request waits for any replica to exist; None if none does.
        last_request: When the newest request arrived; None before the first.
        seconds: The last seconds, oldest first; those without a request may be missing.
        intervals: Those of the last 15 minutes, oldest first; those without a request may be missing.
        revisions: One entry per revision.
        canaries: Results of the current trial, one entry per gateway.
        latest_text: Recent requests to replicas of a text server that scales by token times.
        busiest_text: Such requests from the busiest time.
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
        """Return requests per second over the last whole seconds of a window."""
        last = int(now)
        counted = sum(second.arrivals for second in self.seconds if last - window_s <= second.at < last)
        return counted / window_s


def merge(demands: Sequence[Demand]) -> Demand:
    """Merge the demand for an endpoint through one or more gateways, as if it came through one.

    ``since`` is that of the youngest gateway: the time before is not fully covered.
    """
    if len(demands) == 1:
        return demands[0]
    seconds: dict[int, Second] = {}
    for second in (second for demand in demands for second in demand.seconds):
        before = seconds.get(second.at, Second(at=second.at, arrivals=0, in_flight=0))
        seconds[second.at] = Second(
            at=second.at, arrivals=before.arrivals + second.arrivals, in_flight=before.in_flight + second.in_flight
        )
    intervals: dict[int, Interval] = {}
    for interval in (interval for demand in demands for interval in demand.intervals):
        so_far = intervals.get(interval.at, Interval(at=interval.at))
        intervals[interval.at] = Interval(
            at=interval.at, arrivals=so_far.arrivals + interval.arrivals, ended=so_far.ended + interval.ended,
            busy_s=so_far.busy_s + interval.busy_s, took_s=so_far.took_s + interval.took_s,
            took_s2=so_far.took_s2 + interval.took_s2,
        )  # fmt: skip
    revisions: dict[str, RevisionTraffic] = {}
    for revision in (revision for demand in demands for revision in demand.revisions):
        known = revisions.get(revision.name, RevisionTraffic(name=revision.name))
        revisions[revision.name] = RevisionTraffic(
            name=revision.name, requests=known.requests + revision.requests, errors=known.errors + revision.errors,
            latency_s=known.latency_s + revision.latency_s,
        )  # fmt: skip
    return Demand(
        since=max(demand.since for demand in demands),
        in_flight=sum(demand.in_flight for demand in demands),
        queued=sum(demand.queued for demand in demands),
        wake=min((demand.wake for demand in demands if demand.wake is not None), default=None),
        last_request=max((demand.last_request for demand in demands if demand.last_request is not None), default=None),
        seconds=tuple(seconds[at] for at in sorted(seconds)),
        intervals=tuple(intervals[at] for at in sorted(intervals)),
        revisions=tuple(revisions[name] for name in sorted(revisions)),
        canaries=tuple(canary for demand in demands for canary in demand.canaries),
        latest_text=_all_at_once([demand.latest_text for demand in demands]),
        busiest_text=_all_at_once([demand.busiest_text for demand in demands]),
    )


def _all_at_once(requests: Sequence[tuple[TextRequest, ...]]) -> tuple[TextRequest, ...]:
    """Return the requests of the time that all reporting gateways cover: a replica has requests from all of them."""
    requests = [of_gateway for of_gateway in requests if of_gateway]
    begin = max((min(request.sent for request in of_gateway) for of_gateway in requests), default=0.0)
    end = min((max(request.sent for request in of_gateway) for of_gateway in requests), default=0.0)
    overlapping = (request for of_gateway in requests for request in of_gateway if begin <= request.sent <= end)
    return tuple(sorted(overlapping, key=lambda request: request.sent))


def read_demand(document: Mapping[str, Any], gateway: str, names: Iterable[str]) -> dict[str, Demand]:
    """Read the demand.json of a gateway, by its names of endpoints.

    Raises:
        ValueError: The document has another form.
    """
    try:
        since = float(document.get("since") or 0.0)
        services = document["services"]
        # Endpoints without a request since then are missing in it.
        return {name: _demand(services.get(name) or {}, since, f"{gateway}@{since}") for name in names}
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"it has another form: {type(error).__name__}: {error}") from error


def _demand(content: Mapping[str, Any], since: float, gateway: str) -> Demand:
    canary, text = content.get("canary"), content.get("text") or {}
    return Demand(
        since=since,
        in_flight=int(content.get("in_flight") or 0),
        queued=int(content.get("queued") or 0),
        wake=content.get("wake"),
        last_request=content.get("last_request"),
        seconds=tuple(
            Second(at=int(at), arrivals=int(arrivals), in_flight=int(most))
            for at, arrivals, most in content.get("seconds") or ()
        ),
        intervals=tuple(
            Interval(
                at=int(at), arrivals=int(arrivals), ended=int(ended), busy_s=busy_s, took_s=took_s, took_s2=took_s2
            )
            for at, arrivals, ended, busy_s, took_s, took_s2 in content.get("intervals") or ()
        ),
        revisions=tuple(
            RevisionTraffic(
                name=name,
                requests=int(counts.get("requests") or 0),
                errors=int(counts.get("errors") or 0),
                latency_s=float((counts.get("latency_ms") or {}).get("sum") or 0.0) / 1000,
            )
            for name, counts in (content.get("revisions") or {}).items()
        ),
        canaries=() if canary is None else (_canary(canary, gateway),),
        latest_text=_text_requests(text.get("latest") or ()),
        busiest_text=_text_requests(text.get("busiest") or ()),
    )


def _text_requests(rows: Iterable[Any]) -> tuple[TextRequest, ...]:
    return tuple(
        TextRequest(replica=replica, sent=sent, prompt=int(prompt), output=int(output), first=first, last=last)
        for replica, sent, prompt, output, first, last in rows
    )


def _canary(content: Mapping[str, Any], gateway: str) -> CanaryTraffic:
    return CanaryTraffic(
        trial=content["trial"],
        gateway=gateway,
        pairs=int(content["pairs"]),
        worse=dict(content["worse"]),
        better=dict(content["better"]),
    )
