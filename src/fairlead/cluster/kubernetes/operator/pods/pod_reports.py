"""Reads what a pod said of itself: the last line of its reporter's log, and its ranks' termination message. Pure.

What is not ours in either, or is damaged, is told as nothing: a program may write what it likes.
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
    """An event of one rank; ``rank`` and ``place`` say which it is, ``place`` rises."""

    rank: int
    place: int
    at: float
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The newest report of a pod's ranks.

    Attributes:
        started_at: When the ranks were started; None before.
        active_at: Last sign of progress.
        progress: What the lowest rank reported; None when it reports nothing.
        events: The latest ones, oldest first.
        gpus: UUIDs of the devices that its container was given; empty where it cannot tell.
    """

    started_at: float | None = None
    active_at: float | None = None
    progress: Progress | None = None
    events: tuple[SeenEvent, ...] = ()
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a pod, rank by rank.

    Attributes:
        exits: How its ranks ended; of a large pod the first that failed.
        message: Why no rank was started; None when they were.
        usage: The most that its processes used; None where it does not say.
    """

    exits: tuple[RankExit, ...] = ()
    message: str | None = None
    setup_failed: bool = False
    usage: Usage | None = None


def read_last_words(pod: Mapping[str, Any]) -> Progress | None:
    """Read what the ranks of a pod said last, from the pod as ``read_ending`` takes it; None when they said nothing."""
    ended = _ended(pod)
    content = None if ended is None else _object(ended.get("message") or "")
    return None if content is None else _progress(content.get("progress"))


def read_report(line: str) -> Report | None:
    """The report in a line of the reporter's log; None when it holds none."""
    content = _object(line)
    if content is None:
        return None
    return Report(
        started_at=_number(content.get("started_at")),
        active_at=_number(content.get("active_at")),
        progress=_progress(content.get("progress")),
        events=tuple(seen for each in content.get("events") or () if (seen := _event(each)) is not None),
        gpus=tuple(map(str, gpus)) if isinstance(gpus := content.get("gpus"), list) else (),
    )


def read_ending(pod: Mapping[str, Any], *, ranks: range) -> Ending | None:
    """Read how a pod ended, from the pod as the API server has it; None while its ranks' container has not ended.

    Args:
        ranks: Those of the pod, for when it could not say itself how they ended.
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
    """Find how the ranks' container ended; None while it has not."""
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
            # The kernel may kill one rank and leave the shim, which cannot see why in a container.
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
        memory, cpu = given
        return Usage(memory_bytes=int(memory), cpu_milli=int(cpu), ranks=ranks)
    except (ValueError, TypeError):  # a pod that an older version started says nothing of it
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
