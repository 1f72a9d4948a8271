"""Finds the replicas of a rollout that replace others, and therefore do not queue again.

An endpoint with a new revision requests nothing beyond what it holds, except its surge, and that briefly. If its new
replicas waited behind earlier submissions, the old ones would continue, or be replaced one by one, for as long as a
large run waits.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

from fairlead.policy.kinds.serving import detail_of
from fairlead.policy.placement.placement import FreeCapacity, Placement, place
from fairlead.policy.queue.quotas import is_scavenger
from fairlead.specs.serving import Replica, Serving
from fairlead.state.snapshot import AnyWorkload, Workload


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
        each.uid: cast("Workload[Serving]", each)
        for each in parents
        if isinstance(each.spec, Serving) and detail_of(cast("Workload[Serving]", each)).replaced
    }
    asking = [each for each in order if _endpoint_of(each) in endpoints and not is_scavenger(each.spec)]
    if not asking:
        return frozenset()
    there = [each for each in holders if _endpoint_of(each) in endpoints]
    num_of_all = Counter(each.parent for each in there)
    num_of_revision = Counter((each.parent, _revision_of(each)) for each in there)
    found, held = set[str](), list[Placement]()
    for each in asking:
        assert each.parent is not None
        replaced, own = detail_of(endpoints[each.parent]).replaced, (each.parent, _revision_of(each))
        most = replaced + endpoints[each.parent].spec.rollout.max_surge
        if num_of_revision[own] >= replaced or num_of_all[each.parent] >= most:
            continue
        placed = place(each.spec, free)
        if placed is None:
            continue
        num_of_all[each.parent] += 1
        num_of_revision[own] += 1
        found.add(each.uid)
        held += placed  # which has already been taken from the free capacity
    for part in held:
        free.hold(part.node, part.grant, -1)
    return frozenset(found)


def _endpoint_of(workload: Workload) -> str | None:
    """Return the uid of the endpoint of a replica."""
    return workload.parent if isinstance(workload.spec, Replica) else None


def _revision_of(workload: Workload) -> str:
    return workload.spec.revision if isinstance(workload.spec, Replica) else ""
