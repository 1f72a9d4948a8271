"""``fairlead sweep``: the trials of a sweep, its best trial, and plots."""

from pathlib import Path
from typing import Any

import click

from fairlead.cli.charts import Axis, Curve, chart
from fairlead.cli.names import RunName, find
from fairlead.cli.show import as_json, json_option, message, table
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.errors import Conflict, NotFound
from fairlead.policy.kinds.parents import child_name
from fairlead.policy.kinds.sweep import say_values
from fairlead.policy.search.importance import importance
from fairlead.policy.search.trials import TrialRecord, TrialState, front, ranked
from fairlead.specs.goal import Goal
from fairlead.specs.search_space import show_value
from fairlead.specs.sweep import Sweep, trial_run
from fairlead.state.snapshot import Workload
from fairlead.sweeps import best_of, front_of, trials_in

SHOWN = ("best", "table", "plot")


@click.command()
@click.argument("what", type=click.Choice(SHOWN), metavar="WHAT")
@click.argument("name", type=RunName())
@click.option("--parameter", help="With plot: plot the objective over this parameter instead of over trials.")
@click.option(
    "--file", type=click.Path(path_type=Path), metavar="FILE", help="With plot: the SVG file; by default NAME.svg."
)
@json_option
@cluster_options
def sweep(target: Target, what: str, name: str, parameter: str | None, file: Path | None, json_: bool) -> None:
    """Show WHAT of the sweep NAME: `best`, its best trial; `table`, all trials; or `plot`, a plot as SVG with the
    importance of parameters.

    With several objectives `best` lists the Pareto front, and the plot shows the first two objectives. The importance
    of a parameter is the share of the variance of the objective's ranks between its values.
    """
    if what != "plot" and (parameter is not None or file is not None):
        raise click.UsageError("--parameter and --file are for `fairlead sweep plot`.")
    cluster = target.open()
    found = _sweep(cluster, name)
    history = trials_in(cluster, found)
    if what == "best":
        _show_best(found, history, json_)
    elif what == "table":
        _show_table(found, history, json_)
    else:
        _plot(found, history, parameter, file or Path(f"{found.spec.name}.svg"), json_)


def _sweep(cluster: ClusterClient, name: str) -> Workload[Sweep]:
    found: Workload[Any] = find(cluster, name)
    if not isinstance(found.spec, Sweep):
        raise Conflict(f"{found.spec.name} is a {type(found.spec).__name__}, not a Sweep; `fairlead status` shows it.")
    return found


def _goal(found: Workload[Sweep]) -> Goal:
    objective = found.spec.objective
    if objective is None:
        raise Conflict(f"{found.spec.name} has no objective, so that none of its runs is better than another.")
    return objective.goal


def _json(found: Workload[Sweep], trial: TrialRecord) -> dict[str, Any]:
    return {
        "name": child_name(found, str(trial.number)),
        "number": trial.number,
        "state": trial.state,
        "value": trial.value,
        "step": trial.step,
        "parameters": dict(trial.values),
        **({"objectives": _by_metric(found, trial)} if found.spec.objectives else {}),
    }


def _by_metric(found: Workload[Sweep], trial: TrialRecord) -> dict[str, float]:
    """Return the reported values of several objectives; empty if one is missing."""
    objectives = found.spec.objectives
    return {each.metric: each.goal.sign * score for each, score in zip(objectives, trial.scores, strict=False)}


def _show_best(found: Workload[Sweep], history: list[TrialRecord], json_: bool) -> None:
    if found.spec.objectives:
        _show_front(found, history, json_)
        return
    best = best_of(found, history)
    run = trial_run(found.spec, best.values)
    if json_:
        print(as_json({**_json(found, best), "run": run.run}))
        return
    objective = found.spec.objective
    assert objective is not None
    print(f"{child_name(found, str(best.number))}  {objective.metric} {best.value:.6g}  {say_values(best.values)}")
    print(run.run)


def _show_front(found: Workload[Sweep], history: list[TrialRecord], json_: bool) -> None:
    unbeaten = front_of(found, history)
    if json_:
        rows = [{**_json(found, each), "run": trial_run(found.spec, each.values).run} for each in unbeaten]
        print(as_json({"name": found.spec.name, "front": rows}))
    else:
        print(_table(found, unbeaten))


