"""``fairlead prune``: remove finished runs whose retention has expired."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.retaining import Duration, keep_options
from fairlead.cli.selecting import confirm, selection_options
from fairlead.cli.show import as_json, describe_time, json_option, message, table
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.packages.pruning import remove, unneeded
from fairlead.cluster.selection import FINISHED, RunSelection
from fairlead.control.opening import open_local
from fairlead.control.pipelines.collection import collect
from fairlead.deferred import deferred
from fairlead.policy.kinds.retention import KEEP_ALL, Retention, expired
from fairlead.state.snapshot import AnyWorkload
from fairlead.text.quantities import describe_memory, plural

if TYPE_CHECKING:
    from fairlead.control.image import environments as image_environments
    from fairlead.control.pipelines.collection import Collected
else:
    image_environments = deferred("fairlead.control.image.environments")


@click.command()
@keep_options("--last")
@selection_options(phases=FINISHED, noun="runs")
@click.option("--artefacts", is_flag=True, help="Also remove outputs of steps and models that are no longer needed.")
@click.option("--environments", is_flag=True, help="Also remove environments that no unfinished run needs.")
@click.option(
    "--costs", type=Duration(), help="Remove cost records of days that are older, such as 400d, from a cluster."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@cluster_options
def prune(
    target: Target,
    keeps: Retention,
    selection: RunSelection,
    artefacts: bool,
    environments: bool,
    costs: float | None,
    dry_run: bool,
    yes: bool,
    json_: bool,
) -> None:
    """Remove records, logs and own checkpoints of finished runs, except those that --keep or --last keeps.

    Without these options the file `keep` of the state directory applies. Unfinished runs stay, and so do checkpoints at
    `checkpoint.to`.

    With --artefacts, outputs of pipeline steps are removed too, unless a kept run created or names them, a model
    version contains them, or a result that --keep or --last keeps has them. Without these options and that file, it
    removes no runs and no results.

    Environments of runs that are no longer there are removed, and with --environments those of all finished runs: their
    locks stay with the runs, and a resumed one has its environment made again. It also forgets the locks of requests
    for Kubernetes, and which layers of images were built from them; the images stay in their registry.

    With --costs, a cluster's objects with the costs of older days are removed, of all namespaces or of --namespace. The
    ledger's database stays as it is. Used alone, it removes no runs.
    """
    cluster = target.open()
    if costs is not None:
        _remove_costs(cluster, costs, target.namespace, dry_run=dry_run, yes=yes, json_=json_)
        if keeps == KEEP_ALL:
            return
    if artefacts and cluster.has_containers:
        raise click.UsageError("--artefacts is for outputs that are kept on this machine.")
    if environments and cluster.has_containers:
        raise click.UsageError("--environments is for those that are made on this machine.")
    keeps = cluster.keeps() if keeps == KEEP_ALL else keeps
    if keeps == KEEP_ALL and not artefacts and not environments:
        raise click.UsageError("say what is to be kept: --keep 30d, --last 20, or both; --keep 0s keeps nothing.")
    # All finished runs count towards the newest, also unselected ones.
    known = (*cluster.select(RunSelection(phases=FINISHED)), *cluster.unfinished())
    runs = [run for run in expired(known, keeps, time.time()) if selection.matches(run)]
    if not dry_run:
        cluster.sweep()
    spaces = {run.uid: cluster.space_of(run) for run in runs}
    total = _total(runs, spaces)
    if not json_:
        _show(runs, spaces)
    if runs and not dry_run:
        size = f", {describe_memory(total)}" if total else ""
        confirm(
            f"Remove {plural(len(runs), 'run')} with their logs and own checkpoints{size}?", yes=yes, announce=False
        )
        runs = _remove(cluster, runs)
        total = _total(runs, spaces)
    collected = _collect(keeps, runs, dry_run=dry_run) if artefacts else None
    num_environments = 0 if cluster.has_containers else _prune_environments(runs, all_=environments, dry_run=dry_run)
    if json_:
        rows = [_json(run, spaces[run.uid]) for run in runs]
        outputs: dict[str, Any] = {} if collected is None else {"artefacts": asdict(collected)}
        if num_environments:
            outputs["environments"] = num_environments
        print(as_json({"runs": rows, "bytes": total, "removed": not dry_run, **outputs}))
        return
    if collected is not None:
        done = "would be removed" if dry_run else "removed"
        size = describe_memory(collected.num_bytes)
        message(f"{plural(len(collected.digests), 'output')} of steps or models {done}, {size}.")
    if num_environments or environments:
        done = "would be removed" if dry_run else "removed"
        message(f"{plural(num_environments, 'environment')} of runs {done}.")
    if (collected is not None or environments) and not runs:
        return
    if not runs:
        message("No finished run needs to be removed.")
    else:
        done = "would be removed" if dry_run else "removed"
        message(f"{plural(len(runs), 'run')} {done}{f', {describe_memory(total)}' if total else ''}.")


def _remove_costs(
    cluster: ClusterClient, older_s: float, namespace: str | None, *, dry_run: bool, yes: bool, json_: bool
) -> None:
    published = cluster.published_costs
    if published is None:
        raise click.UsageError("--costs is for a cluster; the costs of this machine are in its database.")
    objects = published.cost_days(namespace, time.time() - older_s)
    description = f"{plural(len(objects), 'object')} with costs of days" + (
        f", from {objects[0][1][-10:]} on" if objects else ""
    )
    if objects and not dry_run:
        confirm(f"Remove {description}?", yes=yes, announce=False)
    num = len(objects) if dry_run else published.remove_cost_days(objects)
    if json_:
        print(as_json({"costs": [{"namespace": of, "name": name} for of, name in objects], "removed": not dry_run}))
    else:
        message(f"{plural(num, 'object')} with costs of days {'would be removed' if dry_run else 'removed'}.")


def _collect(keeps: Retention, runs: list[AnyWorkload], *, dry_run: bool) -> "Collected":
    return collect(open_local(), keeps, time.time(), without=frozenset(run.uid for run in runs), dry_run=dry_run)


def _prune_environments(runs: list[AnyWorkload], *, all_: bool, dry_run: bool) -> int:
    """Remove environments that no run needs after these runs are gone; of finished ones all if ``all_``."""
    local = open_local()
    if not local.home.packages.is_dir():
        return 0
    if all_ and not dry_run and local.home.environment_images.is_dir():
        image_environments.forget_images(local.home.environment_images)
    gone = {run.uid for run in runs}
    workloads = local.unfinished() if all_ else local.workloads()
    which = unneeded(local.home, (run.uid for run in workloads if run.uid not in gone))
    return len(which.directories) if dry_run else remove(local.home, which)


def _total(runs: list[AnyWorkload], spaces: dict[str, int | None]) -> int:
    return sum(spaces[run.uid] or 0 for run in runs)


def _show(runs: list[AnyWorkload], spaces: dict[str, int | None]) -> None:
    if runs:
        rows = [(run.spec.name, run.status.phase.value, _ended(run), _space(spaces[run.uid])) for run in runs]
        print(table([("NAME", "PHASE", "ENDED", "SPACE"), *rows]), flush=True)


def _remove(cluster: ClusterClient, runs: list[AnyWorkload]) -> list[AnyWorkload]:
    """Remove runs and return the removed ones: a run that was resumed meanwhile stays."""
    gone = []
    for run, is_gone in zip(runs, cluster.forget(runs), strict=True):
        if is_gone:
            gone.append(run)
        else:
            message(f"{run.spec.name} was not removed: it has changed meanwhile.")
    return gone


def _json(run: AnyWorkload, space: int | None) -> dict[str, Any]:
    return {
        "name": run.spec.name,
        "team": run.spec.team,
        "uid": run.uid,
        "phase": run.status.phase.value,
        "finished_at": run.status.finished_at,
        "bytes": space,
    }


def _ended(run: AnyWorkload) -> str:
    return "-" if run.status.finished_at is None else describe_time(run.status.finished_at)


def _space(space: int | None) -> str:
    return "-" if space is None else describe_memory(space)
