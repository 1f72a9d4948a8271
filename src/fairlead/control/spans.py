"""Builds OpenTelemetry spans of a run: queued, starting, pulling, first step, running. Pure.

Identifiers are derived from the run and the span, so that a span sent twice is the same span.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from fairlead.cluster.port import EventRecord
from fairlead.frozen import dataclass
from fairlead.state.attempts import FinishedAttempt, ImagePull
from fairlead.state.snapshot import Phase, Workload

# Types of the events that begin a wait for placement; those of phases have the phase's name.
WAITING = frozenset({"Submitted", Phase.PENDING.value, Phase.RESTARTING.value})
OK, ERROR = 1, 2
INTERNAL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span of a run; times are Unix seconds.

    Attributes:
        parent: Key of the enclosing span; None for the run itself.
        problem: Reason of the failure; None without one.
    """

    key: str
    name: str
    start: float
    end: float
    parent: str | None = "run"
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    problem: str | None = None


def spans_of(run: Workload, events: Sequence[EventRecord], attempts: Iterable[FinishedAttempt]) -> tuple[Span, ...]:
    """Return the spans of a finished run, its own first.

    Args:
        events: Its events, oldest first: all of them, or only the newest. In the latter case it shows no wait that
            began before them.
        attempts: Its known attempts, oldest first.
    """
    end = end_of(run)
    failed = run.status.phase is Phase.FAILED
    about = {"fairlead.run": run.spec.name, "fairlead.team": run.spec.team, "fairlead.uid": run.uid}
    whole = Span(
        key="run",
        name=f"run {run.spec.name}",
        start=run.created_at,
        end=max(end, run.created_at),
        parent=None,
        attributes={**about, **{f"fairlead.label.{name}": value for name, value in run.spec.labels.items()}},
        problem=run.status.reason.message if failed else None,
    )
    return whole, *_waits(events, whole.end), *(span for attempt in attempts for span in _of_attempt(attempt))


def end_of(run: Workload) -> float:
    """Return when a run came to its final phase; that of a run that was resumed is another."""
    return run.status.finished_at or run.status.since


def _waits(events: Sequence[EventRecord], end: float) -> Iterator[Span]:
    since: float | None = None
    why = ""
    for event in events:
        if event.type in WAITING and since is None:
            since, why = event.at, event.reason.message
        elif event.type in WAITING:
            why = event.reason.message
        elif since is not None and event.type in {phase.value for phase in Phase}:
            yield _queued(since, event.at, why)
            since = None
    if since is not None and end > since:
        yield _queued(since, end, why)


def _queued(since: float, until: float, why: str) -> Span:
    # Its beginning identifies it, as the number of earlier waits that are still known may change.
    key = f"queued-{since:.6f}"
    return Span(key=key, name="queued", start=since, end=until, attributes={"fairlead.reason": why})


def _of_attempt(attempt: FinishedAttempt) -> Iterator[Span]:
    number, started = attempt.attempt, attempt.started_at
    about: dict[str, str | int] = {
        "fairlead.attempt": number,
        "fairlead.nodes": attempt.nodes,
        "fairlead.pods": attempt.num_pods,
    }
    yield Span(
        key=f"starting-{number}", name="starting", start=attempt.placed_at,
        end=attempt.ended_at if started is None else started, attributes=about,
        problem=attempt.problem if started is None else None,
    )  # fmt: skip
    if attempt.pull is not None:
        yield _of_pull(number, attempt.pull, attempt.placed_at)
    if started is None:
        return
    if attempt.first_step_at is not None:
        yield Span(
            key=f"first-step-{number}", name="first step", start=started, end=attempt.first_step_at,
            parent=f"running-{number}", attributes={"fairlead.attempt": number},
        )  # fmt: skip
    yield Span(
        key=f"running-{number}", name="running", start=started, end=max(attempt.ended_at, started), attributes=about,
        problem=attempt.problem,
    )  # fmt: skip


def _of_pull(number: int, pull: ImagePull, placed_at: float) -> Span:
    about: dict[str, str | int] = {
        "fairlead.attempt": number,
        "fairlead.image": pull.image,
        "fairlead.nodes": pull.node,
    }
    if pull.size_bytes is not None:
        about["fairlead.image_bytes"] = pull.size_bytes
    return Span(
        key=f"pulling-{number}", name="pulling", start=max(pull.since, placed_at), end=max(pull.until, placed_at),
        parent=f"starting-{number}", attributes=about,
    )  # fmt: skip


def otlp(run: Workload, spans: Iterable[Span], *, service: str, version: str) -> dict[str, Any]:
    """Return spans as the body of an OTLP/HTTP request in JSON (opentelemetry-proto 1.x, ExportTraceServiceRequest)."""
    trace = hashlib.sha256(run.uid.encode()).hexdigest()[:32]
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes({"service.name": service})},
                "scopeSpans": [
                    {
                        "scope": {"name": "fairlead", "version": version},
                        "spans": [_span(run.uid, trace, span) for span in spans],
                    }
                ],
            }
        ]
    }


def _span(uid: str, trace: str, span: Span) -> dict[str, Any]:
    fields = {
        "traceId": trace,
        "spanId": _span_id(uid, span.key),
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": str(round(span.start * 1e9)),
        "endTimeUnixNano": str(round(max(span.end, span.start) * 1e9)),
        "attributes": _attributes(span.attributes),
        "status": {"code": OK} if span.problem is None else {"code": ERROR, "message": span.problem},
    }
    return fields if span.parent is None else {**fields, "parentSpanId": _span_id(uid, span.parent)}


def _span_id(uid: str, key: str) -> str:
    return hashlib.sha256(f"{uid}/{key}".encode()).hexdigest()[:16]


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    # 64-bit integers are strings in the JSON encoding of protocol buffers.
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]
