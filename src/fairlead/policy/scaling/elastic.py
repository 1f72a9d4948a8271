"""Decides the number of nodes of an elastic gang: as many as are free within its bounds, and more later if that pays.

Each gang starts with its fewest nodes; what is then free and unpromised is distributed node by node. The next node goes
to the team that holds least for its weight, however many gangs it has, and there to the gang with the largest gain in
proportion to what it has, the greedy rule of marginal gains of AFS (Hwang et al., NSDI 2021, section 4.2) for the
product of all speeds, which is proportional fairness. The scaling of gangs is not measured, so speed counts as the
number of nodes: of k nodes the next adds 1/k. Distributing n nodes among g gangs costs n log g and a placement for each
node.

A running gang grows only by stopping, with a checkpoint, and starting again. So it grows once it has run for
``PAUSE_S``, room for more has lasted for ``SETTLE_S``, no run waits for that room, it has saved a checkpoint, and the
time that it saves exceeds what it loses. Pollux (Qiao et al., OSDI 2021, section 4.2.1) weighs a change of size against
its restart in the same way. A run of unknown length is expected to have as much left as it has run.

A refusal by a quota cannot be predicted: a gang that was refused starts with its fewest nodes, and stays so.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fairlead.policy.disruption.preemption import restart_s
from fairlead.policy.placement.placement import FreeCapacity, Placement, place, shape_of
from fairlead.policy.queue.changes import change_to, stop
from fairlead.policy.queue.durations import Durations
from fairlead.policy.queue.quotas import Ledger, is_scavenger
from fairlead.policy.queue.run_names import Reader
from fairlead.specs.gang import GangSpec
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Pod, Status, Workload
from fairlead.text.quantities import describe_duration, describe_nodes, plural

# Room that has been free for less may be needed in a moment.
SETTLE_S = 300.0
# The minimum time from one start of a gang until it may stop to grow.
PAUSE_S = 600.0


def share_out(
    gangs: Iterable[tuple[Workload, int]],
    take: Callable[[Workload], tuple[Placement, ...] | None],
    share: Callable[[str], float],
) -> dict[str, list[Placement]]:
    """Return the nodes that elastic gangs get beyond those they have, by uid; gangs that get none are omitted.

    Args:
        gangs: Each with the nodes it has, in the order that breaks ties.
        take: Allocates one more node for the gang; returns None if there is none.
        share: Returns the weighted share that a team holds now.
    """
    more = dict[str, list[Placement]]()
    heap = [(share(run.spec.team), num_nodes, turn, run) for turn, (run, num_nodes) in enumerate(gangs)]
    heapq.heapify(heap)
    while heap:
        held, num_nodes, turn, workload = heapq.heappop(heap)
        if held < (now_held := share(workload.spec.team)):
            # Another gang of the team has got more meanwhile.
            heapq.heappush(heap, (now_held, num_nodes, turn, workload))
            continue
        taken = take(workload) if num_nodes < (workload.spec.most_nodes or 0) else None
        if taken is not None:
            more.setdefault(workload.uid, []).extend(taken)
            heapq.heappush(heap, (share(workload.spec.team), num_nodes + 1, turn, workload))
    return more


def is_resizing(status: Status) -> bool:
    """Return whether the gang stops, or has stopped, only to continue with another number of nodes."""
    reason = status.after_stop.reason
    return status.phase is Phase.STOPPING and reason is not None and reason.code is Code.RESIZED


def stays_small(status: Status) -> bool:
    """Return whether an elastic gang starts with its fewest nodes and grows no more."""
    return status.failures.refusals > 0 or status.size.is_kept_small


def may_grow(workload: Workload, now: float) -> bool:
    """Return whether more nodes may be considered for an elastic gang now."""
    status, progress = workload.status, workload.progress
    return (
        status.phase is Phase.RUNNING
        and workload.intent is Intent.RUN
        and (workload.spec.most_nodes or 0) > (status.size.nodes or 0)
        and not stays_small(status)
        and progress is not None
        and progress.checkpoint_step is not None
        and now - status.since >= PAUSE_S
    )


def is_wanted(waiting: Iterable[GangSpec], free: FreeCapacity, ledger: Ledger) -> bool:
    """Return whether free capacity fits a pod of a pending run that may start, and so may use it later."""
    able = (spec for spec in waiting if not is_scavenger(spec) and ledger.exceeds(spec) is None)
    for spec in {shape_of(spec, free.doors): spec for spec in able}.values():
        placed = place(spec.at(1), free)
        if placed is not None:
            for part in placed:
                free.hold(part.node, part.grant, -1)
            return True
    return False


def grow(workload: Workload, more: int, live: tuple[Pod, ...], durations: Durations, now: float) -> list[Change]:
    """Stop the gang to grow once the room has lasted, and announce it before.

    Args:
        live: Its pods, in order.
    """
    status = workload.status
    if not more or not pays(workload, more, live, durations, now):
        if status.size.room_since is None:
            return []
        return [
            change_to(
                workload, replace(status, reason=says_no_room(workload), size=replace(status.size, room_since=None))
            )
        ]
    if status.size.room_since is None:
        return [
            change_to(
                workload, replace(status, reason=says_room(workload, more), size=replace(status.size, room_since=now))
            )
        ]
    if now - status.size.room_since < SETTLE_S:
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
    """Return when time alone may next change the decision on a gang's size; infinity if it does not."""
    status = workload.status
    if workload.spec.most_nodes is None or status.phase is not Phase.RUNNING:
        return math.inf
    times = (status.since + PAUSE_S, math.inf if status.size.room_since is None else status.size.room_since + SETTLE_S)
    return min((at for at in times if at > now), default=math.inf)


