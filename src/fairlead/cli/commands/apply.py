"""``fairlead apply``: pipelines triggered by a schedule, or by changes or drift of data, and names of data sets."""

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from fairlead.api import only_workloads, submit
from fairlead.cli.plan_differences import steps_of, would_change
from fairlead.cli.show import as_json, describe_time, json_option, message, run_json, table
from fairlead.cli.specfiles import STDIN, directory_of, files_type, load, refuse_twice
from fairlead.cli.standing import apply_specs, describe_standing, standing_in
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.home import Home
from fairlead.control.admission import Admission, admit
from fairlead.control.datasets import apply_dataset, preload
from fairlead.control.opening import open_local
from fairlead.control.pipelines.submission import pipeline_of
from fairlead.control.pipelines.triggers import AppliedPipeline, all_applied, check, keep, remove, state_of
from fairlead.errors import Conflict, NotFound
from fairlead.runtime import shell_limits
from fairlead.specs.dataset import Dataset
from fairlead.specs.keys import Spec
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.cron_times import zone_of
from fairlead.text.quantities import describe_memory

Documents = tuple[tuple[Spec, ...], Path]
"""The specs of a file, and the directory that its relative paths start from."""


@click.command()
@click.argument("files", nargs=-1, type=files_type)
@click.option("--list", "lists", is_flag=True, help="List applied pipelines.")
@click.option("--remove", "removed", metavar="NAME", help="Stop running this pipeline automatically.")
@click.option("--team", default="default", show_default=True, help="With --remove: its team.")
@json_option
@cluster_options
def apply(target: Target, files: tuple[str, ...], lists: bool, removed: str | None, team: str, json_: bool) -> None:
    """Run the pipelines of FILES automatically: by their `schedule`, or when the data of `on` changes or drifts.

    A Dataset of FILES is stored, so that specs and `fairlead data` can use its name.

    On this machine a supervisor keeps running for them; after a reboot the next command starts it. On a cluster each is
    a Pipeline object, which the operator runs. A pipeline with neither key is submitted at once if any of its steps
    would run. A FILE of `-` is standard input.
    """
    if (bool(files) + lists + (removed is not None)) != 1:
        raise click.UsageError("give FILES, --list or --remove NAME: one of them.")
    if target.is_kubernetes:
        _on_cluster(target, files, lists=lists, removed=removed, json_=json_)
        return
    home = Home.open()
    if lists:
        _list(home, json_=json_)
    elif removed is not None:
        _remove(home, team, removed, json_=json_)
    else:
        refuse_twice(files)
        outcomes = _apply(home, list(map(_documents, files)))
        if json_:
            print(as_json(outcomes))
        else:
            for outcome in outcomes:
                message(outcome["said"])


def _on_cluster(target: Target, files: tuple[str, ...], *, lists: bool, removed: str | None, json_: bool) -> None:
    """Run the command on a cluster, where an applied pipeline is an object."""
    if removed is not None:
        raise Conflict(
            f"On a cluster {removed} is an object with its runs: `fairlead suspend {removed}` has it wait, `fairlead "
            f"stop {removed}` ends it, `fairlead delete {removed}` removes it with its runs."
        )
    cluster = target.open(is_to_submit=bool(files))
    if lists:
        pipelines = standing_in(cluster)
        if json_:
            print(as_json([run_json(pipeline) for pipeline in pipelines]))
        elif pipelines:
            print(table([("NAME", "TEAM", "RUNS"), *(describe_standing(pipeline) for pipeline in pipelines)]))
        else:
            message("Nothing is applied.")
        return
    refuse_twice(files)
    documents = list(map(_documents, files))
    outcomes = _apply_datasets(cluster, documents)
    outcomes += apply_specs(cluster, [(spec, directory) for specs, directory in documents for spec in _others(specs)])
    if json_:
        print(as_json(outcomes))
    else:
        for outcome in outcomes:
            message(outcome["said"])


def _documents(file: str) -> Documents:
    if file != STDIN and not Path(file).exists():
        raise NotFound(f"There is no file {file!r} here ({Path.cwd()}).")
    return load(file), directory_of(file)


def _others(specs: tuple[Spec, ...]) -> tuple[Spec, ...]:
    return tuple(spec for spec in specs if not isinstance(spec, Dataset))


def _apply_datasets(cluster: ClusterClient, documents: list[Documents]) -> list[dict[str, Any]]:
    outcomes = []
    for dataset, directory in [(spec, directory) for specs, directory in documents for spec in specs]:
        if not isinstance(dataset, Dataset):
            continue
        change, stored = apply_dataset(cluster, dataset, directory)
        what = {"applied": "Applied", "changed": "Changed", "none": "Unchanged:"}[change]
        sentence = f"{what} Dataset {stored.name}: `data: {{train: {stored.name}}}` reads {stored.source().origin}."
        if stored.preload:
            home = Home.open()
            size = preload(stored, home.data, home.secrets)
            sentence = f"{sentence} {describe_memory(size)} of it are in the cache of this machine."
        outcomes.append({"name": stored.name, "change": change, "said": sentence})
    return outcomes


