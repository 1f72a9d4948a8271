"""``fairlead stop``, ``suspend`` and ``delete``: change the intent of runs."""

import time
from collections.abc import Callable

import click

from fairlead.cli.families import leaves
from fairlead.cli.selecting import names_or_selection, selected_runs
from fairlead.cli.show import as_json, message, run_json
from fairlead.cli.target import Target, cluster_options
from fairlead.cli.troubles import Reaction, Troubles
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.selection import UNFINISHED, RunSelection
from fairlead.errors import NotFound
from fairlead.policy.kinds.lifecycle import check_intent
from fairlead.state.snapshot import AnyWorkload, Intent, Phase
from fairlead.text.quantities import describe_memory, plural

LOOK_S = 0.5
NUDGE_S = 1.0
DETACHED = 130

wait_option = click.option("--no-wait", is_flag=True, help="Do not wait for it to take effect.")
json_option = click.option("--json", "json_", is_flag=True, help="Print the runs as JSON afterwards.")


@click.command()
@names_or_selection(phases=UNFINISHED, noun="unfinished runs")
@wait_option
@json_option
@cluster_options
def stop(
    target: Target,
    names: tuple[str, ...],
    selection: RunSelection,
    everything: bool,
    yes: bool,
    no_wait: bool,
    json_: bool,
) -> None:
    """Stop NAMES: each gets a stop notice, saves a checkpoint of its current step, and ends."""
    cluster = target.open()
    runs = selected_runs(cluster, names, selection, everything=everything, yes=yes, verb="Stop", applies=_is_unfinished)
    for run in runs:
        if run.status.phase.is_final:
            message(f"{run.spec.name} is {run.status.phase.value} already.")
    going = [run for run in runs if not run.status.phase.is_final]
    _want(cluster, going, Intent.STOP, None if no_wait else lambda now: now.status.phase.is_final)
    _show(cluster, runs, json_)


@click.command()
@names_or_selection(phases=UNFINISHED, noun="unfinished runs")
@wait_option
@json_option
@cluster_options
def suspend(
    target: Target,
    names: tuple[str, ...],
    selection: RunSelection,
    everything: bool,
    yes: bool,
    no_wait: bool,
    json_: bool,
) -> None:
    """Suspend NAMES: each saves a checkpoint, releases its resources, and waits for `fairlead resume`."""
    cluster = target.open()
    runs = selected_runs(
        cluster, names, selection, everything=everything, yes=yes, verb="Suspend", applies=_can_be_suspended
    )
    for run in runs:
        check_intent(run, Intent.SUSPEND)
    _want(cluster, runs, Intent.SUSPEND, None if no_wait else _is_suspended)
    _show(cluster, runs, json_)


@click.command()
@names_or_selection(phases=Phase, noun="runs")
@wait_option
@json_option
@cluster_options
def delete(
    target: Target,
    names: tuple[str, ...],
    selection: RunSelection,
    everything: bool,
    yes: bool,
    no_wait: bool,
    json_: bool,
) -> None:
    """Stop NAMES and remove their records, logs and own checkpoints. Checkpoints at `checkpoint.to` stay."""
    cluster = target.open()
    runs = selected_runs(
        cluster,
        names,
        selection,
        everything=everything,
        yes=yes,
        verb="Delete",
        applies=lambda _: True,
        always_asks=True,
        warn=lambda runs: _tell_checkpoints(cluster, runs),
    )
    for run in runs:
        cluster.set_intent(run.uid, Intent.DELETE)
    cluster.nudge()
    troubles = Troubles(cluster)
    for run in runs:
        gone = not no_wait and _wait_until_gone(cluster, run, troubles)
        message(f"{run.spec.name} is deleted." if gone else f"{run.spec.name} will be deleted.")
    if json_:
        print(as_json([{"name": run.spec.name, "uid": run.uid, "deleted": not no_wait} for run in runs]))


def _tell_checkpoints(cluster: ClusterClient, runs: list[AnyWorkload]) -> None:
    """Print which checkpoints of each run are deleted with it and which stay."""
    for run in leaves(cluster, runs):
        own, to = cluster.own_checkpoints(run), run.spec.checkpoint.to
        if own is not None and own.num_bytes:
            steps = f" (newest: step {own.steps[-1]})" if own.steps else ""
            count = f"{plural(len(own.steps), 'checkpoint')}{steps}, {describe_memory(own.num_bytes)} in {own.place},"
            message(f"{run.spec.name}: {count} will be deleted.")
        elif to is not None:
            message(f"{run.spec.name}: its checkpoints in {to} stay.")
        elif own is None:
            message(f"{run.spec.name}: its checkpoints stay in the operator's place for checkpoints, if it has one.")


def _is_unfinished(run: AnyWorkload) -> bool:
    return not run.status.phase.is_final


def _can_be_suspended(run: AnyWorkload) -> bool:
    return _is_unfinished(run) and run.intent is Intent.RUN


def _is_suspended(run: AnyWorkload) -> bool:
    return run.status.phase.is_final or run.status.phase is Phase.SUSPENDED


def _want(
    cluster: ClusterClient, runs: list[AnyWorkload], intent: Intent, until: Callable[[AnyWorkload], bool] | None
) -> None:
    """Set the intent of all runs first, so that they stop in parallel; then wait for each, if requested."""
    changed: list[AnyWorkload] = []
    try:
        for run in runs:
            cluster.set_intent(run.uid, intent)
            changed.append(run)
        _wait_for(cluster, runs, until)
    except KeyboardInterrupt:
        names = ", ".join(run.spec.name for run in changed) or "no run"
        left = ", ".join(run.spec.name for run in runs[len(changed) :])
        message(
            f"\nInterrupted; {'suspend' if intent is Intent.SUSPEND else 'stop'} was requested for {names}"
            f"{f', not for {left}' if left else ''}; it goes on without this command."
        )
        raise click.exceptions.Exit(DETACHED) from None


def _wait_for(cluster: ClusterClient, runs: list[AnyWorkload], until: Callable[[AnyWorkload], bool] | None) -> None:
    """Wake the loop, and wait for each run, if requested."""
    cluster.nudge()
    troubles = Troubles(cluster)
    for run in runs if until is not None else ():
        now, nudged, is_told = cluster.get(run.uid), time.monotonic(), False
        reaction = Reaction(cluster, run)
        while until is not None and not until(now):
            if now.status.phase is Phase.STOPPING and not is_told:
                is_told = True
                message(f"{run.spec.name} is Stopping: {now.status.reason.message}.")
            if time.monotonic() - nudged > NUDGE_S:
                cluster.nudge()
                nudged = time.monotonic()
            troubles.tell()
            reaction.look(now)
            cluster.wait(LOOK_S)
            now = cluster.get(run.uid)
        message(f"{run.spec.name} is {now.status.phase.value}: {now.status.reason.message}.")


def _wait_until_gone(cluster: ClusterClient, run: AnyWorkload, troubles: Troubles) -> bool:
    reaction = Reaction(cluster, run)
    while True:
        try:
            now = cluster.get(run.uid)
        except NotFound:
            return True
        cluster.nudge()
        troubles.tell()
        reaction.look(now)
        cluster.wait(LOOK_S)


def _show(cluster: ClusterClient, runs: list[AnyWorkload], json_: bool) -> None:
    if json_:
        print(as_json([run_json(cluster.get(run.uid)) for run in runs]))
