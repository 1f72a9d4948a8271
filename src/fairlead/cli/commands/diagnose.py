"""``fairlead diagnose``: show what slow ranks cost a training, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.names import RunName, find
from fairlead.cli.show import as_json, json_option, table
from fairlead.cluster.local.pod_files import read_own_times
from fairlead.control.opening import open_local
from fairlead.errors import Conflict, InvalidSpec
from fairlead.policy.health.gang_times import OwnTimes
from fairlead.state.snapshot import is_leaf
from fairlead.traces.profiler_traces import SUFFIXES, own_times_of_traces
from fairlead.traces.step_trace import operations_of_reports, read_operations

if TYPE_CHECKING:
    from fairlead.policy.health.step_replay import StepGraph
    from fairlead.policy.health.what_if import WhatIf

MISSING = "This analysis needs one more package: `pip install 'fairlead[cluster,parquet]'`."
SHADES = " .:-=+*#"
WORST_SHOWN, COLUMNS = 8, 64
CAUSE_NAMES = {"worker": "slow workers", "stage": "unequal stages", "data": "unequal data"}


@click.command()
@click.argument("name", required=False, type=RunName())
@click.option(
    "--trace", type=click.Path(path_type=Path, exists=True),
    help="Directory with a trace of PyTorch's profiler for each rank (.json, .json.gz), or a file with the operations "
    "of all ranks, in the Parquet format of StragglerAnalysis.",
)  # fmt: skip
@json_option
def diagnose(name: str | None, trace: Path | None, json_: bool) -> None:
    """Show how much faster a training would be without stragglers, what causes them, and the slowest ranks.

    NAME is a run of this machine, of whose last steps the ranks have reported what they computed themselves.
    Each cause's share is the part of the lost time that is won back if that cause alone is undone. In the picture each
    row is a rank, each column a step; a darker sign stands for more computation than that of the median rank.
    """
    if (name is None) == (trace is None):
        raise click.UsageError("give the name of a run, or traces with --trace, one of the two.")
    try:
        from fairlead.policy.health.step_replay import step_graph
        from fairlead.policy.health.what_if import analyse
    except ModuleNotFoundError as error:
        raise InvalidSpec((MISSING,)) from error
    if trace is None:
        operations = operations_of_reports(_reports_of(str(name)))
    elif trace.is_dir() or trace.name.endswith(SUFFIXES):
        operations = operations_of_reports(own_times_of_traces(trace))
    else:
        operations = read_operations(trace)
    try:
        graph = step_graph(operations)
    except ValueError as error:
        raise InvalidSpec((f"{name or trace} is no trace of a training: {error}",)) from error
    result = analyse(graph)
    if json_:
        print(as_json(_as_object(graph, result)))
        return
    lost = 1 - 1 / result.slowdown
    print(
        f"A step takes {result.step_s:.3g} s, {result.slowdown:.3f} times as long as without stragglers "
        f"({result.ideal_s:.3g} s): {max(lost, 0):.1%} of the time is lost."
    )
    rows: list[tuple[str, ...]] = [("CAUSE", "SHARE OF THE LOST TIME")]
    rows += [(CAUSE_NAMES[cause], f"{share:.0%}") for cause, share in result.shares.items()]
    print(table(rows))
    print()
    print(table(_worst(graph, result)))
    print()
    print("\n".join(picture(graph)))


def _reports_of(name: str) -> dict[int, OwnTimes]:
    """Return the own times that all ranks of a run reported last.

    Raises:
        Conflict: Not all have.
    """
    cluster = open_local()
    run = find(cluster, name)
    if not is_leaf(run):
        raise Conflict(f"{name} has no ranks of its own; give one of its runs.")
    reports: dict[int, OwnTimes] = {}
    pods = [pod for pod in cluster.pods(run.uid) if pod.attempt == run.status.attempt]
    for pod in pods:
        reports |= read_own_times(cluster.home.pod(run.uid, pod.uid))
    size = run.gang.world_size
    if size < 2 or len(reports) < size:
        raise Conflict(
            f"{len(reports)} of {size} ranks of {name} have reported what they computed themselves. Ranks of a gang do "
            "once they call `run.resume(model=...)` and, after each step, `run.progress(step)`."
        )
    return reports


def _worst(graph: "StepGraph", result: "WhatIf") -> list[tuple[str, ...]]:
    workers = [
        (min(of_data, of_stage), rank, stage)
        for rank, of_data in result.by_data_rank.items()
        for stage, of_stage in result.by_stage.items()
    ]
    rows: list[tuple[str, ...]] = [("DATA RANK", "STAGE", "SLOWDOWN BY IT")]
    worst = sorted(workers, key=lambda worker: -worker[0])[:WORST_SHOWN]
    return rows + [(str(rank), str(stage), f"{slowdown:.3f}") for slowdown, rank, stage in worst]


def picture(graph: "StepGraph") -> list[str]:
    """Return a row of signs for each rank, a sign for each step (or group of steps)."""
    import numpy as np

    from fairlead.policy.health.what_if import own_of_workers

    own = own_of_workers(graph, graph.own_s)
    groups = np.array_split(np.arange(own.shape[2]), min(COLUMNS, own.shape[2]))
    own = np.stack([own[:, :, group].mean(axis=2) for group in groups], axis=2)
    relative = own / np.median(own, axis=(0, 1), keepdims=True)
    level = np.clip(((relative - 1) * 20).astype(int) + 2, 0, len(SHADES) - 1)
    width = max(len(str(own.shape[0] - 1)), 1)
    return [
        f"{rank:>{width}}.{stage} |{''.join(SHADES[shade] for shade in level[rank, stage])}|"
        for rank in range(own.shape[0])
        for stage in range(own.shape[1])
    ]


def _as_object(graph: "StepGraph", result: "WhatIf") -> dict[str, Any]:
    return {
        "slowdown": result.slowdown,
        "step_s": result.step_s,
        "ideal_s": result.ideal_s,
        "steps": len(graph.steps),
        "cause": result.cause,
        "shares": result.shares,
        "worst": {"data_rank": result.worst[0], "stage": result.worst[1]},
        "worst_workers": result.worst_workers,
        "last_stage": result.last_stage,
        "by_kind": result.by_kind,
        "by_data_rank": result.by_data_rank,
        "by_stage": result.by_stage,
    }
