"""Judges a sweep: which trials exist, which end early or pause, and the parameters of the next ones.

The history is the children. The decision on a trial is a function of the spec and of earlier trials, so that another
process continues identically. Additionally the values at rungs are kept, which a trial passes once.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from typing import TypeAlias

from fairlead.frozen import dataclass
from fairlead.policy.kinds.engine_search import new_proposals, read_values, say_search, search_end
from fairlead.policy.kinds.parents import advance, child_name, finish, submit
from fairlead.policy.kinds.record import Family, ParentKind
from fairlead.policy.search.population import best_part, explore, gives_way
from fairlead.policy.search.promotion import pauses, promotable
from fairlead.policy.search.pruning import (
    FIRST_RUNG_PART,
    EarlyCurve,
    RungReport,
    followed,
    has_early_rung,
    is_pruned,
    num_rungs,
    rung_steps,
    whole_length,
    with_rungs,
)
from fairlead.policy.search.sampling import suggest
from fairlead.policy.search.trials import CUT_SHORT, TrialRecord, TrialState, draw, front, metric_of
from fairlead.specs.search_space import Value, texts_of
from fairlead.specs.sweep import Objective, Prune, Sampler, Sweep, map_runs, trial_run, values_of
from fairlead.specs.training import Training
from fairlead.state.plan import Change, ChildIntent, Event, SubmitChild
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Progress, Workload
from fairlead.text.quantities import describe_duration, plural

# The maximum number of submissions per pass; the next pass continues.
MOST_AT_ONCE = 100
# A sweep that is over continues with its time limit if so much of it is left.
LEAST_LEFT_S = 1.0
# A trial that is so many times as far as a rung when the rung becomes known is not compared there.
LATE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDetail:
    """The state of a sweep besides its trials.

    Attributes:
        submitted: The number of submitted trials.
        over: The number of finished trials.
        pruned: The numbers of trials that were stopped early, or are paused.
        failed: The numbers of trials whose failure was reported.
        best: The number of the trial with the best value so far.
        rungs: Values that trials reported at rungs.
        length: Steps of a whole trial, which determine the first rung if the spec does not give it; None before a trial
            has reported it, and if not needed. It stays fixed, since reports at other rungs would not be comparable.
        is_early: Whether a rung comes before the one at a quarter of the length, at which trials may only pause.
        curves: Running trials on their way to an early rung.
        proposed: The names that an engine gave to the trials, by their numbers.
    """

    submitted: int = 0
    over: int = 0
    pruned: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    best: int | None = None
    best_value: float | None = None
    rungs: tuple[RungReport, ...] = ()
    length: int | None = None
    is_early: bool = False
    curves: tuple[EarlyCurve, ...] = ()
    proposed: tuple[str, ...] = ()


def judge(sweep: Workload[Sweep], family: Family, now: float) -> Change | None:
    """Submit trials, stop those at a rung that are not among the best, resume those that are, and end the sweep."""
    spec, before = sweep.spec, detail_of(sweep)
    history = _history_of(sweep, family)
    known = _with_length(spec, history.records, before)
    rungs, pruned, curves = _prune(spec, history.records, before, known)
    best, num_active = history.best, history.counts.get(TrialState.ACTIVE, 0)
    detail = replace(
        known, over=before.submitted - num_active, pruned=pruned, failed=history.failed, rungs=rungs, curves=curves,
        best=None if best is None else best.number, best_value=None if best is None else best.value,
    )  # fmt: skip
    able = _promotable(spec, history.records, detail)
    end = _end(sweep, family, history, detail, now, is_exhausted=not able)
    if end is not None:
        return finish(sweep, family, *end, now, detail=detail)
    promoted = able[: _room(spec, family)]
    detail = replace(
        detail, over=detail.over - len(promoted), pruned=tuple(number for number in pruned if number not in promoted)
    )
    orders = (*_stop_orders(family, detail.pruned), *_resume_orders(family, promoted))
    if spec.engine is None:
        new = _submissions(sweep, history.records, detail, _room(spec, family) - len(promoted))
    else:
        new, detail = _proposed(sweep, family, detail)
    detail = replace(detail, submitted=detail.submitted + len(new))
    waits = say_search(spec, family.search, num_active + len(new))
    message = f"{_progress(detail, spec, history)}{_say_best(sweep, history)}{waits}"
    reason = Reason(code=Code.CHILDREN_RUNNING, message=message)
    event = _news(sweep, family, history.records, before, detail)
    return advance(sweep, reason, now, detail=detail, submit=new, children=orders, event=event)


def next_at(sweep: Workload[Sweep], _family: Family, now: float) -> float | None:
    """Return when its time limit is reached; time in which it does not run does not count."""
    duration_s, status = sweep.spec.stop.duration_s, sweep.status
    if duration_s is None or status.started_at is None:
        return None
    return (status.since if status.phase is Phase.RUNNING else now) + duration_s - status.run_time.active_s


def has_more(sweep: Workload[Sweep]) -> bool:
    """Return whether a sweep that has succeeded would no longer end at once."""
    return why_at_its_end(sweep, sweep.spec) is None


def why_at_its_end(sweep: Workload[Sweep], spec: Sweep) -> str | None:
    """Return why a sweep that has succeeded would end at once with a spec, and what to change; None if it would not."""
    detail, status = detail_of(sweep), sweep.status
    if spec.engine is not None:
        return f"its search at {spec.engine} ended with it; `fairlead run` begins another"
    if _is_good_enough(spec, detail):
        return f"its best value, {detail.best_value:.6g}, is good enough; give a better `stop.target`, or none"
    if spec.stop.duration_s is not None and spec.stop.duration_s - status.run_time.active_s < LEAST_LEFT_S:
        return f"it has run for {describe_duration(status.run_time.active_s)}; give a longer `stop.duration`"
    wanted = num_wanted(spec, detail.pruned)
    if detail.submitted < wanted or status.halted:
        return None
    had = f"it has had {plural(detail.submitted, 'trial')}"
    if spec.trials is not None and wanted < spec.trials:
        return (
            f"{had}, and {'a population' if spec.is_population else 'its grid'} has no more; `fairlead run` begins anew"
        )
    return f"{had}; give more `trials`, such as {2 * detail.submitted}"


def _is_good_enough(spec: Sweep, detail: SweepDetail) -> bool:
    """Return whether the best value so far has reached the target."""
    target, objective = spec.stop.target, spec.objective
    if target is None or objective is None or detail.best_value is None:
        return False
    return objective.goal.sign * detail.best_value <= objective.goal.sign * target


def foresee(sweep: Workload[Sweep], family: Family) -> None:
    """Precompute the parameters of the next trial, assuming that a running one ends without being among the best.

    The sampler caches the result, and recomputes it if the assumption fails.
    """
    spec, detail = sweep.spec, detail_of(sweep)
    is_over = detail.submitted >= num_wanted(spec, detail.pruned) or spec.engine is not None
    if is_over or spec.is_population or spec.objective is None or spec.chosen_sampler is not Sampler.TPE:
        return
    records = list(trials_of(sweep, family))
    running = next((place for place, trial in enumerate(records) if trial.state is TrialState.ACTIVE), None)
    if running is None:
        return
    worst = spec.objective.goal.sign * math.inf
    records[running] = replace(records[running], state=TrialState.SUCCEEDED, value=worst)
    suggest(spec, detail.submitted, records, detail.rungs)


def progress(sweep: Workload[Sweep]) -> str:
    """Return how many of its trials are over."""
    detail = detail_of(sweep)
    return f"{detail.over}/{num_wanted(sweep.spec, detail.pruned)}"


def best_so_far(sweep: Workload[Sweep]) -> str:
    """Return the best value so far and its trial."""
    detail, objective = detail_of(sweep), sweep.spec.objective
    if objective is None or detail.best is None or detail.best_value is None:
        return ""
    return f"{objective.metric} {detail.best_value:.6g} ({child_name(sweep, str(detail.best))})"


def detail_of(sweep: Workload[Sweep]) -> SweepDetail:
    """Return the state of a sweep besides its trials."""
    detail = sweep.status.detail
    return detail if isinstance(detail, SweepDetail) else SweepDetail()


def trials_of(sweep: Workload[Sweep], family: Family) -> list[TrialRecord]:
    """Return the existing trials, by number; deleted ones are missing."""
    return _history_of(sweep, family).records


@dataclass(frozen=True, slots=True, kw_only=True)
class _History:
    """The existing trials by number, and facts about all of them for each pass.

    Attributes:
        best: The best successful one; None if trials are not compared.
        failed: The numbers of failed ones.
    """

    records: list[TrialRecord]
    counts: Mapping[TrialState, int]
    best: TrialRecord | None
    failed: tuple[int, ...]

    @classmethod
    def of(cls, spec: Sweep, records: list[TrialRecord]) -> "_History":
        """Return the history of trials in any order."""
        records.sort(key=attrgetter("number"))
        return cls(
            records=records,
            counts=Counter(trial.state for trial in records),
            best=_best(spec, records),
            failed=tuple(trial.number for trial in records if trial.state is TrialState.FAILED),
        )

    def at_the_end(self) -> "_History":
        """Return the history once the sweep is over: paused trials are pruned."""
        counts = {**self.counts, TrialState.PAUSED: 0}
        counts[TrialState.PRUNED] = sum(self.counts.get(state, 0) for state in CUT_SHORT)
        return replace(self, counts=counts)

    def and_(self, spec: Sweep, others: "_History") -> "_History":
        """Return the history of these trials and others."""
        records = [*self.records, *others.records]
        records.sort(key=attrgetter("number"))
        return _History(
            records=records,
            counts={state: self.counts.get(state, 0) + others.counts.get(state, 0) for state in TrialState},
            best=_best(spec, [record for record in (self.best, others.best) if record is not None]),
            failed=tuple(sorted((*self.failed, *others.failed))),
        )


# A trial's child, whether it was pruned, and the record made of both.
_Kept: TypeAlias = tuple[AnyWorkload, bool, TrialRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """The last records of a sweep's children, by name."""

    settled: Mapping[str, AnyWorkload]
    pruned: tuple[int, ...]
    of_settled: Mapping[str, _Kept]
    of_moving: Mapping[str, _Kept]
    history: _History