def _apply(home: Home, documents: list[Documents]) -> list[dict[str, Any]]:
    cluster = open_local()
    outcomes = _apply_datasets(cluster, documents)
    runs = [
        (_only_run(spec), directory)
        for specs, directory in documents
        for spec in only_workloads(_others(specs), str(directory))
    ]
    wanted = [admit(cluster, spec, directory) for spec, directory in runs]
    applied = [_applied(admission) for admission in wanted]
    for entry in applied:
        check(entry)
    for admitted, entry in zip(wanted, applied, strict=True):
        name = entry.pipeline.name
        if entry.pipeline.schedule is None and entry.pipeline.on is None:
            outcomes.append(_run_if_changed(home, admitted, entry))
            continue
        is_new = keep(home, entry)
        when = _describe(entry, state_of(home, entry))
        sentence = f"Applied {name}: it runs {when}." if is_new else f"{name} is applied already: it runs {when}."
        outcomes.append({"name": name, "change": "applied" if is_new else "none", "said": sentence})
    cluster.nudge()
    return outcomes


def _applied(admitted: Admission[Training | Pipeline]) -> AppliedPipeline:
    pipeline = pipeline_of(admitted.spec)
    if pipeline is None:
        raise Conflict(
            f"{admitted.spec.name} is a run; `fairlead run` starts it. Only Pipelines and Datasets can be applied."
        )
    return AppliedPipeline(pipeline=pipeline, spec=admitted.spec, environ=shell_limits.environment(), at=time.time())


def _only_run(spec: WorkloadSpec) -> Training | Pipeline:
    if not isinstance(spec, (Training, Pipeline)):
        kind = type(spec).__name__
        raise Conflict(
            f"{spec.name} is a {kind}; `fairlead run` starts it. Only Pipelines and Datasets can be applied."
        )
    return spec


def _run_if_changed(home: Home, admitted: Admission[Training | Pipeline], applied: AppliedPipeline) -> dict[str, Any]:
    name = applied.pipeline.name
    ended = "; it no longer runs automatically" if remove(home, applied.pipeline.team, name) else ""
    if not would_change(steps_of(admitted.spec)):
        return {"name": name, "change": "none", "said": f"{name}: nothing would run{ended}."}
    run = submit(open_local(), admitted)
    return {"name": name, "change": "submitted", "said": f"Submitted {run.spec.name}{ended}."}


def _remove(home: Home, team: str, name: str, *, json_: bool) -> None:
    if not remove(home, team, name):
        names = ", ".join(applied.pipeline.name for applied, _ in all_applied(home)) or "nothing is"
        raise NotFound(f"No pipeline {name!r} of team {team!r} is applied; applied: {names}.")
    if json_:
        print(as_json([{"name": name, "change": "removed"}]))
    else:
        message(f"{name} no longer runs automatically. A run in progress continues.")


def _list(home: Home, *, json_: bool) -> None:
    entries = list(all_applied(home))
    if json_:
        print(as_json([_json(applied, state) for applied, state in entries]))
    elif entries:
        rows: list[tuple[str, ...]] = [("NAME", "TEAM", "RUNS")]
        rows += [
            (applied.pipeline.name, applied.pipeline.team, _describe(applied, state)) for applied, state in entries
        ]
        print(table(rows))
    else:
        message("Nothing is applied.")


def _json(applied: AppliedPipeline, state: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": applied.pipeline.name,
        "team": applied.pipeline.team,
        "applied_at": applied.at,
        "next_at": applied.next_at(state, time.time()),
        "data": [str(path) for path in applied.watched()],
        "drift": state.get("drift_said"),
    }


def _describe(applied: AppliedPipeline, state: dict[str, Any]) -> str:
    """Describe when it runs."""
    conditions, schedule = [], applied.pipeline.schedule
    moment = applied.next_at(state, time.time())
    if moment is not None and schedule is not None:
        local_time = datetime.fromtimestamp(moment, zone_of(schedule.timezone))
        conditions.append(f"next at {local_time:%Y-%m-%d %H:%M} {schedule.timezone} ({describe_time(moment)} here)")
    if applied.pipeline.on is not None:
        if applied.pipeline.on.data:
            conditions.append(f"when {', '.join(applied.pipeline.on.data)} changes")
        if applied.pipeline.on.drift is not None:
            seen = state.get("drift_said")
            conditions.append(f"when {applied.pipeline.on.drift.data} drifts" + (f" ({seen})" if seen else ""))
    return " and ".join(conditions)
