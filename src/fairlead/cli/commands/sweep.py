"""``fairlead sweep``: the trials of a sweep, its best trial, and plots."""

from pathlib import Path
from typing import Any

import click

from fairlead.cli.charts import Axis, Curve, chart
from fairlead.cli.names import RunName, find
from fairlead.cli.show import as_json, json_option, message, table
from fairlead.cli.svg_files import SvgFile
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.errors import Conflict, NotFound
from fairlead.policy.kinds.parents import child_name
from fairlead.policy.kinds.sweep import say_values
from fairlead.policy.search.importance import importance
from fairlead.policy.search.trials import TrialRecord, TrialState, front, ranked
from fairlead.specs.goal import Goal
from fairlead.specs.search_space import texts_of
from fairlead.specs.sweep import Sweep, trial_run
from fairlead.state.snapshot import Workload
from fairlead.sweeps import best_of, front_of, trials_in

SHOWN = ("best", "table", "plot")


@click.command()
@click.argument("what", type=click.Choice(SHOWN), metavar="WHAT")
@click.argument("name", type=RunName())
@click.option("--parameter", help="With plot: plot the objective over this parameter instead of over trials.")
@click.option("--file", type=SvgFile(), metavar="FILE", help="With plot: the SVG file; by default NAME.svg.")
@json_option
@cluster_options
def sweep(target: Target, what: str, name: str, parameter: str | None, file: Path | None, json_: bool) -> None:
    """Show WHAT of the sweep NAME: `best`, its best trial; `table`, all trials; or `plot`, a plot as SVG with the
    importance of parameters.

    With several objectives `best` lists the Pareto front, and the plot shows the first two objectives. The importance
    of a parameter is the share of the variance of the objective's ranks that it explains by itself.
    """
    if what != "plot" and (parameter is not None or file is not None):
        raise click.UsageError("--parameter and --file are for `fairlead sweep plot`.")
    cluster = target.open()
    workload = _sweep(cluster, name)
    history = trials_in(cluster, workload)
    if what == "best":
        _show_best(workload, history, json_)
    elif what == "table":
        _show_table(workload, history, json_)
    else:
        _plot(workload, history, parameter, file or Path(f"{workload.spec.name}.svg"), json_)


def _sweep(cluster: ClusterClient, name: str) -> Workload[Sweep]:
    workload: Workload[Any] = find(cluster, name)
    if not isinstance(workload.spec, Sweep):
        raise Conflict(
            f"{workload.spec.name} is a {type(workload.spec).__name__}, not a Sweep; `fairlead status` shows it."
        )
    return workload


def _goal(workload: Workload[Sweep]) -> Goal:
    objective = workload.spec.objective
    if objective is None:
        raise Conflict(f"{workload.spec.name} has no objective, so that none of its runs is better than another.")
    return objective.goal


def _json(workload: Workload[Sweep], trial: TrialRecord) -> dict[str, Any]:
    return {
        "name": child_name(workload, str(trial.number)),
        "number": trial.number,
        "state": trial.state,
        "value": trial.value,
        "step": trial.step,
        "parameters": dict(trial.values),
        **({"objectives": _by_metric(workload, trial)} if workload.spec.objectives else {}),
    }


def _by_metric(workload: Workload[Sweep], trial: TrialRecord) -> dict[str, float]:
    """Return the reported values of several objectives; empty if one is missing."""
    objectives = workload.spec.objectives
    return {
        objective.metric: objective.goal.sign * score
        for objective, score in zip(objectives, trial.scores, strict=False)
    }


def _show_best(workload: Workload[Sweep], history: list[TrialRecord], json_: bool) -> None:
    if workload.spec.objectives:
        _show_front(workload, history, json_)
        return
    best = best_of(workload, history)
    run = trial_run(workload.spec, best.values)
    if json_:
        print(as_json({**_json(workload, best), "run": run.run}))
        return
    objective = workload.spec.objective
    assert objective is not None
    values = say_values(workload.spec, best.values)
    print(f"{child_name(workload, str(best.number))}  {objective.metric} {best.value:.6g}  {values}")
    print(run.run)


def _show_front(workload: Workload[Sweep], history: list[TrialRecord], json_: bool) -> None:
    unbeaten = front_of(workload, history)
    if json_:
        rows = [{**_json(workload, trial), "run": trial_run(workload.spec, trial.values).run} for trial in unbeaten]
        print(as_json({"name": workload.spec.name, "front": rows}))
    else:
        print(_table(workload, unbeaten))


