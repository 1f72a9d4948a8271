"""Explains why a run waits or is preempted, with the names of nodes, quantities, teams and times. Times are UTC."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from fairlead.frozen import replace
from fairlead.policy.disruption.preemption import Victim
from fairlead.policy.placement.placement import NodeCapacity, takes_pods, why_waiting
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.queue.dominant_shares import Amounts, asked
from fairlead.policy.queue.quotas import Ledger
from fairlead.policy.queue.run_names import Name, Reader, name_of
from fairlead.policy.queue.timeline import Claim, Timeline
from fairlead.policy.scaling.elastic import is_resizing
from fairlead.specs.gang import GangSpec
from fairlead.state.reasons import Code, Reason
from fairlead.state.scheduling_policy import Order, Selection
from fairlead.state.snapshot import Phase, Workload, is_replica
from fairlead.text.quantities import describe_cpu, describe_memory, describe_need, plural


def needs(workload: Workload, timeline: Timeline, holders: Collection[Name], reader: Reader) -> Reason:
    """Return the need of the run, what is free, and the holders of the rest."""
    reason = why_waiting(workload.spec, timeline, reader.names(holders), reader.own(holders))
    more = [
        hindrance for hindrance in (_such_devices(workload, timeline), _closed_nodes(timeline)) if hindrance is not None
    ]
    return _with_cause(replace(reason, message="; ".join((reason.message, *more))), workload)


def too_wide(reason: Reason) -> Reason:
    """Return the reason that ``needs`` gave, for a run whose team has not saved for it."""
    return replace(
        reason,
        message=f"{reason.message}; it is wider than its team's fair share, and has its turn when the team has had as "
        "much less than its share as it takes from the others",
    )


def promised(
    reason: Reason,
    workload: Workload,
    claim: Claim,
    last: Workload | None,
    holders: Sequence[Workload],
    chosen: Sequence[Victim],
    reader: Reader,
    *,
    is_owed: bool,
) -> Reason:
    """Return the reason that ``needs`` gave, with the promised start and its condition.

    Args:
        last: The holder whose end the promise waits for; None if it waits for none.
    """
    outlook = (
        _makes_room(workload, chosen, reader, is_owed=is_owed) if chosen else _starts(claim, last, holders, reader)
    )
    return replace(reason, message=f"{reason.message}; {outlook}")


def behind(workload: Workload) -> Reason:
    """Return the reason of a run that does not fit now, or would delay earlier runs; the same for any earlier run.

    A run of a long queue keeps this reason while earlier runs come and go; ``ahead`` names the first on demand.
    """
    return _with_cause(_BEHIND[workload.spec.max_duration_s is None], workload)


_REMEDY = "A higher `priority` puts it before others of its team; `fairlead queue` says which run is the first."
_PASSES = (
    "With a `max_duration` it may pass the first one, if it is over before the start of that one, where it is known."
)
# Keyed by whether the run has no limit.
_BEHIND = {
    is_open: Reason(
        code=Code.WAITING_FOR_TURN,
        message="waits its turn behind runs that come before it and do not fit yet",
        remedy=f"{_REMEDY} {_PASSES}" if is_open else _REMEDY,
    )
    for is_open in (False, True)
}


def ahead(
    workload: Workload,
    first: Workload,
    reader: Reader,
    order: Order = Order.FIRST_COME,
    *,
    is_known: bool = True,
) -> Reason:
    """Return the reason as ``behind`` does, with the name of the first run that does not fit and why it precedes.

    Args:
        is_known: Whether the start of the first is known, so that a run that is over before may pass it.
    """
    name, priority, own_priority = reader.name(first.spec), first.spec.priority, workload.spec.priority
    is_own = first.spec.team == workload.spec.team
    why = "was submitted earlier" if priority == own_priority else "has a higher priority"
    if priority < own_priority:
        why = "has waited longer or whose team holds less"
    if order is Order.SHORTEST and priority <= own_priority:
        why = "has less left to do or has waited longer, or whose team holds less"
    if not is_own:
        why = "is of a team that holds less for its weight, or has its turn by the share of its team"
    remedies = [f"A higher `priority` than {priority} would put it first."] if is_own else []
    if workload.spec.max_duration_s is None and is_known:
        remedies.append(f"With a `max_duration` it may pass where it is over before {name} can start.")
    reason = Reason(
        code=Code.WAITING_FOR_TURN,
        message=f"waits its turn behind {name}, which {why} and does not fit yet",
        remedy=" ".join(remedies) or None,
    )
    return _with_cause(reason, workload)


def passed_over(workload: Workload, selection: Selection) -> Reason:
    """Return the reason of a run that does not fit beside the runs selected to hold the GPUs."""
    if selection is Selection.FINISH_TIME:
        chosen, remedy = (
            "are later against their equal share, or are nearer to their end",
            "It starts before it is late.",
        )
    else:
        chosen, remedy = "have less left to do for the GPUs that they need", "Waiting counts as less left to do."
    return _with_cause(
        Reason(
            code=Code.WAITING_FOR_TURN,
            message=f"waits its turn: the GPUs go to runs that {chosen}",
            remedy=f"{remedy} A higher `priority` puts it further to the front.",
        ),
        workload,
    )


def regroups(nodes: Sequence[str], beside: Sequence[str]) -> str:
    """Explain why a run leaves its GPUs: for others on ``nodes``, or for none."""
    if not nodes:
        return "leaves its GPUs to runs that have less left to do for them; it continues from its checkpoint"
    return f"continues{_beside(beside)} on other GPUs of {_those(nodes)}, since more gets done so; from its checkpoint"


def _beside(names: Sequence[str]) -> str:
    return f" beside {', '.join(names)}" if names else ""


def _those(nodes: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(nodes))


def goes_to(workload: Workload, nodes: Sequence[str], beside: Sequence[str]) -> Reason:
    """Return the reason of a run that has a place which other runs have not left yet."""
    return _with_cause(
        Reason(
            code=Code.WAITING_FOR_TURN,
            message=f"goes to GPUs of {_those(nodes)}{_beside(beside)}, which others leave first",
        ),
        workload,
    )


def next_round(workload: Workload) -> Reason:
    """Return the reason of a run that waits for the next round of GPU sharing."""
    return _with_cause(
        Reason(
            code=Code.WAITING_FOR_TURN,
            message="waits its turn: the GPUs go to runs that have less left to do for the GPUs that they need, alone "
            "or beside each other",
            remedy="Who shares which GPUs is chosen anew every few minutes. Waiting counts as less left to do. A "
            "higher `priority` puts it further to the front.",
        ),
        workload,
    )


def scavenger(workload: Workload) -> Reason:
    """Return the reason of a scavenger, which uses only idle capacity, when too little is idle."""
    reason = Reason(
        code=Code.WAITING_FOR_TURN,
        message=f"takes only what is idle (priority {workload.spec.priority}), and there is no room for "
        f"{describe_need(workload.spec)}",
        remedy="With a `priority` of 0 or more it gets its own place in the queue.",
    )
    return _with_cause(reason, workload)


def over_quota(workload: Workload, ledger: Ledger, resource: str) -> Reason:
    """Return the reason of a run whose team would exceed its quota."""
    team = workload.spec.team
    held = getattr(ledger.bound.get(team, Amounts()), resource)
    most, more = getattr(ledger.teams[team].quota, resource), getattr(asked(workload.spec, ledger.whole), resource)
    say = {"gpu_milli": _gpus, "cpu_milli": describe_cpu, "memory_bytes": describe_memory}[resource]
    return _with_cause(
        Reason(
            code=Code.OVER_QUOTA,
            message=(
                f"needs {say(more)}{_of_parts(workload, resource)}; team {team} holds {say(held)} and may hold "
                f"{say(most)} at most"
            ),
            remedy=f"It starts when other runs of team {team} end, or when its `quota` is raised.",
        ),
        workload,
    )


def _of_parts(workload: Workload, resource: str) -> str:
    """Return the text that follows a number of GPUs if memory, not GPUs, was requested."""
    asks = workload.spec.resources
    if resource != "gpu_milli" or asks.gpu is None or not Shape.of(asks).parts_only:
        return ""
    return f", as the smallest part with {describe_memory(asks.gpu.min_memory_bytes or 0)} counts here"


def taken_by(
    victim: Workload, wanting: Workload, reader: Reader, *, is_owed: bool, selection: Selection = Selection.NONE
) -> str:
    """Return why a run is preempted; ``selection`` is the rule that selects holders of GPUs, if any."""
    own, other, name = victim.spec, wanting.spec, reader.name(wanting.spec)
    if own.priority < 0:
        return f"preempted by {name}: it takes only what is idle"
    if is_owed:
        return (
            f"preempted by {name}, which lies within what {_team_of(other, reader)} is guaranteed; "
            f"team {own.team} had borrowed the room"
        )
    if selection is Selection.FINISH_TIME:
        return f"preempted by {name}, which would finish later against its equal share"
    if selection is Selection.LEAST_WORK:
        return f"preempted by {name}, which has less left to do for the GPUs that it needs"
    if own.priority >= other.priority:
        return f"preempted by {name}, which has less left to do"
    return f"preempted by {name}, which has priority {other.priority}; it has {own.priority}"


def restarts_for(wanting: Workload, reader: Reader) -> str:
    """Return why a run is restarted elsewhere."""
    name = reader.name(wanting.spec)
    return f"makes room for {name}, which needs it in one piece; continues from its checkpoint elsewhere"


def _starts(claim: Claim, last: Workload | None, holders: Iterable[Workload], reader: Reader) -> str:
    """Return when a run can start without stopping any other."""
    if claim.start == math.inf:
        return _unknown(holders, reader)
    if last is None:
        return "starts when the room that is free is not promised to others"
    if last.status.phase is Phase.STOPPING or last.status.after_stop.phase is not None:
        does = "changed its size" if is_resizing(last.status) else "left"
        return f"starts when {reader.name(last.spec)} has saved its work and {does}"
    return f"starts at {describe_moment(claim.start)} at the latest, when {reader.name(last.spec)} ends"


def _unknown(holders: Iterable[Workload], reader: Reader) -> str:
    """Explain that no start can be promised, naming the runs with unknown end."""
    specs = [run.spec for run in holders]
    endless = [spec for spec in specs if spec.max_duration_s is None and spec.expected_duration_s is None]
    if not endless:
        return "start unknown"
    runs, endpoints = ({name_of(spec) for spec in endless if is_replica(spec) is whether} for whether in (False, True))
    whys = [f"{reader.names(runs)} {'has' if len(runs) == 1 else 'have'} no `max_duration`"] if runs else []
    whys += [f"{reader.names(endpoints)} {_ENDPOINTS[len(endpoints) == 1]} no end"] if endpoints else []
    return f"start unknown: {', and '.join(whys)}"


_ENDPOINTS = {True: "is an endpoint, which has", False: "are endpoints, which have"}


def _makes_room(workload: Workload, chosen: Sequence[Victim], reader: Reader, *, is_owed: bool) -> str:
    leaving, smaller = (
        reader.names(name_of(victim.workload.spec) for victim in chosen if bool(victim.keeps) is keeps)
        for keeps in (False, True)
    )
    whens = [f"{leaving} has saved its work and left"] if leaving else []
    whens += [f"{smaller} has saved its work and changed its size"] if smaller else []
    starts = f"starts when {' and '.join(whens)}"
    borrowed: dict[str, int] = defaultdict(int)
    for victim in chosen:
        if not victim.by_priority and victim.workload.spec.priority >= 0:
            borrowed[victim.workload.spec.team] += sum(len(g.gpu_uuids) * g.gpu_milli for _, g in victim.parts)
    if is_owed and borrowed:
        lenders = ", ".join(
            f"{_gpus(milli)} from {team}" if milli else team
            for team, milli in sorted(borrowed.items() if reader.shows_others else _summed(borrowed).items())
        )
        return f"team {workload.spec.team} reclaims {lenders}: {starts}"
    return starts


def _summed(borrowed: Mapping[str, int]) -> dict[str, int]:
    return {"other teams": sum(borrowed.values())}


def _team_of(spec: GangSpec, reader: Reader) -> str:
    return f"team {spec.team}" if reader.shows_others or spec.team == reader.team else "its team"


def other_layout(never: Reason, layout: str) -> Reason:
    """Return the reason of a run that fits only nodes in another layout of their GPUs."""
    return Reason(
        code=Code.WAITING_FOR_RESOURCES,
        message=f"it fits where a node's GPUs have the layout {layout}, as none has enough of now: {never.message}",
        remedy="It starts when a node is partitioned so, which is done once its waiting has cost as much.",
    )


def nodes_left(never: Reason) -> Reason:
    """Return the reason of a run that fits the nodes that are there now only in part, or no longer, however empty."""
    return Reason(
        code=Code.WAITING_FOR_RESOURCES,
        message=f"too few nodes are there that could hold it: {never.message}",
        remedy="It starts when such nodes are back, or new ones have come; with fewer `nodes` it may start sooner.",
    )


def _such_devices(workload: Workload, timeline: Timeline) -> str | None:
    """Return how many nodes have devices of the kind, and how many are idle on the node with the most idle ones."""
    gpu = workload.spec.resources.gpu
    if gpu is None or len(timeline.rooms) <= 3:
        return None
    shape = Shape.of(workload.spec.resources)

    def idle_of(room: NodeCapacity) -> int | None:
        such = room.such(shape)
        return sum(room.gpu_milli[entry.uuid] == entry.milli for entry in such) if such else None

    idle = [number for number in timeline.of_rooms(("idle", shape), idle_of).values() if number is not None]
    kind = f"{gpu.model}s" if gpu.model is not None else "such GPUs"
    return f"{plural(len(idle), 'node')} {'has' if len(idle) == 1 else 'have'} {kind}, the freest has {max(idle)} idle"


def _closed_nodes(timeline: Timeline) -> str | None:
    """Return how many nodes take no pods, and why; None if all that could be named are."""
    if len(timeline.rooms) <= 3:
        return None
    whys = Counter(
        room.node.closed or "not ready" for room in timeline.rooms.values() if not takes_pods(room.node)
    )  # fmt: skip
    if not whys:
        return None
    counts = [f"{number} {why}" for why, number in whys.most_common(3)]
    return f"{sum(whys.values())} of {len(timeline.rooms)} nodes take no pods ({', '.join(counts)})"


def _with_cause(reason: Reason, workload: Workload) -> Reason:
    """Append the run that took the room, if any."""
    taken = workload.status.queue.preempted_by
    return reason if taken is None else replace(reason, message=f"{reason.message}; it was {taken}")


def _gpus(milli: int) -> str:
    return f"{milli / WHOLE_GPU:g} GPUs" if milli != WHOLE_GPU else "1 GPU"


def describe_moment(at: float) -> str:
    """Format a time for people."""
    return datetime.fromtimestamp(at, UTC).strftime("%F %H:%M UTC")
