"""Decides when a pipeline that runs by itself, as a persistent object, is run, each time as a child.

A submitted child has its trigger in a label. If a pass was killed, the next one finds the child by its number, and
records its trigger before any other decision: no time and no change of data leads to two runs.
"""

from collections.abc import Iterator
from dataclasses import field, replace
from datetime import datetime, tzinfo

from fairlead.frozen import dataclass
from fairlead.policy.kinds.parents import failed, submit
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.schedule import next_time, turn
from fairlead.specs.pipeline import Pipeline
from fairlead.state.cron_times import zone_of
from fairlead.state.plan import ChildIntent, Event, SubmitChild
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, DriftSeen, Intent, Phase, Workload

TRIGGER = "trigger"
"""Label of a run: its trigger."""
OF_PIPELINE = "pipeline"
"""Label with the name of the pipeline, if it runs under another; its results are found by that name."""
SCHEDULE, DATA, DRIFT = "schedule", "data", "drift"
WATCH = "watch"
WATCHES = "watches"
"""Label of the run that watches data: what it watches."""
# The number of finished runs that are kept.
MOST_KEPT = 10
# The number of characters of a hash in a label and a status.
HASH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftCycle:
    """The time since a model was last trained, for drift checks.

    Attributes:
        run: The number of the run that trained it, from whose end rows count; 0 before the first.
        is_new: Whether that run made a model; a failed one left the previous model.
        begin: The offset in bytes from which rows count; None until the check has reported where the file ended. It is
            the default since an API server stores no null.
        fresh: The mean loss of a fresh model as known before these rows; None if unknown.
        fresh_now: The same, including these rows.
        acted_on: The hash of the files at the last submission, so that the same files trigger no other.
    """

    run: int = 0
    is_new: bool = True
    begin: int | None = None
    fresh: float | None = None
    fresh_now: float | None = None
    acted_on: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingDetail:
    """The state of a pipeline that runs by itself.

    Attributes:
        handled_until: Times of its schedule up to this one are settled, in Unix seconds.
        number: The number of its newest run.
        content: The hash of the watched data last acted on; empty before the first look.
        drift: The time since the last training, if drift is checked.
    """

    handled_until: float
    number: int = 0
    content: str = ""
    drift: DriftCycle = field(default_factory=lambda: DriftCycle(begin=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDecision:
    """The decision on such a pipeline.

    Attributes:
        problem: Why it cannot continue; None if it can.
    """

    detail: StandingDetail
    reason: Reason
    submit: tuple[SubmitChild, ...] = ()
    children: tuple[ChildIntent, ...] = ()
    event: Event | None = None
    problem: Reason | None = None


def is_standing(spec: Pipeline) -> bool:
    """Return whether a pipeline is a persistent object that runs by itself: it has no driver."""
    return spec.driver is None and spec.runs_by_itself


def decide(pipeline: Workload[Pipeline], family: Family, before: StandingDetail | None, now: float) -> PipelineDecision:
    """Decide what a pipeline that runs by itself needs now."""
    detail = before or StandingDetail(handled_until=pipeline.created_at)
    zone = _zone(pipeline.spec)
    runs = {int(name): child for name, child in family.children.items() if name.isdigit()}
    adopted = _adopted(detail, runs)
    if adopted is not None:
        return PipelineDecision(detail=adopted, reason=_reason(pipeline.spec, adopted, runs, None, zone))
    if pipeline.spec.schedule is not None and zone is None:
        message = f"schedule.timezone: the operator knows no time zone {pipeline.spec.schedule.timezone!r}"
        remedy = "Give one of the IANA database, such as Europe/Berlin, or UTC."
        problem = Reason(code=Code.CHILD_FAILED, message=message, remedy=remedy)
        return PipelineDecision(detail=detail, reason=problem, problem=problem)
    orders = tuple(_superfluous(runs))
    new: tuple[SubmitChild, ...] = ()
    going = next((run for run in runs.values() if not run.status.phase.is_final), None)
    wanted, watch = pipeline.spec.watch, family.children.get(WATCH)
    if watch is not None and (wanted is None or watch.spec.labels.get(WATCHES) != wanted.labels[WATCHES]):
        # It watches what an earlier spec named, so its findings do not apply to this one.
        orders += () if watch.intent is Intent.DELETE else (ChildIntent(uid=watch.uid, intent=Intent.DELETE),)
        # Nor do runs that it triggered: the file is judged again as a whole.
        watch, detail = None, replace(detail, content="", drift=DriftCycle(run=detail.number, begin=0))
    elif watch is None and wanted is not None:
        new = (submit(pipeline, WATCH, wanted),)
    elif watch is not None and watch.status.reason.code is Code.DEADLINE_EXCEEDED:
        # Its team lets no run last for ever. The next one goes on from what this one has reported.
        orders += () if watch.intent is Intent.DELETE else (ChildIntent(uid=watch.uid, intent=Intent.DELETE),)
    elif watch is not None and watch.status.phase is Phase.FAILED:
        problem = failed(watch)
        return PipelineDecision(detail=detail, reason=problem, problem=problem)
    detail = replace(detail, drift=_cycle(pipeline.spec, detail.drift, watch, runs))
    detail, label, why, event = _due(pipeline.spec, detail, watch, going, zone, now)
    if label is not None:
        detail = replace(detail, number=detail.number + 1)
        order = submit(pipeline, str(detail.number), _once(pipeline.spec, label))
        new = (*new, order)
        event = _event("Triggered", f"{order.spec.name} {why}")
        reason = Reason(code=Code.CHILDREN_RUNNING, message=f"waits for {order.spec.name}")
    else:
        reason = _reason(pipeline.spec, detail, runs, watch, zone)
    return PipelineDecision(detail=detail, reason=reason, submit=new, children=orders, event=event)


def next_at(pipeline: Workload[Pipeline], family: Family, detail: StandingDetail | None, now: float) -> float | None:
    """Return the next time of its schedule; None without one, or if a due time waits for a run."""
    schedule, zone = pipeline.spec.schedule, _zone(pipeline.spec)
    if schedule is None or zone is None:
        return None
    at = next_time(schedule, pipeline.created_at if detail is None else detail.handled_until, zone)
    going = any(name.isdigit() and not run.status.phase.is_final for name, run in family.children.items())
    return None if at <= now and going else at


def _adopted(detail: StandingDetail, runs: dict[int, AnyWorkload]) -> StandingDetail | None:
    """Return the state updated by an unrecorded run; None without one."""
    next_run = runs.get(detail.number + 1)
    if next_run is None:
        return None
    detail = replace(detail, number=detail.number + 1)
    kind, _, what = next_run.spec.labels.get(TRIGGER, "").partition("-")
    if kind == SCHEDULE and what.isdigit():
        return replace(detail, handled_until=max(detail.handled_until, float(what)))
    if kind == DRIFT:
        return replace(detail, drift=replace(detail.drift, acted_on=what))
    return replace(detail, content=what) if kind == DATA else detail


def _cycle(spec: Pipeline, cycle: DriftCycle, watch: AnyWorkload | None, runs: dict[int, AnyWorkload]) -> DriftCycle:
    """Return the drift cycle of the current model, with the latest findings."""
    if spec.on is None or spec.on.drift is None:
        return cycle
    drift = _drift_seen(watch, cycle)
    if drift is not None:
        begin = drift.begin if cycle.begin is None else cycle.begin
        cycle = replace(cycle, begin=begin, fresh_now=drift.fresh)
    # A comparison with a reference file covers the whole file, whenever a model was trained.
    over = max((number for number, run in runs.items() if number > cycle.run and _ends_cycle(run)), default=None)
    if over is None or spec.on.drift.reference is not None:
        return cycle
    is_new = runs[over].status.phase is Phase.SUCCEEDED
    return replace(cycle, run=over, is_new=is_new, begin=None, fresh=cycle.fresh_now)


def _ends_cycle(run: AnyWorkload) -> bool:
    """Return whether a finished run made a model, or was to make one and is not retried at once."""
    if not run.status.phase.is_final:
        return False
    return run.status.phase is Phase.SUCCEEDED or run.spec.labels.get(TRIGGER, "").startswith(f"{DRIFT}-")


def _drift_seen(watch: AnyWorkload | None, cycle: DriftCycle) -> DriftSeen | None:
    """Return the finding of the drift check since the last training; None without one."""
    drift = None if watch is None or watch.progress is None else watch.progress.drift
    return drift if drift is not None and drift.run == cycle.run else None


def _due(
    spec: Pipeline,
    detail: StandingDetail,
    watch: AnyWorkload | None,
    going: AnyWorkload | None,
    zone: tzinfo | None,
    now: float,
) -> tuple[StandingDetail, str | None, str, Event | None]:
    """Return the state, the label of the run that is due now, its cause, and the event if none is due."""
    event = None
    if spec.schedule is not None and zone is not None:
        decided = turn(spec.schedule, detail.handled_until, now, is_going=going is not None, zone=zone)
        detail = replace(detail, handled_until=decided.handled_until)
        if decided.due is not None:
            moment = datetime.fromtimestamp(decided.due, zone)
            return detail, f"{SCHEDULE}-{decided.due:.0f}", f"by its schedule: {moment:%Y-%m-%d %H:%M %Z}", None
        if decided.skip_message is not None:
            event = _event("NotScheduled", decided.skip_message)
    seen = _seen(watch)
    if seen and not detail.content:
        detail = replace(detail, content=seen)
    if seen and seen != detail.content and going is None and spec.on is not None and spec.on.data:
        detail = replace(detail, content=seen)
        return detail, f"{DATA}-{seen}", f"by changed data: {', '.join(spec.on.data)}", None
    drift = _drift_seen(watch, detail.drift)
    looked = "" if drift is None else drift.looked[:HASH]
    if drift is not None and drift.is_due and going is None and looked and looked != detail.drift.acted_on:
        detail = replace(detail, drift=replace(detail.drift, acted_on=looked))
        return detail, f"{DRIFT}-{looked}", f"by drift: {drift.said}", None
    return detail, None, "", event


def _seen(watch: AnyWorkload | None) -> str:
    """Return the hash of the watched data; empty before the first look."""
    if watch is None or watch.progress is None or watch.progress.seen is None:
        return ""
    return watch.progress.seen[:HASH]


def _once(spec: Pipeline, label: str) -> Pipeline:
    """Return the pipeline for a single run."""
    labels = {OF_PIPELINE: spec.name, **spec.labels, TRIGGER: label}
    return replace(spec, schedule=None, on=None, watch=None, labels=labels)


def _superfluous(runs: dict[int, AnyWorkload]) -> Iterator[ChildIntent]:
    over = sorted(number for number, run in runs.items() if run.status.phase.is_final)
    for number in over[:-MOST_KEPT]:
        if runs[number].intent is not Intent.DELETE:
            yield ChildIntent(uid=runs[number].uid, intent=Intent.DELETE)


def _reason(
    spec: Pipeline,
    detail: StandingDetail,
    runs: dict[int, AnyWorkload],
    watch: AnyWorkload | None,
    zone: tzinfo | None,
) -> Reason:
    going = [run.spec.name for run in runs.values() if not run.status.phase.is_final]
    parts = [f"waits for {', '.join(sorted(going))}"] if going else []
    if spec.schedule is not None and zone is not None:
        at = datetime.fromtimestamp(next_time(spec.schedule, detail.handled_until, zone), zone)
        parts.append(f"next at {at:%Y-%m-%d %H:%M %Z}")
    if spec.on is not None and spec.on.data:
        parts.append(f"runs when {', '.join(spec.on.data)} changes")
    if spec.on is not None and spec.on.drift is not None:
        drift = _drift_seen(watch, detail.drift)
        parts.append(f"runs when {spec.on.drift.data} drifts" + (f" ({drift.said})" if drift is not None else ""))
    if runs and not going:
        newest = runs[max(runs)]
        parts.append(f"{newest.spec.name} is {newest.status.phase.value}")
    return Reason(code=Code.CHILDREN_RUNNING, message="; ".join(parts))


def _event(kind: str, message: str) -> Event:
    return Event(type=kind, reason=Reason(code=Code.CHILDREN_RUNNING, message=message))


def _zone(spec: Pipeline) -> tzinfo | None:
    """Return the time zone of its schedule; None without one, or if it is unknown here."""
    try:
        return None if spec.schedule is None else zone_of(spec.schedule.timezone)
    except (KeyError, ValueError, OSError):
        return None