# While a child is the same object, its record is unchanged. So of a thousand trials one is read again, and facts about
# finished ones are computed once for each that finishes.
_PASTS: dict[tuple[object, ...], _Past] = {}
MOST_SWEEPS = 50


def _history_of(sweep: Workload[Sweep], family: Family) -> _History:
    spec, pruned = sweep.spec, detail_of(sweep).pruned
    settled, moving = ({}, family.children) if family.moving is None else (family.settled, family.moving)
    may_go_on = spec.may_pause and not sweep.status.phase.is_final
    key = sweep.uid, spec.judged_by, may_go_on
    past = _PASTS.get(key)
    known = ({}, {}) if past is None else (past.of_settled, past.of_moving)
    of_moving = _read_records(spec.judged_by, moving, pruned, may_go_on, *known)
    if past is not None and past.settled is settled and past.pruned == pruned:
        of_settled, history = past.of_settled, past.history
    elif past is not None and past.pruned == pruned and (joined := _joined(past.settled, settled)) is not None:
        of_joined = _read_records(spec.judged_by, joined, pruned, may_go_on, *known)
        of_settled = {**past.of_settled, **of_joined}
        history = past.history.and_(spec, _History.of(spec, [record for _, _, record in of_joined.values()]))
    else:
        of_settled = _read_records(spec.judged_by, settled, pruned, may_go_on, *known)
        history = _History.of(spec, [record for _, _, record in of_settled.values()])
    if past is None and len(_PASTS) >= MOST_SWEEPS:
        _PASTS.clear()
    _PASTS[key] = _Past(settled=settled, pruned=pruned, of_settled=of_settled, of_moving=of_moving, history=history)
    recent = _History.of(spec, [record for _, _, record in of_moving.values()])
    return history.and_(spec, recent) if settled else recent


