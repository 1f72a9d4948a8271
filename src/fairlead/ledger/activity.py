"""Splits the lifetime of a pod, while it held its part of a node, into uses without gap or overlap."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from fairlead.ledger.usage import HOUR_MS, Use, milliseconds
from fairlead.state.snapshot import Pod, PodPhase, Progress


def ended_ms(pod: Pod, seen: float) -> int:
    """Return when a terminated pod ended: the end of its last rank, or when it was observed if that is unknown."""
    last = max((exit_.at for exit_ in pod.exits), default=seen)
    return milliseconds(min(max(last, pod.created_at), max(seen, pod.created_at)))


def activity(
    pod: Pod, progress: Progress | None, end_ms: int, idle_ms: Mapping[int, int] | None = None
) -> tuple[tuple[Use, int, int], ...]:
    """Split the lifetime of a pod up to its end, or up to now while it is alive.

    Args:
        progress: The last report of its run, as known at that end.
        idle_ms: Measured idle milliseconds of what the pod holds, by hour since 1970. They are subtracted from
            productive time; in proportion where some work of the hour was lost.

    Returns:
        Uses with their beginnings and ends, in order, which together cover the lifetime. The idle part of an hour comes
        at the end of its productive part.
    """
    begin = milliseconds(pod.created_at)
    marks = list(_marks(pod, progress, begin, max(begin, end_ms)))
    spans = [(use, start, end) for (use, start), (_, end) in pairwise(marks) if end > start]
    if not idle_ms:
        return tuple(spans)
    worked = [(start, end) for use, start, end in spans if use in (Use.PRODUCTIVE, Use.REDONE)]
    return tuple(
        piece
        for use, start, end in spans
        for piece in (_productive(start, end, worked, idle_ms) if use is Use.PRODUCTIVE else [(use, start, end)])
    )


def _productive(
    start: int, end: int, worked: list[tuple[int, int]], idle_ms: Mapping[int, int]
) -> Iterator[tuple[Use, int, int]]:
    """Split working time into productive and idle, hour by hour where idleness was measured."""
    since = start
    for hour in range(start // HOUR_MS, -(-end // HOUR_MS)):
        low, high = max(start, hour * HOUR_MS), min(end, (hour + 1) * HOUR_MS)
        within = sum(max(0, min(high_, (hour + 1) * HOUR_MS) - max(low_, hour * HOUR_MS)) for low_, high_ in worked)
        idle = min(idle_ms.get(hour, 0), within) * (high - low) // within
        if idle:
            if high - idle > since:
                yield Use.PRODUCTIVE, since, high - idle
            yield Use.IDLE_IN_RUN, high - idle, high
            since = high
    if since < end:
        yield Use.PRODUCTIVE, since, end


def _marks(pod: Pod, progress: Progress | None, begin: int, end: int) -> Iterator[tuple[Use, int]]:
    """Return each use with its beginning, in ascending order; the last is the end."""

    def within(seconds: float | None, low: int, otherwise: int) -> int:
        return otherwise if seconds is None else min(max(milliseconds(seconds), low), end)

    started = within(pod.started_at, begin, end)
    noticed = within(pod.terminating_since, started, end)
    hung = any(exit_.hang is not None for exit_ in pod.exits)
    worked = min(noticed, within(pod.active_at, started, end)) if hung else noticed
    saved_s = None if progress is None else progress.checkpoint_at
    saved = within(saved_s, started, started)
    ended_well = pod.phase is PodPhase.SUCCEEDED and pod.terminating_since is None
    is_lost = pod.phase.is_final and not ended_well
    yield Use.STARTING, begin
    if progress is not None and progress.probe_attempt == pod.attempt:
        # It measured a split, and trained nothing.
        yield Use.STARTING, end
        return
    yield Use.PRODUCTIVE, started
    if is_lost:
        yield Use.REDONE, min(saved, worked)
    saves_at_notice = worked == noticed and saved > noticed
    if saves_at_notice:
        yield Use.SAVING, noticed
    yield Use.STALLED, saved if saves_at_notice else worked
    yield Use.STALLED, end
