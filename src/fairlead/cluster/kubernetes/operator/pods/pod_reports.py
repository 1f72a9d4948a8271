"""Reads what a pod reported: the last line of its reporter's log, and its ranks' termination message. Pure.

Invalid or foreign content is ignored: a program may write anything there.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairlead.cluster.local.pod_files import progress_of
from fairlead.frozen import dataclass
from fairlead.runtime.reporting import FORM
from fairlead.specs.overlay import RANKS
from fairlead.state.plan import Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Progress, RankExit, Usage, Whereabouts

SIGKILL = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEvent:
    """An event of one rank; ``rank`` and ``place`` identify it, and ``place`` rises."""

    rank: int
    place: int
    at: float
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The newest report of a pod's ranks.

    Attributes:
        started_at: When the ranks were started; None before.
        active_at: The last sign of progress, in Unix seconds.
        progress: The report of the lowest rank; None if it reports nothing.
        events: The latest ones, oldest first.
        gpus: UUIDs of the container's devices; empty if it cannot tell.
        ending: The end of its ranks, whose container may go on; None before.
    """

    started_at: float | None = None
    active_at: float | None = None
    progress: Progress | None = None
    events: tuple[SeenEvent, ...] = ()
    gpus: tuple[str, ...] = ()
    ending: "Ending | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a pod, rank by rank.

    Attributes:
        exits: How its ranks ended; for a large pod only the first that failed.
        message: Why no rank was started; None if they were.
        usage: The peak usage of its processes; None if unknown.
    """

    exits: tuple[RankExit, ...] = ()
    message: str | None = None
    setup_failed: bool = False
    usage: Usage | None = None


def read_last_words(pod: Mapping[str, Any]) -> Progress | None:
    """Read the last report of a pod's ranks, from the pod as ``read_ending`` takes it; None if there is none."""
    ended = _ended(pod)
    content = None if ended is None else _object(ended.get("message") or "")
    return None if content is None else _progress(content.get("progress"))


def read_report(line: str) -> Report | None:
    """Return the report in a line of the reporter's log; None if it holds none."""
    content = _object(line)
    if content is None:
        return None
    end = content.get("ending")
    return Report(
        started_at=_number(content.get("started_at")),
        active_at=_number(content.get("active_at")),
        progress=_progress(content.get("progress")),
        events=tuple(seen for each in content.get("events") or () if (seen := _event(each)) is not None),
        gpus=tuple(map(str, gpus)) if isinstance(gpus := content.get("gpus"), list) else (),
        ending=_ending(end, out_of_memory=False) if isinstance(end, dict) and end.get("form") == FORM else None,
    )


def read_ending(pod: Mapping[str, Any], *, ranks: range) -> Ending | None:
    """Read how a pod ended, from the API server's pod; None while its ranks' container has not ended.

    Args:
        ranks: The pod's ranks, for when the pod itself could not report how they ended.
    """
    ended = _ended(pod)
    if ended is None:
        return None
    content = _object(ended.get("message") or "")
    if content is not None:
        is_oom = ended.get("reason") == "OOMKilled"
        return replace(_ending(content, out_of_memory=is_oom), usage=_usage(content.get("usage"), len(ranks)))
    at, code = _moment(ended.get("finishedAt")), int(ended.get("exitCode") or 0)
    is_oom = ended.get("reason") == "OOMKilled"
    number = SIGKILL if is_oom else int(ended.get("signal") or 0) or (code - 128 if code > 128 else 0)
    exits = tuple(
        RankExit(
            rank=rank,
            exit_code=None if number else code,
            signal=number or None,
            at=at,
            out_of_memory=is_oom,
        )
        for rank in ranks
    )
    return Ending(exits=exits)


def _ended(pod: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the ranks' container ended; None while it has not."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    ends = ((each.get("state") or {}).get("terminated") for each in statuses if each.get("name") == RANKS)
    return next((end for end in ends if end), None)


def _ending(content: Mapping[str, Any], *, out_of_memory: bool) -> Ending:
    tail_of, tail = content.get("tail_of"), tuple(str(line) for line in content.get("tail") or ())
    hang = {int(rank): Whereabouts(place=place, waits_in=call, step=step) for rank, place, call, step in _hang(content)}
    exits = tuple(
        RankExit(
            rank=int(rank),
            exit_code=code,
            signal=number,
            at=float(at),
            # The kernel may kill one rank and spare the shim, which cannot find the reason in a container.
            out_of_memory=bool(oom) or (out_of_memory and number == SIGKILL),
            tail=tail if rank == tail_of else (),
            hang=hang.get(int(rank)),
        )
        for rank, code, number, at, oom in content.get("ranks") or ()
    )
    return Ending(exits=exits, message=content.get("message"), setup_failed=bool(content.get("setup_failed")))


def _hang(content: Mapping[str, Any]) -> list[list[Any]]:
    given = content.get("hang") or ()
    return [each for each in given if isinstance(each, list) and len(each) == 4]


def _usage(given: Any, ranks: int) -> Usage | None:
    try:
        memory, cpu, *gpu = given
        return Usage(
            memory_bytes=int(memory),
            cpu_milli=int(cpu),
            ranks=ranks,
            gpu_memory_bytes=int(gpu[0]) if gpu else None,
        )
    except (ValueError, TypeError):  # a pod started by an older version does not report it
        return None


def _progress(report: Any) -> Progress | None:
    try:
        return progress_of(report) if isinstance(report, dict) else None
    except (ValueError, TypeError):
        return None


def _event(item: Any) -> SeenEvent | None:
    try:
        rank, place, at, kind, message = item
        reason = Reason(code=Code.REPORTED, message=str(message))
        return SeenEvent(rank=int(rank), place=int(place), at=float(at), event=Event(type=str(kind), reason=reason))
    except (ValueError, TypeError):
        return None


def _object(text: str) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) and content.get("form") == FORM else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _moment(text: str | None) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp() if text else 0.0
