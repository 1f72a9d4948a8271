"""``fairlead compare``: specs, results and code of runs side by side."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fairlead.cli.charts import Axis, Curve, chart
from fairlead.cli.names import RunName, find_run
from fairlead.cli.selecting import selection_options
from fairlead.cli.show import as_json, json_option, message, table
from fairlead.cli.svg_files import SvgFile
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.kept_code import KeptCode, package_differences
from fairlead.cluster.selection import RunSelection
from fairlead.control.pipelines.command import is_driver
from fairlead.errors import NotFound
from fairlead.frozen import dataclass
from fairlead.specs.formats.differences import explicit_values
from fairlead.specs.formats.secret_values import shown_value
from fairlead.specs.goal import Goal
from fairlead.state.run_times import active_until
from fairlead.state.series import Point, best, thinned, usual_goal
from fairlead.state.snapshot import Workload, is_leaf
from fairlead.text.lists import listed
from fairlead.text.quantities import describe_duration, plural

MOST_POINTS = 500
MOST_NAMED = 3
# The number of runs that a table has columns for, if they are chosen by labels.
MOST_SELECTED = 20
# Keys that differ between any two runs, or have no effect on results.
UNCOMPARED = frozenset({"name", "labels"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A compared run with its data."""

    run: Workload
    spec_fields: Mapping[str, str]
    series: Mapping[str, tuple[Point, ...]]
    code: KeptCode


@click.command()
@click.argument("names", nargs=-1, type=RunName(), metavar="[NAME]...")
@selection_options()
@click.option("--metric", "metrics", multiple=True, help="Show only this metric; may be repeated.")
@click.option("--plot", type=SvgFile(), metavar="FILE", help="Plot the metric over the steps as SVG.")
@json_option
@cluster_options
def compare(
    target: Target,
    names: tuple[str, ...],
    selection: RunSelection,
    metrics: tuple[str, ...],
    plot: Path | None,
    json_: bool,
) -> None:
    """Compare the specs, metrics and code of NAMES; code is compared to that of the first run.

    --label and --phase choose runs instead of NAMES, oldest first; of more than 20 the table and the plot have the
    newest.

    For each metric the last value is shown, and the best one if it was another. Curves of runs on a cluster exist as
    long as their pods; after that only the last values are shown.
    """
    cluster = target.open()
    if bool(names) is (selection != RunSelection()):
        raise click.UsageError("give NAMES, or choose runs by --label and --phase, and not both.")
    runs = [find_run(cluster, name) for name in names] or _selected(cluster, selection, is_all=json_ and plot is None)
    compared = [_look(cluster, run) for run in runs]
    known = list(dict.fromkeys(name for record in compared for name in _last(record)))
    for name in metrics:
        if name not in known:
            raise NotFound(f"None of these runs has reported {name!r}; they have: {', '.join(known) or 'nothing'}.")
    shown = list(metrics) or known
    if plot is not None:
        _draw(compared, shown, plot)
    if json_:
        print(as_json({"runs": [_json(record, shown) for record in compared], "differ": _differing(compared)}))
        return
    print(table(_rows(compared, shown, [f"labels.{name}" for name, value in selection.labels if value is None])))


def _selected(cluster: ClusterClient, selection: RunSelection, *, is_all: bool) -> list[Workload]:
    """Return the runs of a selection, oldest first; only the newest if there are too many for a table.

    Raises:
        NotFound: There is none.
    """
    newest = [run for run in cluster.select(selection) if is_leaf(run) and not is_driver(run.spec)]
    if not newest:
        raise NotFound(f"No run with {selection} is there to compare; `fairlead status --all` lists all.")
    if len(newest) > MOST_SELECTED and not is_all:
        message(f"These are the newest {MOST_SELECTED} of {len(newest)} runs with {selection}; --json has all.")
        newest = newest[:MOST_SELECTED]
    return newest[::-1]


def _look(cluster: ClusterClient, run: Workload) -> _Compared:
    return _Compared(
        run=run, spec_fields=explicit_values(run.spec), series=cluster.series(run.uid), code=cluster.code(run.uid)
    )


def _last(record: _Compared) -> dict[str, float]:
    """Return the last value of every metric, the loss first."""
    progress = record.run.progress
    metrics = {} if progress is None else dict(progress.metrics)
    if progress is not None and progress.loss is not None:
        metrics = {"loss": progress.loss, **metrics}
    return metrics | {name: points[-1].value for name, points in record.series.items()}


def _best(record: _Compared, metric: str) -> Point | None:
    return best(record.series.get(metric, ()), usual_goal(metric))


