"""Shows one workload of any kind: its reason, progress, curves, pods or children, events, output and spec."""

import re
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from fairlead.cluster.output import NOTE, LogQuery, describe_dropped
from fairlead.control.pipelines.command import is_pipeline
from fairlead.control.pipelines.submission import pipeline_of, shown_phase, shown_spec
from fairlead.control.pipelines.submission import progress_of as steps_of
from fairlead.control.pipelines.task_lines import LINE, read_task_lines
from fairlead.errors import Conflict, NotAllowed, NotFound
from fairlead.policy.kinds.parents import child_name
from fairlead.policy.kinds.progress import progress_of, warning_of
from fairlead.policy.kinds.serving import replica_counts
from fairlead.policy.kinds.table import parent_of
from fairlead.policy.queue.run_forecast import forecast
from fairlead.policy.search.trials import front, ranked
from fairlead.specs.formats.rendering import to_yaml
from fairlead.specs.search_space import texts_of
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.reasons import JUST_SUBMITTED
from fairlead.state.run_times import active_until
from fairlead.state.snapshot import AnyWorkload, Phase, Pod, Workload, is_leaf
from fairlead.sweeps import best_of, trials_in
from fairlead.text.money import describe_microusd
from fairlead.text.quantities import describe_need
from fairlead.web.curves import MetricCurve, curve
from fairlead.web.expected_starts import expected_starts, snapshot_of
from fairlead.web.view import Answer, BadQuery, Missing, Question
from fairlead.web.views.runs import kind_of, row_of

MOST_LINES, MOST_LINE, MOST_EVENTS, MOST_CHILDREN, MOST_CURVES, MOST_PODS = 200, 4_000, 50, 200, 24, 64
MOST_STEPS = 1_000


def workload(question: Question, uid: str) -> Answer:
    """Show a workload in full.

    Raises:
        Missing: No such workload.
    """
    cluster = question.cluster
    try:
        run = cluster.get(uid)
        parent = None if run.parent is None else _parent(question, run.parent)
        values = {
            "run": run,
            "kind": kind_of(run),
            "parent": parent,
            "active_s": active_until(run.status, question.now),
            "progress": progress_of(run),
            "part": _completed_share(run),
            "warning": warning_of(run, question.now),
            "spec": to_yaml(_spec_to_show(run.spec), form="short", shows_secrets=False),
            "events": _events(question, run),
            "kept_at": cluster.kept_at(run),
            **(_run_values(question, run) if is_leaf(run) else _parent_values(question, run)),
        }
    except NotFound as error:
        raise Missing(str(error)) from error
    is_final = run.status.phase.is_final
    return Answer(title=run.spec.name, template="workload.html", values=values, look_again_s=30.0 if is_final else 1.0)


def _spec_to_show(spec: WorkloadSpec) -> WorkloadSpec:
    if not is_pipeline(spec):
        return spec
    return shown_spec(spec)


def _parent(question: Question, uid: str) -> AnyWorkload | None:
    try:
        return question.cluster.get(uid)
    except NotFound:  # deleted before its children
        return None


def _completed_share(run: AnyWorkload) -> float | None:
    """Return the completed part of its steps; None if their number is unknown."""
    progress = run.progress
    if progress is None or progress.step is None or not progress.total_steps:
        return None
    return min(1.0, progress.step / progress.total_steps)


def _run_values(question: Question, run: Workload) -> dict[str, Any]:
    cluster = question.cluster
    cost = cluster.cost_of(run)
    waits = run.status.phase in (Phase.PENDING, Phase.RESTARTING)
    dropped = cluster.dropped_output(run)
    steps = _steps(question, run)
    curves = question.paced.value(("curves", run.uid, run.status.phase), lambda: _curves(question, run))
    return {
        "needs": describe_need(run.spec),
        "cost": None if cost is None else describe_microusd(cost),
        "ends": _ends(question, run, cost),
        "starts_at": expected_starts(question).get(run.uid) if waits else None,
        "curves": curves[:MOST_CURVES],
        "num_curves": len(curves),
        "steps": steps[:MOST_STEPS],
        "num_steps": len(steps),
        "pods": _pods(run, cluster.pods(run.uid)),
        "dropped": describe_dropped(dropped) if dropped else None,
        "log": _log(question, run),
    }


