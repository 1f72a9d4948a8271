"""Computes the minimum number of replicas of an endpoint by its schedule, independent of demand."""

from collections.abc import Mapping
from datetime import UTC

from fairlead.policy.kinds.schedule import next_time
from fairlead.specs.pipeline import Schedule
from fairlead.specs.serving import Window


def scheduled_replicas(windows: Mapping[str, Window], now: float) -> int:
    """Return the maximum of the active windows; 0 if none is active."""
    return max((window.replicas for window in windows.values() if _start(window, now) <= now), default=0)


def next_change(windows: Mapping[str, Window], now: float) -> float | None:
    """Return when a window begins or ends next, in Unix seconds; None without windows."""
    times = [next_time(Schedule(cron=window.cron), now, UTC) for window in windows.values()]
    times += [_start(window, now) + window.duration_s for window in windows.values() if _start(window, now) <= now]
    return min(times, default=None)


def _start(window: Window, now: float) -> float:
    """Return the first start of a window that is not over: of the active one, or of the next."""
    return next_time(Schedule(cron=window.cron), now - window.duration_s, UTC)
