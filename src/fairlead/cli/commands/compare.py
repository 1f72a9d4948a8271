"""``fairlead compare``: specs, results and code of runs side by side."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fairlead.cli.charts import Axis, Curve, chart
from fairlead.cli.names import RunName, find_run
from fairlead.cli.show import as_json, json_option, message, table
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.kept_code import KeptCode, package_differences
from fairlead.errors import NotFound
from fairlead.frozen import dataclass
from fairlead.policy.kinds.lifecycle import active_until
from fairlead.specs.formats.differences import said
from fairlead.specs.goal import Goal
from fairlead.state.series import Point, best, thinned, usual_goal
from fairlead.state.snapshot import Workload
from fairlead.text.quantities import describe_duration, plural

MOST_POINTS = 500
MOST_NAMED = 3
# Keys that differ between any two runs, or have no effect on results.
SAID_ELSEWHERE = frozenset({"name", "labels"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A compared run with its data."""

    run: Workload
    said: Mapping[str, str]
    series: Mapping[str, tuple[Point, ...]]
    code: KeptCode


@click.command()
@click.argument("names", nargs=-1, required=True, type=RunName(), metavar="NAME...")
@click.option("--metric", "metrics", multiple=True, help="Show only this metric; may be repeated.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Plot the metric over the steps as SVG.")
@json_option
@cluster_options
def compare(target: Target, names: tuple[str, ...], metrics: tuple[str, ...], plot: Path | None, json_: bool) -> None:
    """Compare the specs, metrics and code of NAMES; code is compared to that of the first run.

    For each metric the last value is shown, and the best one if it was another. Curves of runs on a cluster exist as
    long as their pods; after that only the last values are shown.
    """
    cluster = target.open()
    compared = [_look(cluster, name) for name in names]
    known = list(dict.fromkeys(name for each in compared for name in _last(each)))
    for name in metrics:
        if name not in known:
            raise NotFound(f"None of these runs has reported {name!r}; they have: {', '.join(known) or 'nothing'}.")
    shown = list(metrics) or known
    if plot is not None:
        _draw(compared, shown, plot)
    if json_:
        print(as_json({"runs": [_json(each, shown) for each in compared], "differ": _differing(compared)}))
        return
    print(table(_rows(compared, shown)))


def _look(cluster: ClusterClient, name: str) -> _Compared:
    run = find_run(cluster, name)
    return _Compared(run=run, said=said(run.spec), series=cluster.series(run.uid), code=cluster.code(run.uid))


def _last(each: _Compared) -> dict[str, float]:
    """Return the last value of every metric, the loss first."""
    progress = each.run.progress
    found = {} if progress is None else dict(progress.metrics)
    if progress is not None and progress.loss is not None:
        found = {"loss": progress.loss, **found}
    return found | {name: points[-1].value for name, points in each.series.items()}


def _best(each: _Compared, metric: str) -> Point | None:
    return best(each.series.get(metric, ()), usual_goal(metric))


def _differing(compared: Sequence[_Compared]) -> list[str]:
    """Return the spec keys whose values are not all equal."""
    keys = dict.fromkeys(key for each in compared for key in each.said)
    return [
        key
        for key in keys
        if key.partition(".")[0] not in SAID_ELSEWHERE and len({each.said.get(key) for each in compared}) > 1
    ]


def _rows(compared: Sequence[_Compared], metrics: Sequence[str]) -> list[tuple[str, ...]]:
    now = time.time()
    rows: list[tuple[str, ...]] = [("", *(each.run.spec.name for each in compared))]
    rows.append(("phase", *(each.run.status.phase.value for each in compared)))
    rows.append(("ran", *(describe_duration(active_until(each.run.status, now)) for each in compared)))
    rows.append(("step", *(_step(each.run) for each in compared)))
    rows += [(metric, *(_cell(each, metric) for each in compared)) for metric in metrics]
    rows += [(key, *(each.said.get(key, "-") for each in compared)) for key in _differing(compared)]
    rows.append(("code", *(_say_code(compared[0], each) for each in compared)))
    if any(_packages(compared[0], each) for each in compared):
        rows.append(("packages", *(_some(_packages(compared[0], each)) for each in compared)))
    return rows


def _step(run: Workload) -> str:
    return "-" if run.progress is None or run.progress.step is None else str(run.progress.step)


def _cell(each: _Compared, metric: str) -> str:
    last = _last(each).get(metric)
    if last is None:
        return "-"
    top = _best(each, metric)
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
    return "the same" if not changed else f"{plural(len(changed), 'file')} differ: {_some(changed)}"


def _packages(first: _Compared, other: _Compared) -> list[str]:
    return [] if other is first else package_differences(first.code, other.code)


def _some(items: Sequence[str]) -> str:
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return (", ".join(items[:MOST_NAMED]) + more) or "-"


def _json(each: _Compared, metrics: Sequence[str]) -> dict[str, Any]:
    run, last = each.run, _last(each)
    found: dict[str, Any] = {}
    for name in metrics:
        if name in last:
            top = _best(each, name)
            points = thinned(each.series.get(name, ()), MOST_POINTS)
            found[name] = {
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
        "metrics": found,
        "spec": dict(each.said),
        "commit": None if each.code.git is None else each.code.git["commit"],
    }


def _draw(compared: Sequence[_Compared], metrics: Sequence[str], file: Path) -> None:
    metric = metrics[0] if metrics else "loss"
    curves = [
        Curve(
            name=each.run.spec.name,
            places=[
                (float(place if point.step is None else point.step), point.value)
                for place, point in enumerate(thinned(each.series.get(metric, ()), MOST_POINTS))
            ],
        )
        for each in compared
    ]
    is_log = usual_goal(metric) is Goal.MINIMIZE and all(value > 0 for curve in curves for _, value in curve.places)
    file.write_text(chart(metric, curves, Axis(name="step"), Axis(name=metric, is_log=is_log)))
    message(f"Wrote {metric} of {plural(len(compared), 'run')} to {file}.")
