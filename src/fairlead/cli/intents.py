"""``fairlead stop``, ``suspend``, ``resume`` and ``delete``: what the user wants of runs from now on."""

import sys
import time
from collections.abc import Callable

import click

from fairlead.cli.names import RunName
from fairlead.cli.show import message
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.errors import Conflict, NotFound
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Workload

names = click.argument("names", nargs=-1, required=True, type=RunName())
wait_option = click.option("--no-wait", is_flag=True, help="Return at once instead of when it is so.")


@click.command()
@names
@wait_option
def stop(names: tuple[str, ...], no_wait: bool) -> None:
    """Stop NAMES: each gets a stop notice, saves a checkpoint of the step it is at, and ends."""
    for cluster, run in _find(names):
        if run.status.phase.is_final:
            message(f"{run.spec.name} is {run.status.phase.value} already.")
            continue
        _want(cluster, run, Intent.STOP, no_wait, lambda now: now.status.phase.is_final)


@click.command()
@names
@wait_option
def suspend(names: tuple[str, ...], no_wait: bool) -> None:
    """Stop NAMES for now: they save a checkpoint, hold nothing, and wait for `fairlead resume`."""
    for cluster, run in _find(names):
        if run.status.phase.is_final:
            raise Conflict(f"{run.spec.name} is {run.status.phase.value}; only an unfinished run can be suspended.")
        _want(cluster, run, Intent.SUSPEND, no_wait, lambda now: now.status.reason.code is Code.SUSPENDED)


@click.command()
@names
def resume(names: tuple[str, ...]) -> None:
    """Let NAMES go on from their newest good checkpoints, with the environment of this shell."""
    for cluster, run in _find(names):
        if run.status.phase is Phase.SUCCEEDED:
            raise Conflict(
                f"{run.spec.name} has succeeded; there is nothing left to do. `fairlead run` starts it anew."
            )
        cluster.set_intent(run.uid, Intent.RUN)
        cluster.nudge()
        message(f"{run.spec.name} goes on. Follow it with `fairlead attach {run.spec.name}`.")


@click.command()
@names
@click.option("--yes", is_flag=True, help="Do not ask.")
@wait_option
def delete(names: tuple[str, ...], yes: bool, no_wait: bool) -> None:
    """Stop NAMES and remove their records, logs and own checkpoints. Checkpoints at a place of yours stay."""
    wanted = _find(names)
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {', '.join(run.spec.name for _, run in wanted)} and their logs?", abort=True, err=True)
    for cluster, run in wanted:
        cluster.set_intent(run.uid, Intent.DELETE)
        cluster.nudge()
        while not no_wait:
            try:
                cluster.store.get(run.uid)
            except NotFound:
                message(f"{run.spec.name} is deleted.")
                break
            cluster.wait(0.5)


def _find(names: tuple[str, ...]) -> list[tuple[LocalCluster, Workload]]:
    """All of them before any is touched, so that a wrong name changes nothing."""
    cluster = LocalCluster.open()
    return [(cluster, cluster.find(name)) for name in names]


def _want(
    cluster: LocalCluster, run: Workload, intent: Intent, no_wait: bool, done: Callable[[Workload], bool]
) -> None:
    cluster.set_intent(run.uid, intent)
    cluster.nudge()
    looked = time.monotonic()
    while not no_wait:
        now = cluster.store.get(run.uid)
        if done(now) or now.status.phase.is_final:
            message(f"{run.spec.name} is {now.status.phase.value}: {now.status.reason.message}.")
            return
        if time.monotonic() - looked > 1.0:
            cluster.nudge()
            looked = time.monotonic()
        cluster.wait(0.5)
