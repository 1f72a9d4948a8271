"""Computes the goodput of a run: the useful part of what its pods held, and the losses by cause."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from fairlead.frozen import dataclass
from fairlead.ledger.usage import UsageInterval, Use


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The useful and the lost time of a run, by the intervals that its bill is made from.

    Attributes:
        ratio: Productive part of all that was held, each interval weighted by its part of the node as on the bill; by
            time alone for a run that pays for no part of its nodes. None before it held anything. Work of live pods
            counts as productive until it is lost.
        seconds: Pod-seconds by use; together they are the lifetime of all its pods.
        waiting_s: Seconds since submission in which it held nothing: queued, between two attempts, or suspended.
    """

    ratio: float | None
    seconds: Mapping[str, float]
    waiting_s: float


def goodput(intervals: Iterable[UsageInterval], *, created_at: float, until: float) -> Goodput:
    """Sum up the intervals of one run.

    Args:
        created_at: Unix time of its submission.
        until: Unix time of its end, or now.
    """
    listed = list(intervals)
    by_share = any(interval.share for interval in listed)
    lengths, weights = defaultdict[Use, int](int), defaultdict[Use, int](int)
    for interval in listed:
        length_ms = interval.end_ms - interval.start_ms
        lengths[interval.use] += length_ms
        weights[interval.use] += length_ms * interval.share if by_share else length_ms
    whole = sum(weights.values())
    held_ms = _covered((interval.start_ms, interval.end_ms) for interval in listed)
    return Goodput(
        ratio=weights[Use.PRODUCTIVE] / whole if whole else None,
        seconds={use.value: lengths[use] / 1000 for use in Use if lengths[use]},
        waiting_s=max(0.0, until - created_at - held_ms / 1000),
    )


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of spans."""
    total, reached = 0, None
    for start, end in sorted(spans):
        if reached is None or start > reached:
            total, reached = total + end - start, end
        elif end > reached:
            total, reached = total + end - reached, end
    return total
