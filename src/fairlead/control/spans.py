"""Builds OpenTelemetry spans of a run: queued, starting, first step, running. Pure.

Identifiers are derived from the run and the span, so that a span sent twice is the same span.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from fairlead.cluster.port import EventRecord
from fairlead.frozen import dataclass
from fairlead.state.snapshot import Phase, Pod, Workload

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


def spans_of(
    run: Workload, events: Sequence[EventRecord], pods: Iterable[Pod], first_steps: Mapping[int, float]
) -> tuple[Span, ...]:
    """Return the spans of a finished run, its own first.

    Args:
        events: All of its events, oldest first.
        pods: All of its known pods.
        first_steps: Time at which each attempt reported its first step.
    """
    end = run.status.finished_at or run.status.since
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
    found = [whole, *_waits(events, whole.end)]
    of_start: dict[int, list[Pod]] = {}
    for pod in pods:
        of_start.setdefault(pod.attempt, []).append(pod)
    for attempt, gang in sorted(of_start.items()):
        found += _of_start(attempt, gang, first_steps.get(attempt), whole.end)
    return tuple(found)


def _waits(events: Sequence[EventRecord], end: float) -> Iterable[Span]:
    since: float | None = None
    why, number = "", 0
    for event in events:
        if event.type in WAITING and since is None:
            since, why = event.at, event.reason.message
        elif event.type in WAITING:
            why = event.reason.message
        elif since is not None and event.type in {each.value for each in Phase}:
            yield Span(
                key=f"queued-{number}", name="queued", start=since, end=event.at, attributes={"fairlead.reason": why}
            )
            since, number = None, number + 1
    if since is not None and end > since:
        yield Span(key=f"queued-{number}", name="queued", start=since, end=end, attributes={"fairlead.reason": why})


def _of_start(attempt: int, gang: Sequence[Pod], first_step: float | None, end: float) -> Iterable[Span]:
    placed = min(pod.created_at for pod in gang)
    about: dict[str, str | int] = {
        "fairlead.attempt": attempt,
        "fairlead.nodes": ",".join(sorted({pod.node for pod in gang})),
        "fairlead.pods": len(gang),
    }
    over = max((each.at for pod in gang for each in pod.exits), default=end)
    bad = [each for pod in gang for each in pod.exits if not each.ok]
    begun = [pod.started_at for pod in gang if pod.started_at is not None]
    started = max(begun) if len(begun) == len(gang) else None
    yield Span(key=f"starting-{attempt}", name="starting", start=placed, end=started or over, attributes=about)
    if started is None:
        return
    if first_step is not None and first_step >= started:
        yield Span(
            key=f"first-step-{attempt}", name="first step", start=started, end=first_step, parent=f"running-{attempt}",
            attributes={"fairlead.attempt": attempt},
        )  # fmt: skip
    problem = None
    if bad:
        first = min(bad, key=lambda each: each.at)
        ended = f"exit code {first.exit_code}" if first.signal is None else f"signal {first.signal}"
        problem = f"rank {first.rank} ended with {ended}"
    yield Span(
        key=f"running-{attempt}", name="running", start=started, end=max(over, started), attributes=about,
        problem=problem,
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
                        "spans": [_span(run.uid, trace, each) for each in spans],
                    }
                ],
            }
        ]
    }


def _span(uid: str, trace: str, span: Span) -> dict[str, Any]:
    told = {
        "traceId": trace,
        "spanId": _span_id(uid, span.key),
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": str(round(span.start * 1e9)),
        "endTimeUnixNano": str(round(max(span.end, span.start) * 1e9)),
        "attributes": _attributes(span.attributes),
        "status": {"code": OK} if span.problem is None else {"code": ERROR, "message": span.problem},
    }
    return told if span.parent is None else {**told, "parentSpanId": _span_id(uid, span.parent)}


def _span_id(uid: str, key: str) -> str:
    return hashlib.sha256(f"{uid}/{key}".encode()).hexdigest()[:16]


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    # 64-bit integers are strings in the JSON encoding of protocol buffers.
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]
