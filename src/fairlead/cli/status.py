"""``fairlead status``: a listing, or one run with the reason it is as it is."""

import time

import click

from fairlead.cli.names import RunName
from fairlead.cli.show import as_json, run_json, run_row, say_progress, say_reason, table
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.policy.quantities import plural, say_duration
from fairlead.state.snapshot import Workload

RECENT = 15


@click.command()
@click.argument("name", required=False, type=RunName())
@click.option("--all", "everything", is_flag=True, help="All runs, not only unfinished and recent ones.")
@click.option("--json", "json_", is_flag=True, help="JSON instead of a table.")
def status(name: str | None, everything: bool, json_: bool) -> None:
    """List unfinished and recent runs, or say how NAME is and why."""
    cluster = LocalCluster.open()
    cluster.nudge()
    if name is not None:
        workload = cluster.find(name)
        print(as_json(run_json(workload)) if json_ else _one(cluster, workload))
        return
    unfinished = cluster.store.active()[0]
    recent = cluster.workloads(limit=None if everything else RECENT)
    runs = [*unfinished, *(run for run in recent if run.uid not in {other.uid for other in unfinished})]
    if json_:
        print(as_json([run_json(run) for run in runs]))
    elif not runs:
        print("No runs yet. `fairlead run FILE` or `fairlead run -- python train.py` starts one.")
    else:
        print(table([("NAME", "PHASE", "RANKS", "STEP", "SUBMITTED", "REASON"), *(run_row(run) for run in runs)]))


def _one(cluster: LocalCluster, workload: Workload) -> str:
    spec, now = workload.spec, time.time()
    state = workload.status
    lines = [f"{spec.name} is {state.phase.value}: {say_reason(state.reason)}", ""]
    since = state.started_at
    if since is not None:
        lines.append(f"  running     {say_duration((state.finished_at or now) - since)} since its first start")
    lines.append(f"  ranks       {spec.world_size} on {plural(spec.nodes, 'node')}, attempt {state.attempt}")
    lines.append(f"  progress    {say_progress(workload.progress)}")
    if state.last_failure is not None:
        lines.append(f"  restarted   {state.last_failure.message}")
    pods = [pod for pod in cluster.pods(workload.uid) if pod.attempt == state.attempt]
    lines += [f"  pod {pod.index}       {pod.phase.value} on {pod.node}" for pod in pods]
    lines += ["", f"Next: `fairlead logs {spec.name}`, `fairlead events {spec.name}`"]
    return "\n".join(lines)