def _joined(before: Mapping[str, AnyWorkload], now: Mapping[str, AnyWorkload]) -> Mapping[str, AnyWorkload] | None:
    """Return the children that became settled after all others; None if anything else has changed."""
    if len(now) < len(before) or list(islice(now.items(), len(before))) != list(before.items()):
        return None
    return dict(islice(now.items(), len(before), None))


def _read_records(
    objectives: tuple[Objective, ...],
    children: Mapping[str, AnyWorkload],
    pruned: tuple[int, ...],
    may_go_on: bool,
    *known: Mapping[str, _Kept],
) -> dict[str, _Kept]:
    numbers, records = set(pruned), dict[str, _Kept]()
    for name, child in children.items():
        for records_before in known:
            before = records_before.get(name)
            if before is not None and before[0] is child and before[1] is (before[2].number in numbers):
                records[name] = before
                break
        else:
            if name.isdigit():
                is_pruned = int(name) in numbers
                record = _read_record(objectives, int(name), child, is_pruned, may_go_on)
                records[name] = child, is_pruned, record
    return records


def _read_record(
    objectives: tuple[Objective, ...], number: int, child: AnyWorkload, is_pruned: bool, may_go_on: bool
) -> TrialRecord:
    assert isinstance(child.spec, Training), "the children of a sweep are runs"
    progress = child.progress
    signed_values = [(metric_of(progress, objective.metric), objective.goal.sign) for objective in objectives]
    is_judged = all(value is not None for value, _ in signed_values)
    value = signed_values[0][0] if len(signed_values) == 1 else None
    scores = (
        tuple(sign * value for value, sign in signed_values if value is not None)
        if len(signed_values) > 1 and is_judged
        else ()
    )
    phase = child.status.phase
    has_checkpoint = progress is not None and progress.checkpoint_step is not None
    if not phase.is_final:
        state = TrialState.ACTIVE
    elif phase is Phase.SUCCEEDED:
        # It did not report the objective.
        state = TrialState.SUCCEEDED if is_judged else TrialState.FAILED
        if not is_judged and _has_begun_at_the_end(progress):
            state = TrialState.STOPPED
    elif is_pruned:
        is_paused = may_go_on and has_checkpoint and phase is Phase.STOPPED
        state = TrialState.PAUSED if is_paused else TrialState.PRUNED
    else:
        state = TrialState.FAILED if phase is Phase.FAILED else TrialState.STOPPED
    return TrialRecord(
        number=number,
        values=values_of(child.spec),
        state=state,
        value=value,
        step=None if progress is None else progress.step,
        scores=scores,
        num_left=_num_left(progress),
        has_checkpoint=has_checkpoint,
    )


