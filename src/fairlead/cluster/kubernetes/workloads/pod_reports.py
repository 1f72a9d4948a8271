"""Reads what a pod reported: the last line of its reporter's log, and its ranks' termination message. Pure.

Invalid or foreign content is ignored: a program may write anything there. Each reader returns a typed value or nothing.
"""

from collections.abc import Mapping
from typing import Any

from fairlead.cluster.local.pod_files import (
    exit_of,
    hang_of,
    progress_of,
    reported_event,
    usage_of,
)
from fairlead.frozen import dataclass
from fairlead.runtime.reporting import FORM
from fairlead.specs.overlay import RANKS
from fairlead.state.plan import Event
from fairlead.state.snapshot import Progress, RankExit, Usage
from fairlead.untrusted_json import fields, items, moment, parse_object, text, whole

SIGKILL = 9
MOST_BYTES = 1 << 16
"""The longest line or message that is read; the runtime writes at most an eighth of it."""
MOST_GPUS = 64
_NO_PROGRESS = progress_of({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEvent:
    """An event of one rank; ``rank`` and ``place`` identify it, and ``place`` rises."""

    rank: int
    place: int
    at: float
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReport:
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


def read_report(line: str) -> PodReport | None:
    """Return the report in a line of the reporter's log; None if it holds none."""
    content = _object(line)
    if content is None:
        return None
    end = fields(content.get("ending"))
    return PodReport(
        started_at=moment(content.get("started_at")),
        active_at=moment(content.get("active_at")),
        progress=_progress(content.get("progress")),
        events=tuple(seen for event in items(content.get("events")) if (seen := _event(event)) is not None),
        gpus=tuple(uuid for gpu in items(content.get("gpus"))[:MOST_GPUS] if (uuid := text(gpu, 200)) is not None),
        ending=_ending(end, num_ranks=0, out_of_memory=False) if end.get("form") == FORM else None,
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
    is_oom = ended.get("reason") == "OOMKilled"
    if content is not None and (ending := _ending(content, num_ranks=len(ranks), out_of_memory=is_oom)) is not None:
        return ending
    at, code = _moment(ended.get("finishedAt")), int(ended.get("exitCode") or 0)
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
    ends = ((status.get("state") or {}).get("terminated") for status in statuses if status.get("name") == RANKS)
    return next((end for end in ends if end), None)


def _ending(content: Mapping[str, Any], *, num_ranks: int, out_of_memory: bool) -> Ending | None:
    """Return the end that a record of the runtime tells; None if it tells none, as a program wrote something else."""
    owner, tail = content.get("tail_of"), content.get("tail")
    hangs = {
        whole(hang[0]): dict(zip(("place", "waits_in", "step", "collectives"), hang[1:], strict=False))
        for hang in items(content.get("hang"))
        if isinstance(hang, list) and hang
    }
    exits: list[RankExit] = []
    for entry in items(content.get("ranks")):
        if not isinstance(entry, list) or len(entry) != 5:
            return None
        rank, code, signal, at, oom = entry
        rank_exit = exit_of(
            rank=rank,
            code=code,
            signal=signal,
            at=at,
            # The kernel may kill one rank and spare the shim, which cannot find the reason in a container.
            out_of_memory=bool(oom) or (out_of_memory and signal == SIGKILL),
            tail=tail if rank == owner else (),
            hang=hang_of(hangs.get(whole(rank))),
        )
        if rank_exit is None:
            return None
        exits.append(rank_exit)
    message = text(content.get("message"))
    if not isinstance(content.get("ranks"), list) and message is None:
        return None
    return Ending(
        exits=tuple(exits),
        message=message,
        setup_failed=content.get("setup_failed") is True,
        usage=_usage(content.get("usage"), num_ranks),
    )


def _usage(value: object, ranks: int) -> Usage | None:
    """Return the usage in a record; None if it has none, as of a pod that an older version started."""
    parts = items(value)
    if len(parts) not in (2, 3):
        return None
    return usage_of(parts[0], parts[1], parts[2] if len(parts) == 3 else None, ranks)


def _progress(report: object) -> Progress | None:
    progress = progress_of(fields(report))
    return None if progress == _NO_PROGRESS else progress


def _event(item: object) -> SeenEvent | None:
    parts = items(item)
    if len(parts) != 5:
        return None
    rank, place, at, event = whole(parts[0]), whole(parts[1]), moment(parts[2]), reported_event(parts[3], parts[4])
    if rank is None or place is None or at is None or event is None:
        return None
    return SeenEvent(rank=rank, place=place, at=at, event=event)


def _object(line: str) -> dict[str, Any] | None:
    try:
        content = parse_object(line, max_bytes=MOST_BYTES)
    except ValueError:
        return None
    return content if content.get("form") == FORM else None


def _moment(text: str | None) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp() if text else 0.0
