"""Divides a pod's life, while it held its part of a node, by what it did, without gap or overlap."""

from collections.abc import Iterator
from itertools import pairwise

from fairlead.ledger.usage import Use, milliseconds
from fairlead.state.snapshot import Pod, PodPhase, Progress


def ended_ms(pod: Pod, seen: float) -> int:
    """Return when a pod that is over ended: when its last rank did, or when it was seen where nobody knows."""
    last = max((each.at for each in pod.exits), default=seen)
    return milliseconds(min(max(last, pod.created_at), max(seen, pod.created_at)))


def activity(pod: Pod, progress: Progress | None, end_ms: int) -> tuple[tuple[Use, int, int], ...]:
    """Divide the life of a pod up to its end, or up to now while it lives.

    Args:
        progress: What its run said last, as known at that end.

    Returns:
        Uses with their beginnings and ends, which together are all of it, in order.
    """
    begin = milliseconds(pod.created_at)
    marks = list(_marks(pod, progress, begin, max(begin, end_ms)))
    return tuple((use, start, end) for (use, start), (_, end) in pairwise(marks) if end > start)


def _marks(pod: Pod, progress: Progress | None, begin: int, end: int) -> Iterator[tuple[Use, int]]:
    """Each use with its beginning, rising; the last is the end."""

    def within(seconds: float | None, low: int, otherwise: int) -> int:
        return otherwise if seconds is None else min(max(milliseconds(seconds), low), end)

    started = within(pod.started_at, begin, end)
    noticed = within(pod.terminating_since, started, end)
    hung = any(each.hang is not None for each in pod.exits)
    worked = min(noticed, within(pod.active_at, started, end)) if hung else noticed
    saved_s = None if progress is None else progress.checkpoint_at
    saved = within(saved_s, started, started)
    ended_well = pod.phase is PodPhase.SUCCEEDED and pod.terminating_since is None
    is_lost = pod.phase.is_final and not ended_well
    yield Use.STARTING, begin
    yield Use.PRODUCTIVE, started
    if is_lost:
        yield Use.REDONE, min(saved, worked)
    saves_at_notice = worked == noticed and saved > noticed
    if saves_at_notice:
        yield Use.SAVING, noticed
    yield Use.STALLED, saved if saves_at_notice else worked
    yield Use.STALLED, end
