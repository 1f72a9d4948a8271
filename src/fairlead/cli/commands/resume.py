"""``fairlead resume``: resume runs, optionally with a changed spec."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import click

from fairlead.cli.overrides import set_option
from fairlead.cli.selecting import names_or_selection, selected_runs
from fairlead.cli.show import as_json, message, run_json
from fairlead.cli.specfiles import directory_of, is_spec_file, refuse_twice, workloads
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.selection import UNFINISHED, RunSelection
from fairlead.control.admission import IGNORABLE
from fairlead.control.pipelines.command import is_driver, is_pipeline
from fairlead.deferred import deferred
from fairlead.errors import Conflict
from fairlead.policy.kinds.lifecycle import check_intent
from fairlead.policy.kinds.table import leaf
from fairlead.specs.sweep import Sweep
from fairlead.specs.training import Training
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Workload

if TYPE_CHECKING:
    from fairlead.cli.commands import plan
    from fairlead.control import updates as spec_updates
    from fairlead.control.updates import Update
    from fairlead.specs.formats import settings as spec_settings
    from fairlead.specs.formats.settings import Setting
else:
    plan = deferred("fairlead.cli.commands.plan")
    spec_updates = deferred("fairlead.control.updates")
    spec_settings = deferred("fairlead.specs.formats.settings")


# All but succeeded runs, which have nothing left to do.
RESUMABLE = frozenset({Phase.FAILED, Phase.STOPPED, *UNFINISHED})


@click.command()
@names_or_selection(phases=RESUMABLE, noun="suspended runs, or with --phase stopped and failed ones,")
@set_option
@click.option("--ignore", multiple=True, type=click.Choice(IGNORABLE), help="Ignore this field on this cluster.")
@click.option("--dry-run", is_flag=True, help="Show what would change and happen, without doing it.")
@click.option(
    "--json", "json_", is_flag=True, help="Print the runs as JSON afterwards; of a dry run, what it would do."
)
@cluster_options
def resume(
    target: Target,
    names: tuple[str, ...],
    selection: RunSelection,
    everything: bool,
    yes: bool,
    settings: tuple[str, ...],
    ignore: tuple[str, ...],
    dry_run: bool,
    json_: bool,
) -> None:
    """Continue NAMES from their newest valid checkpoints, on this machine with the environment of this shell.

    --all and --label select suspended runs; add --phase to select stopped or failed ones.

    With a spec file after NAMES, each run gets the spec of its name in the file, on Kubernetes also the current files
    of `workdir`. The changes are shown. Checkpoints, logs and history stay. A run that has pods must be suspended
    first. Of a sweep `trials`, `parallel`, `stop` and `max_failed` can change, at any time: a finished one continues
    with more trials, chosen by those that it has had.
    """
    files = tuple(name for name in names if is_spec_file(name))
    names = tuple(name for name in names if not is_spec_file(name))
    if len(files) > 1:
        raise click.UsageError("give one spec file.")
    refuse_twice(files)
    new_settings = _read(settings)
    in_files = [spec for file in files for spec in workloads(file)]
    for spec in in_files:
        if is_pipeline(spec):
            spec_updates.refuse_pipeline(spec)
    specs = {spec.name: spec for spec in in_files if isinstance(spec, Training | Sweep)}
    if ignore and not specs:
        raise click.UsageError("--ignore is about the fields of a FILE.")
    cluster = target.open(is_to_submit=not dry_run)
    by_selection = everything or selection != RunSelection()
    names = names or (() if by_selection else tuple(specs))
    can = _can_be_resumed if selection.phases else _waits_for_resume
    yes = yes or dry_run
    runs = selected_runs(cluster, names, selection, everything=everything, yes=yes, verb="Resume", applies=can)
    is_new = bool(specs or new_settings)
    # All are checked before any is changed, so that an error in one changes none.
    updates = [_planned(cluster, run, specs, files, new_settings, ignore) for run in runs] if is_new else []
    for run in runs:
        is_checked = isinstance(run.spec, Sweep) and any(
            update.run is run and not update.is_empty for update in updates
        )
        if not is_checked:
            check_intent(run, Intent.RUN)
        _refuse_lone_driver(cluster, run)
    if dry_run:
        _tell_dry(cluster, runs, updates, json_=json_)
        return
    _carry_out(cluster, updates)
    for run in runs:
        cluster.set_intent(run.uid, Intent.RUN)
    cluster.nudge()
    for run in runs:
        message(
            f"{run.spec.name} continues{_unchanged_note(run, is_new)}. "
            f"Follow it with `fairlead attach {cluster.named(run)}`."
        )
    if json_:
        print(as_json([run_json(cluster.get(run.uid)) for run in runs]))


def _unchanged_note(run: AnyWorkload, is_new: bool) -> str:
    """Say that an edited file of a failed run does not count by itself."""
    if is_new or run.status.phase is not Phase.FAILED or not isinstance(run.spec, Training) or is_driver(run.spec):
        return ""
    return " with the spec that it had (give its FILE to change it)"


def _refuse_lone_driver(cluster: ClusterClient, run: AnyWorkload) -> None:
    """Refuse the driver of a finished pipeline, since the runs that it requests would not be submitted."""
    if run.parent is None or not is_driver(run.spec):
        return
    pipeline = cluster.get(run.parent)
    if pipeline.status.phase.is_final:
        name = pipeline.spec.name
        raise Conflict(f"{run.spec.name} runs the steps of {name}; `fairlead resume {name}` continues both.")


def _waits_for_resume(run: AnyWorkload) -> bool:
    return not run.status.phase.is_final and run.intent is Intent.SUSPEND


def _can_be_resumed(run: AnyWorkload) -> bool:
    """Return whether a run is suspended, stopped or finished, and can be resumed."""
    try:
        check_intent(run, Intent.RUN)
    except Conflict:
        return False
    return run.intent is not Intent.RUN or run.status.phase.is_final


def _read(settings: tuple[str, ...]) -> "list[Setting]":
    if not settings:
        return []

    return [spec_settings.read_setting(text) for text in settings]


def _carry_out(cluster: ClusterClient, updates: "list[Update]") -> None:
    if updates:
        for update in updates:
            _tell(update)
            spec_updates.carry_out(cluster, update)


def _planned(
    cluster: ClusterClient,
    run: AnyWorkload,
    specs: "dict[str, Training | Sweep]",
    files: tuple[str, ...],
    new_settings: "list[Setting]",
    ignore: tuple[str, ...],
) -> "Update":
    spec = _of_run(specs, run.spec.name, files[0]) if specs else None
    # A relative directory is relative to the file, or else to the current directory.
    is_moved = any(setting.path[0] == "workdir" for setting in new_settings)
    directory = directory_of(files[0] if files else "-") if files or is_moved else None
    if isinstance(run.spec, Sweep) and (spec is None or isinstance(spec, Sweep)):
        sweep = cast("Workload[Sweep]", run)
        return spec_updates.plan_sweep_update(cluster, sweep, new_settings, spec=spec, directory=directory)
    if isinstance(spec, Sweep):
        raise Conflict(f"{run.spec.name} is a {type(run.spec).__name__}, and {files[0]} has a Sweep of that name.")
    return spec_updates.plan_update(
        cluster, leaf(run), new_settings, spec=spec, directory=directory, ignore=frozenset(ignore)
    )


def _of_run(specs: "dict[str, Training | Sweep]", name: str, file: str) -> "Training | Sweep":
    """Return the spec of a run in a file; a single spec also matches a run with a number appended to its name."""
    if name in specs:
        return specs[name]
    if len(specs) == 1:
        (spec,) = specs.values()
        if name.rpartition("-")[0] == spec.name and name.rpartition("-")[2].isdigit():
            return replace(spec, name=name)
    raise Conflict(
        f"{file} has no run named {name!r}; it has {', '.join(sorted(specs))}. Correct the name or the file."
    )


def _tell(update: "Update") -> None:
    name = update.run.spec.name
    if update.is_empty:
        message(f"{name}: nothing changes.")
        return
    message(f"{name} changes:")
    for line in _lines(update):
        message(f"  {line}")


def _lines(update: "Update") -> list[str]:
    lines = [str(difference) for difference in update.differences]
    return lines if update.new_files is None else [*lines, f"files of workdir: as they are now in {update.new_files}"]


def _tell_dry(cluster: ClusterClient, runs: list[AnyWorkload], updates: "list[Update]", *, json_: bool) -> None:
    now = time.time()
    resumed = Reason(code=Code.RESUMED, message="resumed")
    plans: list[Update | None] = [*updates] if updates else [None] * len(runs)
    after = [run if update is None else update.updated() for run, update in zip(runs, plans, strict=True)]
    waiting = [
        replace(
            run, intent=Intent.RUN, status=replace(run.status, phase=Phase.PENDING, reason=resumed, started_at=None)
        )
        for run in after
    ]
    outcomes = plan.decide_on(cluster, waiting, now)
    rows = []
    for run, update, (status, starts_at) in zip(runs, plans, outcomes, strict=True):
        if json_:
            changes = () if update is None else update.differences
            rows.append(
                {
                    "name": run.spec.name,
                    "changes": [{"key": change.key, "old": change.old, "new": change.new} for change in changes],
                    "phase": status.phase.value,
                    "reason": status.reason.message,
                    "starts_at": starts_at if status.phase is Phase.PENDING else None,
                }
            )
            continue
        for line in [] if update is None else _lines(update):
            print(f"{run.spec.name}: {line}")
        for note in () if update is None else update.admitted.notes:
            print(f"chosen: {note}")
        print("\n".join(plan.describe_outcome(run.spec.name, status, starts_at)))
    if json_:
        print(as_json(rows))