def _differing(compared: Sequence[_Compared]) -> list[str]:
    """Return the spec keys whose values are not all equal."""
    keys = dict.fromkeys(key for record in compared for key in record.spec_fields)
    return [
        key
        for key in keys
        if key.partition(".")[0] not in UNCOMPARED and len({record.spec_fields.get(key) for record in compared}) > 1
    ]


def _rows(compared: Sequence[_Compared], metrics: Sequence[str], labels: Sequence[str]) -> list[tuple[str, ...]]:
    now = time.time()
    rows: list[tuple[str, ...]] = [("", *(record.run.spec.name for record in compared))]
    rows.append(("phase", *(record.run.status.phase.value for record in compared)))
    rows.append(("ran", *(describe_duration(active_until(record.run.status, now)) for record in compared)))
    rows.append(("step", *(_step(record.run) for record in compared)))
    rows += [(metric, *(_cell(record, metric) for record in compared)) for metric in metrics]
    keys = [*labels, *_differing(compared)]
    rows += [(key, *(shown_value(key, record.spec_fields.get(key, "-")) for record in compared)) for key in keys]
    rows.append(("code", *(_say_code(compared[0], record) for record in compared)))
    if any(_packages(compared[0], record) for record in compared):
        rows.append(("packages", *(listed(_packages(compared[0], record), MOST_NAMED) or "-" for record in compared)))
    return rows


def _step(run: Workload) -> str:
    return "-" if run.progress is None or run.progress.step is None else str(run.progress.step)


def _cell(record: _Compared, metric: str) -> str:
    last = _last(record).get(metric)
    if last is None:
        return "-"
    top = _best(record, metric)
    if top is None or top.value == last:
        return f"{last:.6g}"
    when = "" if top.step is None else f" at {top.step}"
    return f"{last:.6g} (best {top.value:.6g}{when})"


def _changed_files(first: _Compared, other: _Compared) -> list[str] | None:
    """Return the paths of differing files; None unless all files of both runs are stored."""
    if first.code.files is None or other.code.files is None:
        return None
    before = {file.path: file.digest for file in first.code.files}
    after = {file.path: file.digest for file in other.code.files}
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def _say_code(first: _Compared, other: _Compared) -> str:
    commit = None if other.code.git is None else other.code.git["commit"]
    if other is first:
        if commit is None:
            return "kept" if other.code.files is not None else "not kept"
        return f"{commit[:8]}{', with changes' if other.code.git and other.code.git['dirty'] else ''}"
    changed = _changed_files(first, other)
    if changed is None:
        return "not kept"
    if not changed:
        return "the same"
    verb = "differs" if len(changed) == 1 else "differ"
    return f"{plural(len(changed), 'file')} {verb}: {listed(changed, MOST_NAMED)}"


def _packages(first: _Compared, other: _Compared) -> list[str]:
    return [] if other is first else package_differences(first.code, other.code)


def _json(record: _Compared, metrics: Sequence[str]) -> dict[str, Any]:
    run, last = record.run, _last(record)
    summaries: dict[str, Any] = {}
    for name in metrics:
        if name in last:
            top = _best(record, name)
            points = thinned(record.series.get(name, ()), MOST_POINTS)
            summaries[name] = {
                "last": last[name],
                "best": None if top is None else asdict(top),
                "goal": usual_goal(name),
                "points": [[point.step, point.at, point.value] for point in points],
            }
    return {
        "name": run.spec.name,
        "uid": run.uid,
        "phase": run.status.phase.value,
        "step": None if run.progress is None else run.progress.step,
        "active_s": active_until(run.status, time.time()),
        "metrics": summaries,
        "spec": {key: shown_value(key, value) for key, value in record.spec_fields.items()},
        "commit": None if record.code.git is None else record.code.git["commit"],
    }


def _draw(compared: Sequence[_Compared], metrics: Sequence[str], file: Path) -> None:
    metric = metrics[0] if metrics else "loss"
    curves = [
        Curve(
            name=record.run.spec.name,
            places=[
                (float(place if point.step is None else point.step), point.value)
                for place, point in enumerate(thinned(record.series.get(metric, ()), MOST_POINTS))
            ],
        )
        for record in compared
    ]
    is_log = usual_goal(metric) is Goal.MINIMIZE and all(value > 0 for curve in curves for _, value in curve.places)
    file.write_text(chart(metric, curves, Axis(name="step"), Axis(name=metric, is_log=is_log)))
    message(f"Wrote {metric} of {plural(len(compared), 'run')} to {file}.")