def _num_left(progress: Progress | None) -> int | None:
    if progress is None or progress.total_steps is None or progress.step is None:
        return None
    return progress.total_steps - progress.step


def _has_begun_at_the_end(progress: Progress | None) -> bool:
    """Return whether nothing was left to do after the checkpoint from which it began."""
    return progress is not None and progress.resumed_step is not None and progress.resumed_step == progress.step


def _with_length(spec: Sweep, history: Sequence[TrialRecord], before: SweepDetail) -> SweepDetail:
    """Return the state with the length of a whole trial once known, if it determines the first rung."""
    if before.length is not None or spec.pruning is None or with_rungs(spec.pruning, None) is not None:
        return before
    if before.rungs:
        # An older version began it with rungs from the first step; reports at other rungs would not be comparable.
        return replace(before, length=FIRST_RUNG_PART)
    length = whole_length(history)
    is_early = length is not None and spec.has_pauses and has_early_rung(spec.pruning, length)
    return replace(before, length=length, is_early=is_early)


def _rungs_of(spec: Sweep, detail: SweepDetail) -> Prune | None:
    """Return the rule with its rungs; None without a rule, and while they are unknown."""
    return None if spec.pruning is None else with_rungs(spec.pruning, detail.length, is_early=detail.is_early)


def _prune(
    spec: Sweep, history: Sequence[TrialRecord], before: SweepDetail, known: SweepDetail
) -> tuple[tuple[RungReport, ...], tuple[int, ...], tuple[EarlyCurve, ...]]:
    """Return the values reported at rungs so far, the trials that were stopped there, and those before an early one.

    Args:
        known: The state before this pass with the length of a trial, if known now.
    """
    objective = spec.objective
    prune = _rungs_of(spec, known)
    if prune is None or objective is None:
        return before.rungs, before.pruned, before.curves
    # A trial that ran before the rungs were known has no values at earlier ones; one that resumed another's checkpoint
    # did not pass earlier intervals.
    is_new = before.length is None and known.length is not None
    is_last_alone = spec.is_population or is_new
    reports, pruned, arrived = list(before.rungs), list(before.pruned), dict[int, RungReport]()
    is_pausing = _keeps_checkpoints(spec, history)
    furthest: dict[int, int] = {}
    for other in reports:
        furthest[other.trial] = max(other.rung, furthest.get(other.trial, -1))
    on_way = [record for record in history if record.state is TrialState.ACTIVE and record.number not in furthest]
    curves = _follow(prune, objective, on_way, before) if known.is_early else {}
    for trial in history:
        if trial.value is None or trial.step is None:
            continue
        passed = range(num_rungs(prune, trial.step))
        for rung in passed[-1:] if is_last_alone else passed:
            if rung <= furthest.get(trial.number, -1):
                continue
            is_late = is_new and trial.step >= LATE * rung_steps(prune, rung)
            is_early = known.is_early and rung == 0
            curve = curves.pop(trial.number, None)
            is_unsettled = is_early and (curve is None or not curve.is_steady)
            report = RungReport(
                trial=trial.number, rung=rung, value=trial.value, step=trial.step, is_late=is_late,
                is_unsettled=is_unsettled,
            )  # fmt: skip
            reports.append(report)
            is_judged = trial.state is TrialState.ACTIVE and trial.number not in pruned and trial.num_left != 0
            if is_judged and is_pausing and not is_late:
                arrived[trial.number] = report
            elif (
                is_judged
                and not is_pausing
                and not spec.is_population
                and not is_early
                and is_pruned(prune, objective.goal, spec.seed, report, reports)
            ):
                pruned.append(trial.number)
    # All that arrived in this pass are among those that they are compared with.
    gone, is_last = _gone(history, reports), before.submitted >= spec.num_trials
    pruned += [
        trial
        for trial, report in arrived.items()
        if pauses(prune, objective.goal, report, reports, gone=gone, is_last=is_last)
    ]
    if spec.is_population:
        # Judged by its value at its last interval, once others have reached it too.
        last = {report.trial: report for report in sorted(reports, key=attrgetter("rung"))}
        for trial in history:
            is_judged = trial.state is TrialState.ACTIVE and trial.number in last and trial.number not in pruned
            if is_judged and _gives_way(spec, prune, trial, last[trial.number], reports, history, pruned):
                pruned.append(trial.number)
    return tuple(reports), tuple(pruned), tuple(curves.values())


