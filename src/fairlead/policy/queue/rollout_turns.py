"""Finds the replicas of a rollout that replace others, and therefore do not queue again.

An endpoint with a new revision requests nothing beyond what it holds, except its surge, and that briefly. If its new
replicas waited behind earlier submissions, the old ones would continue, or be replaced one by one, for as long as a
large run waits.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from fairlead.policy.placement.placement import FreeCapacity, Placement, place
from fairlead.policy.queue.quotas import is_scavenger
from fairlead.specs.serving import Replica, Serving
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.snapshot import AnyWorkload, Pod, Workload


def taking_over(
    order: Sequence[Workload], holders: Iterable[Workload], parents: Iterable[AnyWorkload], free: FreeCapacity
) -> frozenset[str]:
    """Return the uids of the replicas that replace others and fit now.

    A revision has at most as many of them as served when it was requested, and all revisions of an endpoint together at
    most its surge more; further replicas queue.

    Args:
        order: All pending runs, in order.
    """
    endpoints = {
        parent.uid: cast("Workload[Serving]", parent)
        for parent in parents
        if isinstance(parent.spec, Serving) and detail_of(cast("Workload[Serving]", parent)).replaced
    }
    asking = [run for run in order if _endpoint_of(run) in endpoints and not is_scavenger(run.spec)]
    if not asking:
        return frozenset()
    holding = [run for run in holders if _endpoint_of(run) in endpoints]
    num_of_all = Counter(entry.parent for entry in holding)
    num_of_revision = Counter((entry.parent, _revision_of(entry)) for entry in holding)
    taking, held = set[str](), list[Placement]()
    for replica in asking:
        assert replica.parent is not None
        replaced, own = detail_of(endpoints[replica.parent]).replaced, (replica.parent, _revision_of(replica))
        endpoint = endpoints[replica.parent].spec
        most = replaced + endpoint.rollout.max_surge
        if num_of_revision[own] >= replaced or num_of_all[replica.parent] >= most:
            continue
        placed = place(replica.spec, free)
        if placed is None:
            continue
        num_of_all[replica.parent] += 1
        num_of_revision[own] += 1
        taking.add(replica.uid)
        held += placed  # which has already been taken from the free capacity
    for part in held:
        free.hold(part.node, part.grant, -1)
    return frozenset(taking)


def lasting(holders: Iterable[Workload]) -> list[Workload]:
    """Return the replicas that hold their places without end.

    While an endpoint has replicas of several revisions, those of the smaller one are about to go, or to be replaced.
    """
    by_endpoint: dict[str, dict[str, list[Workload]]] = {}
    for replica in holders:
        if isinstance(replica.spec, Replica):
            revisions = by_endpoint.setdefault(replica.parent or replica.uid, {})
            revisions.setdefault(_revision_of(replica), []).append(replica)
    return [replica for revisions in by_endpoint.values() for replica in max(revisions.values(), key=len)]


def nodes_of_peers(
    replica: Workload,
    holders: Iterable[Workload],
    pods: Mapping[str, Sequence[Pod]],
    started: Iterable[tuple[Workload, tuple[Placement, ...]]],
) -> tuple[str, ...]:
    """Return the nodes of the other replicas of the same endpoint, one for each pod; nothing for other runs.

    Args:
        holders: Runs that hold something.
        pods: Pods of each workload.
        started: Runs that start in this pass, with their places.
    """
    if not isinstance(replica.spec, Replica):
        return ()
    others = [run for run in holders if run.parent == replica.parent and run.uid != replica.uid]
    occupied = [pod.node for other in others for pod in pods.get(other.uid, ()) if not pod.phase.is_final]
    new = [at.node for run, placed in started if run.parent == replica.parent for at in placed]
    return (*occupied, *new)


def _endpoint_of(workload: Workload) -> str | None:
    """Return the uid of the endpoint of a replica."""
    return workload.parent if isinstance(workload.spec, Replica) else None


def _revision_of(workload: Workload) -> str:
    replica = workload.spec
    return replica.revision if isinstance(replica, Replica) else ""
