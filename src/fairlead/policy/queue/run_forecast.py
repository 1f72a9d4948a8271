"""Forecasts the end and the cost of a run, with bounds that hold for nine of ten runs.

If a program reports its steps and their total, the rest follows from their pace. Otherwise it follows from completed
runs: those of the run's own kind if there are many, or its typical length, that of few such runs or its
``expected_duration``, times the errors that such lengths had for other runs, each measured against the rest without it
(the leave-one-out residuals of jackknife+, Barber et al. 2021, section 1.2). Only runs that took longer than this run's
current age count. Of n samples the k-th smallest bounds a new one with probability k / (n + 1), which is exact if the
new run is exchangeable with them; docs/decisions/0052 shows how far that holds on public traces.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from fairlead.frozen import dataclass
from fairlead.policy.queue.budgets import HOUR_S, rate_of
from fairlead.policy.queue.durations import kind_of
from fairlead.state.snapshot import Completed, Phase, Progress, Snapshot, Workload
from fairlead.text.quantities import plural

# The part of runs whose end should lie within the bounds.
SURE = 0.9
# Bounds are computed for this part: runs of a trace resemble earlier ones less than exchangeable samples would.
AIM = 0.93
# With fewer samples no two of them bound nine of ten runs.
LEAST_SAMPLES = 19
# Both bounds of an estimate from steps are at least this part of it away.
STEPS_UNSURE = 0.1
LEAST_S = 1.0
# Running runs whose age differs from the run's own by at most this part count as started together with it.
PEERS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForecast:
    """The remaining time of a run from now, or from its start if it is pending.

    Attributes:
        low_s, high_s: Bounds that hold in nine of ten cases.
        likely_s: The median.
        basis: The source of the estimate, as a clause.
        by_steps: Whether it follows from the pace of its steps; such bounds are set by a rule and were not measured.
        microusd_per_hour: The cost of an hour; None without a price.
        spent_microusd: The cost so far; None if unknown.
    """

    low_s: float
    likely_s: float
    high_s: float
    basis: str
    by_steps: bool = False
    microusd_per_hour: int | None = None
    spent_microusd: int | None = None

    def microusd(self, seconds: float) -> int | None:
        """Return the total cost if it needs this much more time."""
        if self.microusd_per_hour is None:
            return None
        return (self.spent_microusd or 0) + round(self.microusd_per_hour * seconds / HOUR_S)


def forecast(run: Workload, snapshot: Snapshot, now: float, spent_microusd: int | None = None) -> RunForecast | None:
    """Return the forecast of a run; None if too little is known of runs, or if the run is over."""
    if run.status.phase.is_final:
        return None
    by_steps = _by_steps(run, now)
    bounds = by_steps or _by_history(run, snapshot, now)
    if bounds is None:
        return None
    low_s, likely_s, high_s, basis = bounds
    most_s = _most_s(run, now)
    if most_s < high_s:
        basis = f"{basis}; its `max_duration` ends it at the latest"
    where = {pod.node for pod in snapshot.pods if pod.workload_uid == run.uid and not pod.phase.is_final}
    nodes = [node for node in snapshot.nodes if node.name in where]
    rate = round(rate_of(run.gang, nodes) * HOUR_S) if nodes else 0
    return RunForecast(
        low_s=min(low_s, most_s),
        likely_s=min(likely_s, most_s),
        high_s=min(high_s, most_s),
        basis=basis,
        by_steps=by_steps is not None,
        microusd_per_hour=rate or None,
        spent_microusd=spent_microusd,
    )


def _most_s(run: Workload, now: float) -> float:
    limit_s, started_at = run.spec.max_duration_s, run.status.started_at
    if limit_s is None:
        return math.inf
    return max(0.0, limit_s - (now - started_at if started_at is not None else 0.0)) + run.spec.grace_s


Bounds = tuple[float, float, float, str]


def _by_steps(run: Workload, now: float) -> Bounds | None:
    """Return what is left of its steps, by their average pace since it started running and by their latest pace."""
    progress, status = run.progress or Progress(), run.status
    if status.phase is not Phase.RUNNING or progress.step is None or progress.total_steps is None:
        return None
    took_s, made = progress.updated_at - status.since, progress.step - (progress.resumed_step or 0)
    if took_s < LEAST_S or made < 2:
        return None
    paces = [made / took_s]
    if progress.throughput and progress.throughput_unit == "steps/s":
        paces.append(progress.throughput)
    silent_s = max(0.0, now - progress.updated_at)
    left = [max(0.0, (progress.total_steps - progress.step) / pace - silent_s) for pace in paces]
    likely_s = sum(left) / len(left)
    low_s, high_s = min(*left, likely_s) * (1 - STEPS_UNSURE), max(*left, likely_s) * (1 + STEPS_UNSURE)
    return low_s, likely_s, high_s, f"by its steps, {progress.step} of {progress.total_steps}"


def _by_history(run: Workload, snapshot: Snapshot, now: float) -> Bounds | None:
    """Return what is left of it, by completed runs and by the ages of running ones."""
    started_at = run.status.started_at
    done_s = 0.0 if started_at is None else max(0.0, now - started_at)
    history, kind = _history(snapshot.completed), kind_of(run.spec)
    own, going = history.took.get(kind, ()), _going(snapshot, run.uid, now)
    if len(own) - bisect_right(own, done_s) >= LEAST_SAMPLES:
        lasted = [age_s for other, age_s in going if other == kind]
        bounds, basis = _bounds(own, lasted, done_s), f"by {plural(len(own), 'earlier run')}"
    else:
        typical_s = _median(own) if own else run.spec.expected_duration_s
        if typical_s is None:
            return None  # other programs say nothing about one that has never run
        ratios = history.ratios if own else history.strange_ratios
        medians = history.medians if own else defaultdict(lambda: history.median_s or 1.0)
        lasted = [age_s / medians[other] for other, age_s in going if not own or other in medians]
        ratio_bounds = _bounds(ratios, lasted, done_s / typical_s)
        bounds = (
            None
            if ratio_bounds is None
            else (ratio_bounds[0] * typical_s, ratio_bounds[1] * typical_s, ratio_bounds[2] * typical_s)
        )
        basis = f"by {plural(len(own), 'earlier run')}" if own else "by its `expected_duration`"
    if bounds is None:
        return None
    low_s, likely_s, high_s = (max(0.0, total_s - done_s) for total_s in bounds)
    return low_s, likely_s, high_s, basis


def _going(snapshot: Snapshot, uid: str, now: float) -> list[tuple[tuple[str, str], float]]:
    """Return the kinds and ages of other running runs."""
    return [
        (kind_of(other.spec), now - other.status.started_at)
        for other in snapshot.workloads
        if other.status.started_at is not None and other.status.phase is Phase.RUNNING and other.uid != uid
    ]


def _bounds(ended: Sequence[float], lasted: Sequence[float], done: float) -> tuple[float, float, float] | None:
    """Return the lower bound, the median and the upper bound of the length of a run that has lasted ``done``.

    Uses the product-limit estimate, which treats running runs as censored (Kaplan and Meier 1958): of the runs that
    started recently only the short ones are over. None if too few have ended, or too few of the long ones to bound
    them.

    Args:
        ended: Lengths of completed runs, ascending.
        lasted: Ages of running runs.
    """
    longer = ended[bisect_right(ended, done) :]
    going = sorted(duration_s for duration_s in lasted if duration_s > done)
    # Runs that started together with it give no information on what follows, and the completed ones of a batch are its
    # short ones.
    peers = sum(abs(duration_s - done) <= PEERS * done for duration_s in lasted)
    if len(longer) < max(LEAST_SAMPLES, peers + 1):
        return None
    outside = (1 - AIM) / 2 * (1 - 1 / (len(longer) + 1))
    levels, bounds, survive, passed = [1 - outside, 0.5, outside], list[float](), 1.0, 0
    for place, length in enumerate(longer):
        while passed < len(going) and going[passed] < length:
            passed += 1
        survive *= 1 - 1 / (len(longer) - place + len(going) - passed)
        while len(bounds) < len(levels) and survive <= levels[len(bounds)] + 1e-9:
            bounds.append(length)
    if len(bounds) < len(levels):
        return None
    # The lower bound is the last length before this part has ended.
    first = bisect_left(longer, bounds[0])
    return longer[max(0, first - 1)] if first else bounds[0], bounds[1], bounds[2]


def _median(samples: Sequence[float]) -> float:
    middle = len(samples) // 2
    return samples[middle] if len(samples) % 2 else (samples[middle - 1] + samples[middle]) / 2


@dataclass(frozen=True, slots=True)
class _History:
    """Completed runs.

    Attributes:
        took: Seconds by kind, ascending.
        medians: Median of ``took`` by kind.
        ratios: The time of each run over the median of the others of its kind, ascending.
        strange_ratios: The time of each run over the median of all, ascending; for kinds without history.
    """

    took: dict[tuple[str, str], list[float]]
    medians: dict[tuple[str, str], float]
    ratios: list[float]
    strange_ratios: list[float]
    median_s: float | None


@lru_cache(maxsize=4)
def _history(completed: tuple[Completed, ...]) -> _History:
    took: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for run in completed:
        took[kind_of(run)].append(max(LEAST_S, run.took_s))
    for durations in took.values():
        durations.sort()
    everything = sorted(sample for lengths in took.values() for sample in lengths)
    middle_s = _median(everything) if everything else None
    ratios = [
        took_s / _median_without(lasted, place)
        for lasted in took.values()
        if len(lasted) > 1
        for place, took_s in enumerate(lasted)
    ]
    strange = [] if middle_s is None else [duration_s / middle_s for duration_s in everything]
    medians = {kind: _median(lasted) for kind, lasted in took.items()}
    return _History(dict(took), medians, sorted(ratios), strange, middle_s)


def _median_without(ascending: Sequence[float], place: int) -> float:
    """Return the median of all but one, without building the list."""
    count = len(ascending) - 1

    def at(index: int) -> float:
        return ascending[index if index < place else index + 1]

    middle = count // 2
    return at(middle) if count % 2 else (at(middle - 1) + at(middle)) / 2