def _follow(
    prune: Prune, objective: Objective, trials: Sequence[TrialRecord], before: SweepDetail
) -> dict[int, EarlyCurve]:
    """Return the curves of trials that have come to an early rung, or are on their way there."""
    known = {curve.trial: curve for curve in before.curves}
    curves = dict[int, EarlyCurve]()
    for trial in trials:
        if trial.value is not None and trial.step is not None:
            curve = followed(
                prune, objective.goal, known.get(trial.number), trial=trial.number, step=trial.step, value=trial.value
            )
            if curve is not None:
                curves[trial.number] = curve
    return curves


def _keeps_checkpoints(spec: Sweep, history: Sequence[TrialRecord]) -> bool:
    """Return whether trials pause, since at least one has kept a checkpoint."""
    return spec.may_pause and any(trial.has_checkpoint for trial in history)


def _gone(history: Sequence[TrialRecord], reports: Sequence[RungReport]) -> set[int]:
    """Return the trials with reports that cannot go on: deleted, failed, or stopped without a checkpoint."""
    over = (TrialState.FAILED, TrialState.STOPPED, TrialState.PRUNED)
    return {report.trial for report in reports} - {report.number for report in history if report.state not in over}


def _promotable(spec: Sweep, history: Sequence[TrialRecord], detail: SweepDetail) -> list[int]:
    """Return the paused trials that are to go on, most urgent first."""
    prune = _rungs_of(spec, detail)
    paused = {trial.number for trial in history if trial.state is TrialState.PAUSED}
    if prune is None or spec.objective is None or not paused:
        return []
    gone, is_last = _gone(history, detail.rungs), detail.submitted >= spec.num_trials
    return promotable(prune, spec.objective.goal, detail.rungs, paused=paused, gone=gone, is_last=is_last)


def _gives_way(
    spec: Sweep,
    prune: Prune,
    trial: TrialRecord,
    report: RungReport,
    reports: Sequence[RungReport],
    history: Sequence[TrialRecord],
    pruned: Sequence[int],
) -> bool:
    """Return whether a trial of a population is replaced by a copy of a better one, which has to exist."""
    assert spec.objective is not None
    if trial.num_left is not None and trial.num_left < rung_steps(prune, 0):
        return False  # a copy would have no steps left
    others = [other.value for other in reports if other.rung == report.rung and other.trial != report.trial]
    may_follow = num_wanted(spec, (*pruned, report.trial)) > num_wanted(spec, pruned)
    donors = _donors(spec, history, (*pruned, report.trial))
    return may_follow and bool(donors) and gives_way(prune, spec.objective.goal, report.value, others)


def _donors(spec: Sweep, history: Sequence[TrialRecord], pruned: Sequence[int]) -> list[TrialRecord]:
    """Return the best running trials, from whose checkpoints another may resume."""
    assert spec.prune is not None
    assert spec.objective is not None
    running = {
        trial.number: trial
        for trial in history
        if trial.state is TrialState.ACTIVE and trial.value is not None and trial.number not in pruned
    }
    values = {number: trial.value for number, trial in running.items() if trial.value is not None}
    best = best_part(spec.prune, spec.objective.goal, values) if values else []
    return [running[number] for number in best if running[number].has_checkpoint]


def num_wanted(spec: Sweep, pruned: Sequence[int]) -> int:
    """Return the number of trials wanted: of a population its size, and one for each that was replaced."""
    if not spec.is_population or spec.parallel is None:
        return spec.num_trials
    return min(spec.num_trials, spec.parallel + len(pruned))


def _stop_orders(family: Family, pruned: Sequence[int]) -> tuple[ChildIntent, ...]:
    children = (family.children.get(str(number)) for number in pruned)
    return tuple(
        ChildIntent(uid=child.uid, intent=Intent.STOP)
        for child in children
        if child is not None and not child.status.phase.is_final and child.intent is Intent.RUN
    )


