"""Resolves parents and children for commands: descendants of a workload, and listings as trees."""

from collections.abc import Iterable, Sequence

from fairlead.cluster.client import ClusterClient
from fairlead.state.snapshot import AnyWorkload, Workload, is_leaf


def with_descendants(cluster: ClusterClient, run: AnyWorkload) -> list[AnyWorkload]:
    """Return a workload and all its descendants, each before its own children."""
    if is_leaf(run):
        return [run]
    return [run, *(member for child in cluster.children(run.uid) for member in with_descendants(cluster, child))]


def leaves(cluster: ClusterClient, runs: Iterable[AnyWorkload]) -> list[Workload]:
    """Return those workloads that have pods, among some workloads and their descendants; each once."""
    by_uid = {member.uid: member for run in runs for member in with_descendants(cluster, run) if is_leaf(member)}
    return list(by_uid.values())


def without_children(runs: Sequence[AnyWorkload]) -> list[AnyWorkload]:
    """Return the workloads whose parent is not among them, since an action on a parent covers its children."""
    uids = {run.uid for run in runs}
    return [run for run in runs if run.parent not in uids]


def by_family(runs: Sequence[AnyWorkload]) -> list[tuple[int, AnyWorkload]]:
    """Return workloads in order, but each after its parent if that is among them, with its depth."""
    ordered: list[tuple[int, AnyWorkload]] = []

    def add(run: AnyWorkload, depth: int) -> None:
        ordered.append((depth, run))
        for child in runs:
            if child.parent == run.uid:
                add(child, depth + 1)

    if all(run.parent is None for run in runs):
        return [(0, run) for run in runs]
    for run in without_children(runs):
        add(run, 0)
    return ordered