def outlook(workload: Workload) -> str:
    """Return on how many nodes an elastic gang runs, and what would give it more; empty for any other."""
    spec, num_nodes = workload.spec, workload.gang.nodes
    if spec.most_nodes is None:
        return ""
    if workload.status.failures.refusals:
        return f"; runs on {num_nodes} of {describe_nodes(spec)}, and stays so since a quota refused more"
    if workload.status.size.is_kept_small:
        return f"; runs on {num_nodes} of {describe_nodes(spec)}, and stays so since it left more of them idle"
    missing = spec.most_nodes - num_nodes
    more = f"{missing} more are" if missing > 1 else "1 more is"
    return f"; runs on {num_nodes} of {describe_nodes(spec)}" + (f"; would grow when {more} free" if missing else "")


def says_room(workload: Workload, more: int) -> Reason:
    """Return the reason that there is room for more nodes, to be used if it lasts."""
    what = f"{plural(more, 'more node')} {'is' if more == 1 else 'are'} free"
    return Reason(
        code=Code.RANKS_STARTED,
        message=f"runs on {workload.gang.nodes} of {describe_nodes(workload.spec)}; {what}, "
        "and it grows if they still are "
        f"in {describe_duration(SETTLE_S)} and no run waits for them",
    )


def says_no_room(workload: Workload) -> Reason:
    """Return the reason that there is no more room for more nodes."""
    return Reason(code=Code.RANKS_STARTED, message=outlook(workload).removeprefix("; "))


def says_grows(workload: Workload, more: int) -> Reason:
    """Return the reason of a gang that stops to grow."""
    num_nodes = workload.gang.nodes
    return Reason(
        code=Code.RESIZED,
        message=f"grows from {num_nodes} to {num_nodes + more} of {describe_nodes(workload.spec)}, "
        "which have been free for "
        f"{describe_duration(SETTLE_S)}; continues from a checkpoint",
    )


def says_shrinks(workload: Workload, wanting: Workload, keeps: int, reader: Reader) -> Reason:
    """Return the reason of a gang that stops to shrink."""
    num_nodes = workload.gang.nodes
    return Reason(
        code=Code.RESIZED,
        message=f"makes room for {reader.name(wanting.spec)}: of its {num_nodes} nodes it keeps at least "
        f"{keeps}; continues from a checkpoint",
    )