def _resume_orders(family: Family, promoted: Sequence[int]) -> tuple[ChildIntent, ...]:
    return tuple(ChildIntent(uid=family.children[str(number)].uid, intent=Intent.RUN) for number in promoted)


def _best(spec: Sweep, records: Sequence[TrialRecord]) -> TrialRecord | None:
    if spec.objective is None:
        return None
    sign = spec.objective.goal.sign
    succeeded = [trial for trial in records if trial.state is TrialState.SUCCEEDED and trial.value is not None]
    return min(succeeded, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)


def _end(
    sweep: Workload[Sweep], family: Family, history: _History, detail: SweepDetail, now: float, *, is_exhausted: bool
) -> tuple[Phase, Reason] | None:
    """Return how the sweep ends, if it ends now.

    Args:
        is_exhausted: Whether no paused trial is to go on.
    """
    spec, best_trial = sweep.spec, _say_best(sweep, history)
    done = _progress(detail, spec, history.at_the_end())
    # A loss that is not finite is a result of some parameters, which a search has to explore; the program is sound.
    failed = [family.children[str(number)] for number in detail.failed]
    failed = [child for child in failed if child.status.reason.code is not Code.LOSS_NOT_FINITE]
    if len(failed) > spec.max_failed:
        first = failed[0]
        message = (
            f"{plural(len(failed), 'trial')} failed, more than `max_failed`, {spec.max_failed}; the first was "
            f"{first.spec.name}: {_failure(spec, first)}"
        )
        remedy = f"`fairlead logs {first.spec.name}` shows its output; then `fairlead resume {spec.name}` continues."
        return Phase.FAILED, Reason(code=Code.CHILD_FAILED, message=message, remedy=remedy)
    if _is_good_enough(spec, detail):
        message = f"it reached its target, {spec.stop.target:g}; {done}{best_trial}"
        return Phase.SUCCEEDED, Reason(code=Code.COMPLETED, message=message)
    if is_exhausted and detail.over >= num_wanted(spec, detail.pruned):
        if history.counts.get(TrialState.SUCCEEDED):
            return Phase.SUCCEEDED, Reason(code=Code.COMPLETED, message=f"{done}{best_trial}")
        return Phase.FAILED, Reason(
            code=Code.CHILD_FAILED, message=f"{done}, and none succeeded{_say_unjudged(sweep, family)}"
        )
    at = next_at(sweep, family, now)
    if at is not None and now >= at:
        message = f"its time, {describe_duration(spec.stop.duration_s or 0.0)}, is over; {done}{best_trial}"
        return Phase.SUCCEEDED, Reason(code=Code.COMPLETED, message=message)
    return search_end(spec, family.search, detail.submitted - detail.over, f"{done}{best_trial}")


def _proposed(
    sweep: Workload[Sweep], family: Family, detail: SweepDetail
) -> tuple[tuple[SubmitChild, ...], SweepDetail]:
    """Return the trials that an engine proposed since the last pass, and the detail with their names."""
    spec = sweep.spec
    # An engine does not know of the trials that go on after a resumption, and proposes as many as may run without them.
    room = min(num_wanted(spec, detail.pruned) - detail.submitted, MOST_AT_ONCE, _room(spec, family))
    new = new_proposals(family.search, detail.proposed, room)
    runs = (trial_run(spec, read_values(spec.space, proposal.values)) for proposal in new)
    orders = tuple(submit(sweep, str(number), run) for number, run in enumerate(runs, detail.submitted))
    return orders, replace(detail, proposed=(*detail.proposed, *(proposal.name for proposal in new)))


def _room(spec: Sweep, family: Family) -> int:
    """Return how many more trials may run now."""
    unfinished = family.unfinished
    if spec.parallel is not None:
        return max(0, spec.parallel - len(unfinished))
    # The next trial is submitted once the previous one is placed.
    return 0 if any(child.status.phase is Phase.PENDING for child in unfinished) else 1


def _submissions(
    sweep: Workload[Sweep], history: Sequence[TrialRecord], detail: SweepDetail, room: int
) -> tuple[SubmitChild, ...]:
    """Return the trials to submit now. Each knows the earlier ones, so they are chosen one by one."""
    left = num_wanted(sweep.spec, detail.pruned) - detail.submitted
    orders: list[SubmitChild] = []
    known = list(history)
    for number in range(detail.submitted, detail.submitted + max(0, min(left, room, MOST_AT_ONCE))):
        values, run = _next_trial(sweep, number, known, detail)
        orders.append(submit(sweep, str(number), run))
        known.append(TrialRecord(number=number, values=values, state=TrialState.ACTIVE))
    return tuple(orders)


