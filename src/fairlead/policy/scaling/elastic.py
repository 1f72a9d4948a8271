"""Decides how many nodes an elastic gang gets: as many as are free within its bounds, and more later when that pays.

Whoever starts gets the fewest it asks for first; what is free then and promised to nobody is shared out node by node.
The next node goes to the gang that gains most by it in proportion to what it has, the greedy rule of marginal gains of
AFS (Hwang et al., NSDI 2021, section 4.2) for the product of all speeds, which is proportional fairness. Nobody has
measured how a gang scales, so its speed counts as its nodes: of k nodes the next adds 1/k. With n nodes to share out
among g gangs that is n log g and a placement for each node.

A running gang grows only by stopping, with a checkpoint, and starting anew. So it grows when it has run for
``PAUSE_S``, room for more has lasted for ``SETTLE_S``, nobody waits for that room, it has shown that it saves
checkpoints, and the time that it saves is more than what it is thrown back. Pollux (Qiao et al., OSDI 2021, section
4.2.1) weighs a change of size by its restart in the same way. What is left of a run of which nothing is known is
expected to be as long as what is behind it.

What a quota refuses cannot be seen before: a gang that was refused starts with its fewest nodes, and stays so.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fairlead.policy.disruption.preemption import restart_s
from fairlead.policy.kinds.changes import change_to, stop
from fairlead.policy.placement.placement import FreeCapacity, Placement, place, shape_of
from fairlead.policy.queue.durations import Durations
from fairlead.policy.queue.quotas import Ledger, is_scavenger
from fairlead.specs.gang import GangSpec
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Pod, Status, Workload
from fairlead.text.quantities import describe_duration, describe_nodes, plural

# What has been free for less may be asked for in a moment.
SETTLE_S = 300.0
# From one start of a gang until it may stop to grow.
PAUSE_S = 600.0


def share_out(
    gangs: Iterable[tuple[Workload, int]], take: Callable[[Workload], tuple[Placement, ...] | None]
) -> dict[str, list[Placement]]:
    """Return what elastic gangs get beyond the nodes they have, by uid; those that get nothing are left out.

    Args:
        gangs: Each with the nodes it has, in the order in which they come where they gain alike.
        take: Takes one more node for the gang; None when there is none.
    """
    more = dict[str, list[Placement]]()
    heap = [(num_nodes, turn, workload) for turn, (workload, num_nodes) in enumerate(gangs)]
    heapq.heapify(heap)
    while heap:
        num_nodes, turn, workload = heapq.heappop(heap)
        taken = take(workload) if num_nodes < (workload.spec.most_nodes or 0) else None
        if taken is not None:
            more.setdefault(workload.uid, []).extend(taken)
            heapq.heappush(heap, (num_nodes + 1, turn, workload))
    return more


def is_resizing(status: Status) -> bool:
    """Return whether the gang stops, or has stopped, only to go on with another number of nodes."""
    reason = status.next_reason
    return status.phase is Phase.STOPPING and reason is not None and reason.code is Code.RESIZED


def stays_small(status: Status) -> bool:
    """Return whether an elastic gang starts with its fewest nodes and grows no more."""
    return status.refusals > 0 or status.is_kept_small


def may_grow(workload: Workload, now: float) -> bool:
    """Return whether it is time to look for more nodes for an elastic gang."""
    status, progress = workload.status, workload.progress
    return (
        status.phase is Phase.RUNNING
        and workload.intent is Intent.RUN
        and (workload.spec.most_nodes or 0) > (status.nodes or 0)
        and not stays_small(status)
        and progress is not None
        and progress.checkpoint_step is not None
        and now - status.since >= PAUSE_S
    )


def is_wanted(waiting: Iterable[GangSpec], free: FreeCapacity, ledger: Ledger) -> bool:
    """Return whether what is free holds a single member of any that wait and might start, who may do with it later."""
    able = (spec for spec in waiting if not is_scavenger(spec) and ledger.exceeds(spec) is None)
    for spec in {shape_of(spec, free.doors): spec for spec in able}.values():
        placed = place(spec.at(1), free)
        if placed is not None:
            for part in placed:
                free.hold(part.node, part.grant, -1)
            return True
    return False


def grow(workload: Workload, more: int, live: tuple[Pod, ...], durations: Durations, now: float) -> list[Change]:
    """Stop the gang for so many more nodes once they have lasted, and tell of them before.

    Args:
        live: Its pods, in order.
    """
    status = workload.status
    if not more or not pays(workload, more, live, durations, now):
        if status.room_since is None:
            return []
        return [change_to(workload, replace(status, reason=says_no_room(workload), room_since=None))]
    if status.room_since is None:
        return [change_to(workload, replace(status, reason=says_room(workload, more), room_since=now))]
    if now - status.room_since < SETTLE_S:
        return []
    reason = says_grows(workload, more)
    return [stop(workload, live, Phase.PENDING, reason, reason, now)]


def pays(workload: Workload, more: int, pods: Sequence[Pod], durations: Durations, now: float) -> bool:
    """Return whether so many more nodes save the gang more time than it is thrown back by stopping for them."""
    num_nodes = workload.gang.nodes
    left_s = durations.ends_at(workload, pods, now) - now
    if left_s == math.inf:
        left_s = now - (workload.status.started_at or now)
    return left_s * more / (num_nodes + more) > restart_s(workload, pods, now)


def next_look(workload: Workload, now: float) -> float:
    """Return when time alone may next change what is decided on the size of a gang; infinity when it does not."""
    status = workload.status
    if workload.spec.most_nodes is None or status.phase is not Phase.RUNNING:
        return math.inf
    times = (status.since + PAUSE_S, math.inf if status.room_since is None else status.room_since + SETTLE_S)
    return min((at for at in times if at > now), default=math.inf)


def outlook(workload: Workload) -> str:
    """Return how many nodes an elastic gang runs on, and what would give it more; nothing for any other."""
    spec, num_nodes = workload.spec, workload.gang.nodes
    if spec.most_nodes is None:
        return ""
    if workload.status.refusals:
        return f"; runs on {num_nodes} of {describe_nodes(spec)}, and stays so since a quota refused more"
    if workload.status.is_kept_small:
        return f"; runs on {num_nodes} of {describe_nodes(spec)}, and stays so since it left more of them idle"
    missing = spec.most_nodes - num_nodes
    more = f"{missing} more are" if missing > 1 else "1 more is"
    return f"; runs on {num_nodes} of {describe_nodes(spec)}" + (f"; would grow when {more} free" if missing else "")


def says_room(workload: Workload, more: int) -> Reason:
    """There is room for more nodes, which it takes if that lasts."""
    what = f"{plural(more, 'more node')} {'is' if more == 1 else 'are'} free"
    return Reason(
        code=Code.RANKS_STARTED,
        message=f"runs on {workload.gang.nodes} of {describe_nodes(workload.spec)}; {what}, "
        "and it grows if they still are "
        f"in {describe_duration(SETTLE_S)} and nobody waits for them",
    )


def says_no_room(workload: Workload) -> Reason:
    """There was room for more nodes, and is no more."""
    return Reason(code=Code.RANKS_STARTED, message=outlook(workload).removeprefix("; "))


def says_grows(workload: Workload, more: int) -> Reason:
    """It stops to go on with more nodes."""
    num_nodes = workload.gang.nodes
    return Reason(
        code=Code.RESIZED,
        message=f"grows from {num_nodes} to {num_nodes + more} of {describe_nodes(workload.spec)}, "
        "which have been free for "
        f"{describe_duration(SETTLE_S)}; goes on from a checkpoint",
    )


def says_shrinks(workload: Workload, wanting: Workload, keeps: int) -> Reason:
    """It stops to go on with fewer nodes."""
    other, num_nodes = wanting.spec, workload.gang.nodes
    return Reason(
        code=Code.RESIZED,
        message=f"makes room for {other.name} of team {other.team}: of its {num_nodes} nodes it keeps at least "
        f"{keeps}; goes on from a checkpoint",
    )
