"""Parents and their children as commands meet them: all below a workload, and listings that show who is whose."""

from collections.abc import Iterable, Sequence

from fairlead.cluster.client import ClusterClient
from fairlead.state.snapshot import AnyWorkload, Workload, is_leaf


def with_descendants(cluster: ClusterClient, run: AnyWorkload) -> list[AnyWorkload]:
    """Return a workload, then all below it, each before its own children."""
    if is_leaf(run):
        return [run]
    return [run, *(each for child in cluster.children(run.uid) for each in with_descendants(cluster, child))]


def leaves(cluster: ClusterClient, runs: Iterable[AnyWorkload]) -> list[Workload]:
    """Return those of some workloads, and of all below them, that have pods; each once."""
    found = {each.uid: each for run in runs for each in with_descendants(cluster, run) if is_leaf(each)}
    return list(found.values())


def without_children(runs: Sequence[AnyWorkload]) -> list[AnyWorkload]:
    """Return those whose parent is not among them: what is done to a parent is done to its children."""
    uids = {run.uid for run in runs}
    return [run for run in runs if run.parent not in uids]


def by_family(runs: Sequence[AnyWorkload]) -> list[tuple[int, AnyWorkload]]:
    """Return workloads in their order, but each after its parent where that is among them, with its depth below it."""
    found: list[tuple[int, AnyWorkload]] = []

    def add(run: AnyWorkload, depth: int) -> None:
        found.append((depth, run))
        for child in runs:
            if child.parent == run.uid:
                add(child, depth + 1)

    if all(run.parent is None for run in runs):
        return [(0, run) for run in runs]
    for run in without_children(runs):
        add(run, 0)
    return found