def _next_trial(
    sweep: Workload[Sweep], number: int, known: Sequence[TrialRecord], detail: SweepDetail
) -> tuple[Mapping[str, Value], Training]:
    """Return the parameters of the next trial, and its run."""
    spec = sweep.spec
    if not spec.is_population or spec.parallel is None or number < spec.parallel:
        values = suggest(spec, number, known, detail.rungs)
        return values, trial_run(spec, values)
    # A replaced trial resumes itself with other parameters if no better one is running.
    before = detail.pruned[number - spec.parallel]
    donors = _donors(spec, known, detail.pruned) or [trial for trial in known if trial.number == before]
    key = (spec.seed, number, "pbt")
    if not donors:
        values = suggest(replace(spec, sampler=Sampler.RANDOM), number, known)
        return values, trial_run(spec, values)
    donor = donors[int(draw(*key, "donor") * len(donors))]
    values = explore(spec.space, donor.values, key)
    run = trial_run(spec, values)
    if donor.has_checkpoint:
        run = replace(run, checkpoint=replace(run.checkpoint, origin=child_name(sweep, str(donor.number))))
    return values, run


def _progress(detail: SweepDetail, spec: Sweep, history: _History) -> str:
    states = TrialState.PAUSED, TrialState.PRUNED, TrialState.FAILED, TrialState.STOPPED
    counts = ((history.counts.get(state, 0), state) for state in states)
    aside = [f"{number} {state}" for number, state in counts if number]
    return f"{detail.over} of {plural(num_wanted(spec, detail.pruned), 'trial')} are over" + (
        f" ({', '.join(aside)})" if aside else ""
    )


def _say_best(sweep: Workload[Sweep], history: _History) -> str:
    if sweep.spec.objectives:
        unbeaten = len(front(history.records))
        return f"; {plural(unbeaten, 'trial')} unbeaten" if unbeaten else ""
    objective, best = sweep.spec.objective, history.best
    if objective is None or best is None or best.value is None:
        return ""
    name = child_name(sweep, str(best.number))
    return f"; best {objective.metric} {best.value:.6g} by {name} ({say_values(sweep.spec, best.values)})"


def say_values(spec: Sweep, values: Mapping[str, Value]) -> str:
    """Format the values of parameters as they were written."""
    return ", ".join(f"{name} {text}" for name, text in texts_of(spec.space, values).items())


def _news(
    sweep: Workload[Sweep], family: Family, history: Sequence[TrialRecord], before: SweepDetail, detail: SweepDetail
) -> Event | None:
    """Return the event on trials: failures first, then those stopped or resumed at a rung, else a new best."""
    news: list[str] = []
    for number in detail.failed:
        if number not in before.failed:
            child = family.children[str(number)]
            news.append(f"{child.spec.name} failed: {_failure(sweep.spec, child)}")
    kind, code = "TrialFailed", Code.CHILD_FAILED
    if not news:
        code = Code.CHILDREN_RUNNING
        what = "paused" if _keeps_checkpoints(sweep.spec, history) else "pruned"
        news = [_say_pruned(sweep, what, detail, number) for number in detail.pruned if number not in before.pruned]
        kind = f"Trial{what.capitalize()}" if news else "TrialPromoted"
        news += [_say_promoted(sweep, detail, number) for number in before.pruned if number not in detail.pruned]
    if not news and detail.best is not None and detail.best_value != before.best_value and sweep.spec.objective:
        kind = "NewBest"
        news = [f"{child_name(sweep, str(detail.best))} has {sweep.spec.objective.metric} {detail.best_value:.6g}"]
    return Event(type=kind, reason=Reason(code=code, message="; ".join(news))) if news else None


def _say_pruned(sweep: Workload[Sweep], what: str, detail: SweepDetail, number: int) -> str:
    prune, objective, last = _at_last_rung(sweep, detail, number)
    name, step = child_name(sweep, str(number)), _seen_at(prune, last)
    return f"{name} was {what} by {prune.rule}: its {objective.metric} at step {step} was {last.value:.6g}"


def _say_promoted(sweep: Workload[Sweep], detail: SweepDetail, number: int) -> str:
    prune, objective, last = _at_last_rung(sweep, detail, number)
    name, step = child_name(sweep, str(number)), _seen_at(prune, last)
    return f"{name} continues: its {objective.metric} at step {step}, {last.value:.6g}, is among the best there now"