def _ends(question: Question, run: Workload, cost: int | None) -> dict[str, Any] | None:
    """Forecast the end of a working run as Unix times, and its cost by then; None without a forecast."""
    if run.status.phase is not Phase.RUNNING:
        return None
    try:
        prediction = forecast(run, snapshot_of(question), question.now, cost)
    except NotAllowed:
        return None
    if prediction is None:
        return None
    amounts = [prediction.microusd(end_s) for end_s in (prediction.low_s, prediction.high_s)]
    return {
        "likely": question.now + prediction.likely_s,
        "low": question.now + prediction.low_s,
        "high": question.now + prediction.high_s,
        "basis": prediction.basis,
        "cost": " to ".join(describe_microusd(amount) for amount in amounts if amount is not None),
    }


def _curves(question: Question, run: Workload) -> list[MetricCurve]:
    series = question.cluster.series(run.uid)
    return [
        curve(name, points) for name, points in sorted(series.items(), key=lambda item: (item[0] != "loss", item[0]))
    ]


def _pods(run: Workload, pods: tuple[Pod, ...]) -> list[dict[str, Any]]:
    newest = max((pod.attempt for pod in pods), default=0)
    last = {pod.index: pod for pod in sorted(pods, key=lambda pod: pod.replacement) if pod.attempt == newest}
    shown = [last[index] for index in sorted(last)][:MOST_PODS]
    num_ranks = run.spec.ranks_on_each_node
    return [
        {
            "pod": pod,
            "ranks": str(pod.index * num_ranks)
            if num_ranks == 1
            else f"{pod.index * num_ranks}-{pod.index * num_ranks + num_ranks - 1}",
            "exits": [
                f"rank {end.rank}: " + ("out of memory" if end.out_of_memory else _end(end.exit_code, end.signal))
                for end in pod.exits
                if not end.ok
            ],
        }
        for pod in shown
    ]


def _end(code: int | None, signal: int | None) -> str:
    return f"exit code {code}" if signal is None else f"signal {signal}"


def _steps(question: Question, run: Workload) -> list[dict[str, Any]]:
    """Return the tasks of a run that is a pipeline."""
    if not is_pipeline(run.spec):
        return []
    pipeline = pipeline_of(run.spec)
    if pipeline is None:
        return []
    if question.cluster.has_containers:
        # Read line by line: a program may print any number of them.
        progress = question.paced.value(
            ("steps", run.uid, run.status.phase),
            lambda: read_task_lines(pipeline, question.cluster.logs(run.uid, LogQuery(pattern=LINE))),
        )
    else:
        progress = steps_of(pipeline, run, Path(question.cluster.kept_at(run)))
    rows = []
    for task in (task for tasks in progress.steps.values() for task in tasks):
        began, ended = progress.times.get(task.name, (None, None))
        took = None if began is None or ended is None else ended - began
        rows.append({"name": task.name, "phase": shown_phase(task, run), "took_s": took, "message": task.message})
    return rows


def _log(question: Question, run: Workload) -> dict[str, Any]:
    """Return the newest output lines that contain the query's ``find``, of the rank given by ``rank``."""
    find, rank = question.query.get("find", "").strip(), question.query.get("rank", "").strip()
    if rank and not re.fullmatch(r"\d{1,6}", rank):
        raise BadQuery(f"rank: {rank!r} is not a rank; give a number from 0, or nothing for all ranks.")
    query = LogQuery(
        tail=MOST_LINES + 1,
        pattern=re.compile(re.escape(find), re.IGNORECASE) if find else None,
        ranks=frozenset({int(rank)}) if rank else None,
    )
    # A search for a text that is not there reads the whole output.
    lines = question.paced.value(
        ("log", run.uid, run.status.phase, find, rank),
        lambda: list(islice(question.cluster.logs(run.uid, query), 4 * MOST_LINES)),
    )
    shown = lines[-MOST_LINES:]
    return {
        "find": find,
        "rank": rank,
        "is_cut": len(lines) > MOST_LINES,
        "most": MOST_LINES,
        "has_ranks": run.spec.world_size > 1,
        "lines": [
            {
                "at": line.at,
                "rank": "-" if line.rank < 0 else str(line.rank),
                "is_error": line.stream == "e",
                "is_note": line.stream == NOTE,
                "text": line.text[:MOST_LINE] + (" ..." if len(line.text) > MOST_LINE else ""),
            }
            for line in shown
        ],
    }