def _show_table(found: Workload[Sweep], history: list[TrialRecord], json_: bool) -> None:
    objective = found.spec.objective
    best_first = front(history) if objective is None else ranked(history, objective.goal)
    shown = [*best_first, *(each for each in history if each not in best_first)]
    if json_:
        print(as_json({"name": found.spec.name, "trials": [_json(found, each) for each in shown]}))
        return
    print(_table(found, shown))


def _table(found: Workload[Sweep], shown: list[TrialRecord]) -> str:
    names, metrics = list(found.spec.parameters), [each.metric for each in found.spec.judged_by]
    rows: list[tuple[str, ...]] = [("TRIAL", "STATE", *metrics, "STEP", *names)]
    for each in shown:
        known = _by_metric(found, each) if found.spec.objectives else dict.fromkeys(metrics, each.value)
        told = ("-" if (value := known.get(metric)) is None else f"{value:.6g}" for metric in metrics)
        step = "-" if each.step is None else str(each.step)
        values = (show_value(each.values[name]) if name in each.values else "-" for name in names)
        rows.append((child_name(found, str(each.number)), each.state.value, *told, step, *values))
    return table(rows)


def _plot(found: Workload[Sweep], history: list[TrialRecord], parameter: str | None, file: Path, json_: bool) -> None:
    if found.spec.objectives:
        _plot_front(found, history, parameter, file, json_)
        return
    goal, objective = _goal(found), found.spec.objective
    assert objective is not None
    told = [(each, each.value) for each in history if each.value is not None and each.state is TrialState.SUCCEEDED]
    mattered = importance(found.spec.space, history)
    if parameter is None:
        best: list[tuple[float, float]] = []
        for each, value in told:
            top = value if not best else min(best[-1][1], value, key=lambda known: goal.sign * known)
            best.append((float(each.number), top))
        curves = [
            Curve(name="trials", places=[(float(each.number), value) for each, value in told], is_joined=False),
            Curve(name="best so far", places=best),
        ]
        x = Axis(name="trial")
    else:
        known = next((each for each in found.spec.space if each.name == parameter), None)
        if known is None:
            raise NotFound(
                f"{found.spec.name} has no parameter {parameter!r}; it has: {', '.join(found.spec.parameters)}."
            )
        places = [
            (float(given) if isinstance(given, (int, float)) else float(known.choices.index(given)), value)
            for each, value in told
            if (given := each.values.get(parameter)) is not None
        ]
        words = ", ".join(f"{place} is {show_value(choice)}" for place, choice in enumerate(known.choices))
        is_words = any(isinstance(choice, str) for choice in known.choices)
        curves = [Curve(name="trials", places=places, is_joined=False)]
        x = Axis(name=f"{parameter} ({words})" if is_words else parameter, is_log=known.is_log)
    file.write_text(chart(found.spec.name, curves, x, Axis(name=objective.metric)))
    if json_:
        print(as_json({"file": str(file), "importance": mattered}))
        return
    message(f"Wrote {file}.")
    if mattered:
        print(table([("PARAMETER", "IMPORTANCE"), *((name, f"{part:.2f}") for name, part in mattered.items())]))


def _plot_front(
    found: Workload[Sweep], history: list[TrialRecord], parameter: str | None, file: Path, json_: bool
) -> None:
    """Draw the first objective against the second, and mark the Pareto front over all objectives."""
    if parameter is not None:
        raise Conflict(f"{found.spec.name} has several objectives, which are drawn without --parameter; leave it out.")
    x, y = (each.metric for each in found.spec.objectives[:2])

    def places(trials: list[TrialRecord]) -> list[tuple[float, float]]:
        told = [_by_metric(found, each) for each in trials if each.scores and each.state is TrialState.SUCCEEDED]
        return [(each[x], each[y]) for each in told]

    curves = [
        Curve(name="trials", places=places(history), is_joined=False),
        Curve(name="unbeaten", places=places(front_of(found, history)), is_joined=len(found.spec.objectives) == 2),
    ]
    file.write_text(chart(found.spec.name, curves, Axis(name=x), Axis(name=y)))
    if json_:
        print(as_json({"file": str(file), "importance": {}}))
    else:
        message(f"Wrote {file}.")