def _show_table(workload: Workload[Sweep], history: list[TrialRecord], json_: bool) -> None:
    objective = workload.spec.objective
    best_first = front(history) if objective is None else ranked(history, objective.goal)
    shown = [*best_first, *(trial for trial in history if trial not in best_first)]
    if json_:
        print(as_json({"name": workload.spec.name, "trials": [_json(workload, trial) for trial in shown]}))
        return
    print(_table(workload, shown))


def _table(workload: Workload[Sweep], shown: list[TrialRecord]) -> str:
    names, metrics = list(workload.spec.parameters), [objective.metric for objective in workload.spec.judged_by]
    rows: list[tuple[str, ...]] = [("TRIAL", "STATE", *metrics, "STEP", *names)]
    for trial in shown:
        known = _by_metric(workload, trial) if workload.spec.objectives else dict.fromkeys(metrics, trial.value)
        texts_of_scores = ("-" if (value := known.get(metric)) is None else f"{value:.6g}" for metric in metrics)
        step = "-" if trial.step is None else str(trial.step)
        texts = texts_of(workload.spec.space, trial.values)
        values = (texts.get(name, "-") for name in names)
        rows.append((child_name(workload, str(trial.number)), trial.state.value, *texts_of_scores, step, *values))
    return table(rows)


def _plot(
    workload: Workload[Sweep], history: list[TrialRecord], parameter: str | None, file: Path, json_: bool
) -> None:
    if workload.spec.objectives:
        _plot_front(workload, history, parameter, file, json_)
        return
    goal, objective = _goal(workload), workload.spec.objective
    assert objective is not None
    scored = [
        (trial, trial.value) for trial in history if trial.value is not None and trial.state is TrialState.SUCCEEDED
    ]
    mattered = importance(workload.spec.space, history)
    if parameter is None:
        best: list[tuple[float, float]] = []
        for trial, value in scored:
            top = value if not best else min(best[-1][1], value, key=lambda known: goal.sign * known)
            best.append((float(trial.number), top))
        curves = [
            Curve(name="trials", places=[(float(trial.number), value) for trial, value in scored], is_joined=False),
            Curve(name="best so far", places=best),
        ]
        x = Axis(name="trial")
    else:
        known = next((candidate for candidate in workload.spec.space if candidate.name == parameter), None)
        if known is None:
            raise NotFound(
                f"{workload.spec.name} has no parameter {parameter!r}; it has: {', '.join(workload.spec.parameters)}."
            )
        places = [
            (float(setting) if isinstance(setting, (int, float)) else float(known.choices.index(setting)), value)
            for trial, value in scored
            if (setting := trial.values.get(parameter)) is not None
        ]
        words = ", ".join(f"{place} is {text}" for place, text in enumerate(known.texts))
        is_words = any(isinstance(choice, str) for choice in known.choices)
        curves = [Curve(name="trials", places=places, is_joined=False)]
        x = Axis(name=f"{parameter} ({words})" if is_words else parameter, is_log=known.is_log)
    file.write_text(chart(workload.spec.name, curves, x, Axis(name=objective.metric)))
    if json_:
        print(as_json({"file": str(file), "importance": mattered}))
        return
    message(f"Wrote {file}.")
    if mattered:
        print(table([("PARAMETER", "IMPORTANCE"), *((name, f"{part:.2f}") for name, part in mattered.items())]))


def _plot_front(
    workload: Workload[Sweep], history: list[TrialRecord], parameter: str | None, file: Path, json_: bool
) -> None:
    """Draw the first objective against the second, and mark the Pareto front over all objectives."""
    if parameter is not None:
        raise Conflict(
            f"{workload.spec.name} has several objectives, which are drawn without --parameter; leave it out."
        )
    x, y = (objective.metric for objective in workload.spec.objectives[:2])

    def places(trials: list[TrialRecord]) -> list[tuple[float, float]]:
        points = [
            _by_metric(workload, trial) for trial in trials if trial.scores and trial.state is TrialState.SUCCEEDED
        ]
        return [(point[x], point[y]) for point in points]

    curves = [
        Curve(name="trials", places=places(history), is_joined=False),
        Curve(
            name="unbeaten", places=places(front_of(workload, history)), is_joined=len(workload.spec.objectives) == 2
        ),
    ]
    file.write_text(chart(workload.spec.name, curves, Axis(name=x), Axis(name=y)))
    if json_:
        print(as_json({"file": str(file), "importance": {}}))
    else:
        message(f"Wrote {file}.")
