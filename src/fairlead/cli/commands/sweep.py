"""``fairlead sweep``: the trials of a sweep, its best one, and pictures of them."""

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
from fairlead.policy.search.trials import TrialRecord, TrialState, ranked
from fairlead.specs.goal import Goal
from fairlead.specs.search_space import show_value
from fairlead.specs.sweep import Sweep, trial_run
from fairlead.state.snapshot import Workload
from fairlead.sweeps import best_of, trials_in

SHOWN = ("best", "table", "plot")


@click.command()
@click.argument("what", type=click.Choice(SHOWN))
@click.argument("name", type=RunName())
@click.option("--parameter", help="With plot: draw this parameter against the objective instead of the history.")
@click.option(
    "--file", type=click.Path(path_type=Path), metavar="FILE", help="With plot: the SVG file; NAME.svg if not."
)
@json_option
@cluster_options
def sweep(target: Target, what: str, name: str, parameter: str | None, file: Path | None, json_: bool) -> None:
    """Show of the sweep NAME WHAT: best, its best trial; table, all of them; plot, a picture and what mattered.

    What mattered is the part of the variance of the objective's ranks that lies between values of a parameter.
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
    }


def _show_best(found: Workload[Sweep], history: list[TrialRecord], json_: bool) -> None:
    best = best_of(found, history)
    run = trial_run(found.spec, best.values)
    if json_:
        print(as_json({**_json(found, best), "run": run.run}))
        return
    objective = found.spec.objective
    assert objective is not None
    print(f"{child_name(found, str(best.number))}  {objective.metric} {best.value:.6g}  {say_values(best.values)}")
    print(run.run)


def _show_table(found: Workload[Sweep], history: list[TrialRecord], json_: bool) -> None:
    objective = found.spec.objective
    best_first = ranked(history, objective.goal) if objective is not None else []
    shown = [*best_first, *(each for each in history if each not in best_first)]
    if json_:
        print(as_json({"name": found.spec.name, "trials": [_json(found, each) for each in shown]}))
        return
    names = list(found.spec.parameters)
    metric = () if objective is None else (objective.metric,)
    rows: list[tuple[str, ...]] = [("TRIAL", "STATE", *metric, "STEP", *names)]
    for each in shown:
        value = () if objective is None else ("-" if each.value is None else f"{each.value:.6g}",)
        step = "-" if each.step is None else str(each.step)
        values = (show_value(each.values[name]) if name in each.values else "-" for name in names)
        rows.append((child_name(found, str(each.number)), each.state.value, *value, step, *values))
    print(table(rows))


def _plot(found: Workload[Sweep], history: list[TrialRecord], parameter: str | None, file: Path, json_: bool) -> None:
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
