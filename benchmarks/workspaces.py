"""Simulates days of work in workspaces, and compares their suspension for idleness with an ideal observer.

    python -m benchmarks.workspaces [--days N] [--seed N] [--json]

A trace has working days with bursts of activity: cells of seconds, trainings of hours without a person, commands, and a
page that stays open over night. The workspace looks for activity at its intervals, the loop judges at its own, and both
are late by a random part of them. The ideal stops exactly ``after`` the end of the last activity. A stop is false if
something was going on, or had within the allowed time. Whoever comes back to a suspended workspace resumes it.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence

from fairlead.frozen import dataclass
from fairlead.policy.kinds.workspace_idle import Activity, is_over, is_warned, look_s
from fairlead.runtime.workspace.__main__ import look_interval_s

DAY_S = 86_400.0
HOUR_S = 3_600.0
RESUME_S = 10.0
# What is observed gets to the loop within this time.
LATE_S = 0.5
AFTERS_S = (900.0, 3_600.0, 4 * 3_600.0)


@dataclass(frozen=True, slots=True)
class Busy:
    """A span of activity, in seconds."""

    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Suspensions of one trace.

    Attributes:
        on_s: Time for which the workspace held its resources.
        ideal_s: The same of the ideal.
        busy_s: Time of activity.
        false_stops: Suspensions while something went on, or within the allowed time after it.
        unannounced: Suspensions without an announcement before.
    """

    on_s: float
    ideal_s: float
    busy_s: float
    stops: int
    false_stops: int
    unannounced: int

    @property
    def idle_s(self) -> float:
        """Return the time without activity for which it held its resources."""
        return self.on_s - self.busy_s

    @property
    def over_ideal(self) -> float:
        """Return by which part its idle time exceeds that of the ideal."""
        return self.idle_s / (self.ideal_s - self.busy_s) - 1.0


def trace(days: int, rng: random.Random) -> tuple[Busy, ...]:
    """Return the activity of a person: five days a week, with meetings, trainings and cells."""
    spans: list[Busy] = []
    for day in range(days):
        if day % 7 in (5, 6) and rng.random() < 0.9:
            continue
        now, end = day * DAY_S + rng.gauss(9.0, 0.7) * HOUR_S, day * DAY_S + rng.gauss(18.0, 1.2) * HOUR_S
        while now < end:
            kind = rng.random()
            if kind < 0.02:  # a training in a cell, while nobody looks
                length = rng.uniform(0.5, 14.0) * HOUR_S
            else:
                length = rng.lognormvariate(2.0, 1.5) if kind < 0.8 else rng.uniform(60.0, 900.0)
            spans.append(Busy(now, now + length))
            pause = rng.lognormvariate(4.0, 1.3)
            if rng.random() < 0.05:  # a meeting or a meal
                pause = rng.uniform(0.5, 2.5) * HOUR_S
            now += length + pause
    return _joined(spans)


def _joined(spans: Sequence[Busy]) -> tuple[Busy, ...]:
    joined: list[Busy] = []
    for span in sorted(spans, key=lambda span: span.start):
        if joined and span.start <= joined[-1].end:
            joined[-1] = Busy(joined[-1].start, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return tuple(joined)


def live(spans: Sequence[Busy], after_s: float, rng: random.Random) -> Outcome:
    """Return the suspensions of a workspace whose activity is observed and judged at intervals."""
    on_s = lost_s = 0.0
    stops = false_stops = unannounced = 0
    index = 0
    while index < len(spans):
        begun = spans[index].start - RESUME_S  # somebody wants to work
        stop_at, was_warned = _session(spans, index, begun, after_s, rng)
        last = max(number for number in range(index, len(spans)) if spans[number].start < stop_at)
        stops += 1
        false_stops += stop_at < spans[last].end + after_s
        lost_s += max(0.0, spans[last].end - stop_at)
        unannounced += not was_warned
        on_s += stop_at - begun
        index = last + 1
    busy_s = sum(span.end - span.start for span in spans) - lost_s
    return Outcome(
        on_s=on_s, ideal_s=_ideal_s(spans, after_s), busy_s=busy_s, stops=stops, false_stops=false_stops,
        unannounced=unannounced,
    )  # fmt: skip


def _ideal_s(spans: Sequence[Busy], after_s: float) -> float:
    """Return how long a workspace is on that is suspended exactly ``after_s`` after its last activity."""
    total_s, begun, end = 0.0, spans[0].start - RESUME_S, spans[0].end
    for span in spans[1:]:
        if span.start > end + after_s:
            total_s += end + after_s - begun
            begun = span.start - RESUME_S
        end = span.end
    return total_s + end + after_s - begun


def _session(spans: Sequence[Busy], index: int, begun: float, after_s: float, rng: random.Random) -> tuple[float, bool]:
    """Return when a workspace is suspended, and whether that was announced."""
    active_at, warned_at = begun, None
    for now in _ticks(begun, look_s(after_s), rng):
        interval_s = look_interval_s(after_s, now - active_at)
        active_at = max(active_at, _newest(spans, index, now - rng.uniform(0.0, interval_s + LATE_S)))
        activity = Activity(since=begun, active_at=active_at, warned_at=warned_at)
        if is_over(activity, after_s, now):
            return now, warned_at is not None
        if not is_warned(activity, after_s, now):
            warned_at = None
        elif warned_at is None:
            warned_at = now
    raise AssertionError("unreachable")


def _ticks(begun: float, interval_s: float, rng: random.Random) -> Iterator[float]:
    now = begun
    while True:
        now += interval_s * rng.uniform(1.0, 1.2)
        yield now


def _newest(spans: Sequence[Busy], index: int, now: float) -> float:
    """Return the last activity up to a moment, as the server tells it: kernels know when they were used last."""
    newest = spans[index].start
    for span in spans[index:]:
        if span.start > now:
            break
        newest = min(now, span.end)
    return newest


def results(days: int, seed: int) -> list[dict[str, float]]:
    """Return the figures for each allowed time."""
    rows = []
    for after_s in AFTERS_S:
        rng = random.Random(f"{seed}-{after_s}")
        spans = trace(days, rng)
        outcome = live(spans, after_s, rng)
        rows.append(
            {
                "after_s": after_s,
                "days": days,
                "stops": outcome.stops,
                "false_stops": outcome.false_stops,
                "unannounced": outcome.unannounced,
                "busy_h": outcome.busy_s / HOUR_S,
                "on_h": outcome.on_s / HOUR_S,
                "over_ideal": outcome.over_ideal,
                "of_never_stopped": outcome.on_s / (days * DAY_S),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = results(options.days, options.seed)
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"after {row['after_s'] / 60:.0f} min: {row['stops']} suspensions in {row['days']} days, "
            f"{row['false_stops']} false, {row['unannounced']} unannounced; idle {row['over_ideal']:.1%} above the "
            f"ideal; on {row['of_never_stopped']:.0%} of the time, busy {row['busy_h']:.0f} h"
        )


if __name__ == "__main__":
    main()