def _events(question: Question, run: AnyWorkload) -> list[dict[str, Any]]:
    """Return events, newest first."""
    newest = question.cluster.events(run.uid)[-MOST_EVENTS:]
    return [
        {"at": event.at, "type": event.type, "reason": None if event.reason == JUST_SUBMITTED else event.reason}
        for event in reversed(newest)
    ]


def _parent_values(question: Question, run: AnyWorkload) -> dict[str, Any]:
    kind, children = parent_of(run.spec), _all_children(question, run)
    counts: dict[str, int] = {}
    for child in children:
        counts[child.status.phase.value] = counts.get(child.status.phase.value, 0) + 1
    newest = sorted(children, key=lambda child: (child.status.phase.is_final, -child.created_at))
    panel = None if kind is None else PANELS.get(kind.spec.__name__)
    return {
        "children": [row_of(child, question.now) for child in newest[:MOST_CHILDREN]],
        "num_children": len(children),
        "counts": [(phase.value, counts[phase.value]) for phase in Phase if phase.value in counts],
        **({} if panel is None else question.paced.value(("panel", run.uid), lambda: panel(question, run))),
    }


def _all_children(question: Question, run: AnyWorkload) -> tuple[AnyWorkload, ...]:
    return question.paced.value(("children", run.uid), lambda: question.cluster.children(run.uid))


def _sweep(question: Question, run: Workload[Any]) -> dict[str, Any]:
    """Return the trials of a sweep, best first."""
    trials, objective = trials_in(question.cluster, run), run.spec.objective
    best_first = front(trials) if objective is None else ranked(trials, objective.goal)
    shown = [*best_first, *(trial for trial in trials if trial not in best_first)][:MOST_CHILDREN]
    uids = {child.spec.name: child.uid for child in _all_children(question, run)}
    try:
        best = best_of(run, trials)
    except (NotFound, Conflict):  # none has succeeded yet, or none is better than another
        best = None
    names, space = list(run.spec.parameters), run.spec.space

    def value_of(trial: Any) -> str:
        if trial.scores:
            pairs = zip(run.spec.objectives, trial.scores, strict=True)
            return ", ".join(f"{objective.goal.sign * score:.6g}" for objective, score in pairs)
        return "-" if trial.value is None else f"{trial.value:.6g}"

    def trial_row(trial: Any) -> dict[str, Any]:
        name = child_name(run, str(trial.number))
        texts = texts_of(space, trial.values)
        return {
            "name": name,
            "uid": uids.get(name),
            "state": trial.state.value,
            "value": value_of(trial),
            "step": "-" if trial.step is None else str(trial.step),
            "values": [texts.get(key, "-") for key in names],
        }

    return {
        "trials": [trial_row(trial) for trial in shown],
        "best": None if best is None else trial_row(best),
        "parameters": names,
        "metric": ", ".join(objective.metric for objective in run.spec.judged_by) or None,
    }


def _endpoint(question: Question, run: Workload[Any]) -> dict[str, Any]:
    """Return the address of an endpoint, its replicas and its traffic, as ``fairlead status`` prints them."""
    detail, cluster = detail_of(run), question.cluster
    ready, wanted = replica_counts(run)
    try:
        demand = snapshot_of(question).demand.get(run.uid)
    except NotAllowed:  # the whole cluster is not ours to see
        demand = None
    return {
        "endpoint": {
            "url": cluster.endpoint_url(run),
            "revision": None if detail.serving is None else f"r{detail.serving}",
            "ready": ready,
            "wanted": wanted,
            "rate": None if demand is None else f"{demand.rate(question.now):.3g}/s, {demand.in_flight} in flight",
        }
    }


PANELS: Mapping[str, Callable[[Question, Workload[Any]], dict[str, Any]]] = {"Sweep": _sweep, "Serving": _endpoint}
"""What a kind shows beyond what all with children do; a kind that is not here shows its children."""
