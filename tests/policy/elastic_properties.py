"""What holds of elastic gangs whatever happens: their bounds, and how often and for what they change their size."""

import math
from collections.abc import Iterator
from itertools import chain, combinations, product

from fairlead.policy.placement.free_capacity import rooms
from fairlead.policy.placement.placement import place
from fairlead.state.plan import Change
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Pod, Workload
from tests.policy.queue_properties import (
    LONGEST_GRACE_S,
    begins_to_stop,
    created,
    ends_of,
    is_left_waiting,
    made_smaller,
    stops,
    without,
)
from tests.policy.world import Decision, World

PAUSE_S = 600.0
SETTLE_S = 300.0


def gangs_keep_their_bounds(world: World) -> Iterator[str]:
    """No start of a gang has fewer nodes than it asks for at least, or more than at most, and each says how many."""
    for decision in world.decisions:
        for workload, change in decision.done():
            spec, num_nodes = workload.spec, len(change.create)
            if not num_nodes or workload.status.phase is Phase.RUNNING:
                continue  # a lost pod is replaced
            if not spec.nodes <= num_nodes <= (spec.most_nodes or spec.nodes):
                yield f"{spec.name} starts on {num_nodes} nodes"
            said = None if change.status is None else change.status.size.nodes
            if said != (None if spec.most_nodes is None else num_nodes):
                yield f"{spec.name} starts on {num_nodes} nodes and says {said}"


def starts_take_what_is_free(world: World) -> Iterator[str]:
    """An elastic gang that starts when nobody else waits leaves no node free that it could have had.

    But for one that a quota has refused, which starts with its fewest.
    """
    for decision in world.decisions:
        done = [pair for pair in decision.done() if pair[1].create and pair[0].status.phase is not Phase.RUNNING]
        waits = any(is_left_waiting(workload, decision) for workload in decision.before.workloads)
        bound = any(team.quota != type(team.quota)() for team in decision.before.teams)
        if waits or bound or not decision.whole:
            continue
        for workload, change in done:
            if workload.status.failures.refusals:
                if len(change.create) > workload.spec.nodes:
                    yield f"{workload.spec.name} starts on {len(change.create)} nodes after it was refused"
                continue
            one = workload.spec.at(1)
            free = rooms(decision.before.nodes, [*decision.before.pods, *created(done)])
            if len(change.create) < (workload.spec.most_nodes or 0) and place(one, free) is not None:
                yield f"{workload.spec.name} starts on {len(change.create)} nodes, and one more is free"


def growth_is_rare_and_takes_from_nobody(world: World) -> Iterator[str]:
    """A gang stops to grow no sooner than ten minutes after it began to run, and only for room that has lasted.

    It leaves room for a member to everybody who waits and has begun to find it.
    """
    for decision in world.decisions:
        for workload, change in decision.done():
            if not _grows(workload, change):
                continue
            status = workload.status
            if status.phase is not Phase.RUNNING or decision.now - status.since < PAUSE_S:
                yield f"{workload.spec.name} grows after {decision.now - status.since} s"
            if status.size.room_since is None or decision.now - status.size.room_since < SETTLE_S:
                yield f"{workload.spec.name} grows into room that is there since {status.size.room_since}"
            yield from _taken_from(workload, change, decision)


def changes_of_size_go_on(world: World) -> Iterator[str]:
    """Whoever stopped only to change its size is placed as soon as its pods are over, unless it is wanted otherwise."""
    for _, snapshot in world.quiet:
        for workload in snapshot.workloads:
            reason = workload.status.after_stop.reason
            live = any(p.workload_uid == workload.uid and not p.phase.is_final for p in snapshot.pods)
            if workload.intent is Intent.RUN and reason is not None and reason.code is Code.RESIZED and not live:
                yield f"{workload.spec.name} stopped to change its size and stays {workload.status.phase}"


def giving_nodes_up_lets_somebody_in(world: World) -> Iterator[str]:
    """Gangs give nodes up only for one that does not fit as it is, and fits beside the smallest of each of them."""
    for decision in world.decisions:
        smaller, before = made_smaller(decision), decision.before
        gangs = [workload for workload in before.workloads if any(workload.uid in uids for uids in smaller.values())]
        for workload in gangs:
            if workload.gang.nodes <= workload.spec.nodes:
                yield f"{workload.spec.name} gives nodes up, and has no more than it needs"
        present = [*before.pods, *created(pair for pair in decision.done() if pair[1].create)]
        for wanting in before.workloads:
            if wanting.spec.name not in smaller or not decision.whole or wanting.status.phase.is_final:
                continue
            if not _fits_beside(wanting, gangs, present, decision):
                yield f"{wanting.spec.name} does not fit although {len(gangs)} gangs give nodes up"
            alone = len(smaller) == 1 and not _preempted(decision)
            if alone and place(wanting.spec, rooms(before.nodes, present)) is not None:
                yield f"{wanting.spec.name} fits, and {len(gangs)} gangs give nodes up"


ELASTIC_PROPERTIES = (
    gangs_keep_their_bounds,
    starts_take_what_is_free,
    growth_is_rare_and_takes_from_nobody,
    changes_of_size_go_on,
    giving_nodes_up_lets_somebody_in,
)


def _fits_beside(wanting: Workload, gangs: list[Workload], present: list[Pod], decision: Decision) -> bool:
    """Whether the run fits once those that leave have left, if of each gang the fewest stay, whichever."""
    nodes, ends = decision.before.nodes, ends_of(decision.before, decision.now)
    stopped = _preempted(decision)
    live = [pod for pod in present if not pod.phase.is_final]
    soon = [pod for pod in live if ends.get(pod.workload_uid, math.inf) > decision.now + LONGEST_GRACE_S]
    rest = without(soon, stopped | {gang.uid for gang in gangs})
    smallest = [combinations([p for p in live if p.workload_uid == gang.uid], gang.spec.nodes) for gang in gangs]
    return any(place(wanting.spec, rooms(nodes, [*rest, *chain(*chosen)])) is not None for chosen in product(*smallest))


def _preempted(decision: Decision) -> set[str]:
    return {workload.uid for workload, status in stops(decision) if status.reason.code is Code.PREEMPTED}


def _grows(workload: Workload, change: Change) -> bool:
    if not begins_to_stop(workload, change) or change.status is None:
        return False
    return change.status.reason.code is Code.RESIZED and change.status.reason.message.startswith("grows")


def _taken_from(workload: Workload, change: Change, decision: Decision) -> Iterator[str]:
    """Whoever waits and has found room for a member keeps it when the gang is as large as it wants to be."""
    before = decision.before
    begun = created(pair for pair in decision.done() if pair[1].create)
    others = [pod for pod in before.pods if pod.workload_uid != workload.uid]
    for other in before.workloads:
        if other.spec.priority < 0 or not is_left_waiting(other, decision):
            continue
        found = place(other.spec.at(1), rooms(before.nodes, [*before.pods, *begun]))
        left = rooms(before.nodes, [*others, *begun])
        for part in found or ():
            left.hold(part.node, part.grant)
        if found is not None and place(workload.spec.at(_new_size(change)), left) is None:
            yield f"{workload.spec.name} grows into room that {other.spec.name} has begun to find"


def _new_size(change: Change) -> int:
    assert change.status is not None
    return int(change.status.reason.message.partition(" to ")[2].partition(" ")[0])