def why_stopped(sweep: Workload[Sweep], trial: AnyWorkload) -> str | None:
    """Return at which rung the sweep has paused or stopped a trial; None for a trial that it has not stopped."""
    number, status = trial.spec.name.removeprefix(child_name(sweep, "")), sweep.status
    if not number.isdigit() or int(number) not in detail_of(sweep).pruned:
        return None
    progress = trial.progress
    if not sweep.spec.may_pause or progress is None or progress.checkpoint_step is None:
        return f"stopped early {_say_rung(sweep, int(number))}"
    is_ending = status.phase is Phase.STOPPING and status.after_stop.phase is not Phase.SUSPENDED
    outlook = (_left_behind if is_ending or status.phase.is_final else _may_promote)(sweep)
    return f"paused {_say_rung(sweep, int(number))}{outlook}"


def last_words(sweep: Workload[Sweep], family: Family) -> tuple[Change, ...]:
    """Return the changes to paused trials that say that the sweep ended without promoting them."""
    changes = list[Change]()
    for number in detail_of(sweep).pruned:
        trial = family.children.get(str(number))
        if trial is None or trial.status.phase is not Phase.STOPPED:
            continue
        reason = trial.status.reason
        # The rung in the message may be an earlier one than the last report of the trial reached.
        message = reason.message.replace(_may_promote(sweep), _left_behind(sweep), 1)
        if message != reason.message:
            amended = replace(reason, message=message, remedy=f"`fairlead resume {trial.spec.name}` continues it.")
            status = replace(trial.status, reason=amended)
            changes.append(Change(workload_uid=trial.uid, version=trial.version, status=status))
    return tuple(changes)


def _may_promote(sweep: Workload[Sweep]) -> str:
    return f"; sweep {sweep.spec.name} may promote it later"


def _left_behind(sweep: Workload[Sweep]) -> str:
    return f"; sweep {sweep.spec.name} ended without promoting it"


def _say_rung(sweep: Workload[Sweep], number: int) -> str:
    prune, objective, last = _at_last_rung(sweep, detail_of(sweep), number)
    return f"by {prune.rule} at step {_seen_at(prune, last)}, with {objective.metric} {last.value:.6g}"


def _seen_at(prune: Prune, report: RungReport) -> int:
    """Return the step of a report's value, which may be beyond the rung: a supervisor looks twice a second."""
    return max(report.step, rung_steps(prune, report.rung))


def _at_last_rung(sweep: Workload[Sweep], detail: SweepDetail, number: int) -> tuple[Prune, Objective, RungReport]:
    """Return the rule with its rungs, the objective, and the report of a trial at the last rung that it reached."""
    objective = sweep.spec.objective
    prune = _rungs_of(sweep.spec, detail)
    assert prune is not None
    assert objective is not None
    return prune, objective, max((report for report in detail.rungs if report.trial == number), key=attrgetter("rung"))


def _say_unjudged(sweep: Workload[Sweep], family: Family) -> str:
    """Return what trials that ended without the objective reported instead; empty if there is none."""
    ended = [child for child in family.children.values() if child.status.phase is Phase.SUCCEEDED]
    names = [objective.metric for objective in sweep.spec.judged_by]
    lacking = [child for child in ended if any(metric_of(child.progress, name) is None for name in names)]
    if not lacking:
        return ""
    return f": {plural(len(lacking), 'trial')} ended without any value of {_quoted(names)}; {_reported(lacking)}"


def _reported(children: Iterable[AnyWorkload]) -> str:
    """Return the names of the values that runs reported, so that a misspelt one is seen."""
    metrics = {name for child in children if child.progress is not None for name in child.progress.metrics}
    metrics |= {"loss" for child in children if child.progress is not None and child.progress.loss is not None}
    return f"reported: {_quoted(sorted(metrics)[:5])}" if metrics else "nothing was reported"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _failure(spec: Sweep, child: AnyWorkload) -> str:
    if child.status.phase is Phase.SUCCEEDED and spec.judged_by:
        missing = [
            objective.metric for objective in spec.judged_by if metric_of(child.progress, objective.metric) is None
        ]
        message = f"it ended without any value of `{'` and `'.join(missing)}`"
        if spec.trial.metrics is not None or _reported([child]) != "nothing was reported":
            return f"{message}; {_reported([child])}"
        return (
            f"{message}; what it prints is read with `metrics: name=value` in the trial, or it calls `run.progress()`"
        )
    return child.status.reason.message


KIND = ParentKind(
    spec=Sweep, detail=SweepDetail, judge=judge, map_runs=map_runs, progress=progress, next_at=next_at,
    best=best_so_far, why_stopped=why_stopped, last_words=last_words, foresee=foresee, has_more=has_more,
)  # fmt: skip
