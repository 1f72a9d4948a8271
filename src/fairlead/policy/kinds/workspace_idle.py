"""Decides when a workspace is suspended: for lack of activity, or at a time of its schedule.

Activity is a busy kernel, a command, input in a terminal, a saved file or use of its GPUs, as its own process and the
utilisation meter report it. A page that is only open is none. The suspension is announced ``notice_s`` before, and not
carried out earlier, also where the clock jumped, as when a laptop slept. See decision 230.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.policy.kinds.schedule import next_time
from fairlead.policy.queue.changes import stop
from fairlead.specs.pipeline import Schedule
from fairlead.specs.workspace import SuspendTimes, Workspace
from fairlead.state.cron_times import zone_of
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Pod, Workload
from fairlead.text.quantities import describe_duration

# The suspension is announced so long before, or a quarter of the allowed time if that is less.
NOTICE_S = 300.0
NOTICE_PART = 0.25
# Activity is reported, and judged, at intervals of this part of the allowed time, at most this long.
LOOK_PART = 0.02
MOST_LOOK_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Observations of a workspace.

    Attributes:
        since: When it became ready; it counts as active then.
        active_at: The last activity; None if there was none.
        warned_at: When its suspension was announced; None if it was not.
        known_until: When its activity was last asked for; None where that is always now. What is not known is activity.
    """

    since: float
    active_at: float | None = None
    warned_at: float | None = None
    known_until: float | None = None


def notice_s(after_s: float) -> float:
    """Return how long before a suspension for idleness it is announced."""
    return min(NOTICE_S, NOTICE_PART * after_s)


def look_s(after_s: float) -> float:
    """Return the interval at which activity is judged."""
    return min(MOST_LOOK_S, LOOK_PART * after_s)


def idle_s(activity: Activity, now: float) -> float:
    """Return the seconds without activity, as far as that is known."""
    known = now if activity.known_until is None else min(now, activity.known_until)
    return known - max(activity.since, activity.active_at or 0.0)


def is_warned(activity: Activity, after_s: float, now: float) -> bool:
    """Return whether the suspension for idleness is to be announced, or stays so."""
    return idle_s(activity, now) >= after_s - notice_s(after_s)


def is_over(activity: Activity, after_s: float, now: float) -> bool:
    """Return whether a workspace is to be suspended for idleness: it is idle long enough, and that was announced."""
    is_announced = activity.warned_at is not None and now - activity.warned_at >= notice_s(after_s)
    return is_announced and idle_s(activity, now) >= after_s


def suspends_at(times: SuspendTimes, since: float) -> float:
    """Return the first time of a schedule after a workspace became ready, in Unix seconds."""
    return next_time(Schedule(cron=times.at), since, zone_of(times.timezone))


def activity_of(run: Workload, live: Iterable[Pod]) -> Activity:
    """Return what is known of the activity in a running workspace."""
    live = tuple(live)
    signs = [pod.active_at for pod in live if pod.active_at is not None]
    known_until = min((pod.heard_at for pod in live if pod.heard_at is not None), default=None)
    if run.gpu_active_at is not None:
        signs.append(run.gpu_active_at)
    warning = run.status.warning.reason
    warned_at = run.status.warning.at if warning is not None and warning.code is Code.IDLE else None
    active_at = max(signs, default=None)
    return Activity(since=run.status.since, active_at=active_at, warned_at=warned_at, known_until=known_until)


def reason(run: Workload[Workspace], live: Iterable[Pod], now: float) -> Reason | None:
    """Return the announcement of a suspension; None if there is none."""
    spec, name = run.spec, run.spec.name
    after_s = spec.idle.after_s
    if spec.suspend_at is not None and suspends_at(spec.suspend_at, run.status.since) - NOTICE_S <= now:
        message = f"it is suspended by `suspend_at: {spec.suspend_at.at}` in {describe_duration(NOTICE_S)} or less"
        return Reason(code=Code.IDLE, message=message, remedy=f"`fairlead resume {name}` continues it afterwards.")
    if not is_warned(activity_of(run, live), after_s, now):
        return None
    notice = notice_s(after_s)
    quiet = describe_duration(after_s - notice)
    return Reason(
        code=Code.IDLE,
        message=f"nothing ran and nobody typed in it for {quiet}; it is suspended in {describe_duration(notice)}",
        remedy="Run a cell or a command to keep it, or give it longer by `idle: {after: ...}`.",
    )


def act(run: Workload[Workspace], live: tuple[Pod, ...], now: float) -> Change | None:
    """Return the change that suspends a workspace; None if it goes on."""
    spec = run.spec
    after_s = spec.idle.after_s
    if spec.suspend_at is not None and suspends_at(spec.suspend_at, run.status.since) <= now:
        why = f"suspended by `suspend_at: {spec.suspend_at.at}`"
    elif is_over(activity_of(run, live), after_s, now):
        why = f"suspended by `idle`: nothing ran and nobody typed in it for {describe_duration(after_s)}"
    else:
        return None
    remedy = f"`fairlead resume {spec.name}` continues it, with its home as it is."
    final = Reason(code=Code.SUSPENDED, message=why, remedy=remedy)
    stopping = Reason(code=Code.IDLE, message=f"is being {why}", remedy=remedy)
    return replace(stop(run, live, Phase.SUSPENDED, final, stopping, now), intent=Intent.SUSPEND)


def look_times(run: Workload[Workspace], now: float) -> Iterator[float]:
    """Yield when a running workspace is judged again."""
    if run.status.phase is not Phase.RUNNING:
        return
    yield now + look_s(run.spec.idle.after_s)
    if run.spec.suspend_at is not None:
        at = suspends_at(run.spec.suspend_at, run.status.since)
        yield at - NOTICE_S
        yield at
