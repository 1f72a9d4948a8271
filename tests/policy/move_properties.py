"""What holds of runs that are moved whatever happens: whom it may hit, how often, what for, and that nobody waits."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from fairlead.policy.placement.free_capacity import rooms
from fairlead.policy.placement.placement import place
from fairlead.policy.queue.dominant_shares import asked, capacity, dominant_share
from fairlead.state.plan import Change
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Pod, PodPhase, Snapshot, Workload
from tests.policy.queue_properties import _earliest, begins_to_stop, created, ends_of, planned
from tests.policy.world import Decision, World

HOUR_S, APART_S, RESTART_S = 3600.0, 4 * 3600.0, 60.0
MOST_MOVED = 0.05
Moved = tuple[Workload, Change]


def moves_are_bounded(world: World) -> Iterator[str]:
    """In no hour do moves cost more than a twentieth of it, of runs that are there; and no run moves twice in four."""
    made: list[tuple[float, str, float]] = []
    for decision in world.decisions:
        there = {workload.uid for workload in decision.before.workloads}
        for workload, _ in _moved(decision.done()):
            before = [at for at, uid, _ in made if uid == workload.uid]
            if before and decision.now - before[-1] < APART_S:
                yield f"{workload.spec.name} moves at {before[-1]} and at {decision.now}"
            made.append((decision.now, workload.uid, _cost_s(workload, decision)))
        spent_s = sum(cost_s for at, uid, cost_s in made if uid in there and decision.now - at < HOUR_S)
        if spent_s > MOST_MOVED * HOUR_S + 1e-6:
            yield f"moves cost {spent_s} s of the cluster in the hour before {decision.now}"


def only_what_resumes_moves(world: World) -> Iterator[str]:
    """Only whole gangs move that run, that somebody wants to run, and that have saved a checkpoint."""
    for decision in world.decisions:
        for workload, change in _moved(planned(decision)):
            own = [pod for pod in decision.before.pods if pod.workload_uid == workload.uid and not pod.phase.is_final]
            progress = workload.progress
            if progress is None or (progress.checkpoint_at is None and progress.checkpoint_step is None):
                yield f"{workload.spec.name} moves and has no checkpoint"
            if {order.pod_uid for order in change.terminate} != {pod.uid for pod in own}:
                yield f"{workload.spec.name} moves in part"
            if workload.intent is not Intent.RUN or workload.status.phase is not Phase.RUNNING:
                yield f"{workload.spec.name} moves although it is {workload.status.phase}"


def nobody_moved_waits(world: World) -> Iterator[str]:
    """Whoever has left starts in the place that was kept for it, unless that is gone."""
    for decision in world.decisions:
        usable = {node.name for node in decision.before.nodes if node.ready and node.closed is None}
        changes = {change.workload_uid: change for change in decision.plan.changes}
        for workload in decision.before.workloads:
            status = workload.status
            is_due = status.phase is Phase.PENDING and status.reason.code is Code.MOVED
            seats = [seat.node for seat in status.migration.seats]
            if is_due and workload.intent is Intent.RUN and usable.issuperset(seats):
                change = changes.get(workload.uid)
                if change is None or [create.node for create in change.create] != seats:
                    yield f"{workload.spec.name} has moved for {seats} and does not start there at {decision.now}"


def moves_pay(world: World) -> Iterator[str]:
    """Runs move only for one that then fits, none of them for nothing, and for less than it gains by it."""
    for decision in world.decisions:
        groups: dict[str, list[Moved]] = defaultdict(list)
        for workload, change in _moved(planned(decision)):
            assert change.status is not None
            groups[change.status.reason.message.split("so that ")[1].split(" fits")[0]].append((workload, change))
        by_name = {workload.spec.name: workload for workload in decision.before.workloads}
        for name, group in groups.items():
            yield from _unpaid(by_name[name], group, decision)


MOVE_PROPERTIES = (moves_are_bounded, only_what_resumes_moves, nobody_moved_waits, moves_pay)


def _unpaid(wanting: Workload, group: list[Moved], decision: Decision) -> Iterator[str]:
    before, now = decision.before, decision.now
    begun = created([pair for pair in planned(decision) if pair[1].create])
    seats = [pod for pair in _moved(planned(decision)) for pod in _sitting(*pair)]
    away = {workload.uid for workload, _ in group}
    present = [pod for pod in (*before.pods, *begun) if not pod.phase.is_final]
    names = sorted(workload.spec.name for workload, _ in group)
    if not _fits(wanting, [*(pod for pod in present if pod.workload_uid not in away), *seats], before):
        yield f"moving {names} frees too little for {wanting.spec.name}"
    if before.teams:
        return  # what is promised to others is no room, and who they are is for other properties
    for workload, _ in group:
        rest = [pod for pod in present if pod.workload_uid not in away - {workload.uid}]
        if _fits(wanting, rest, before):
            yield f"{workload.spec.name} moves for nothing"
    grace_s = max(workload.spec.grace_s for workload, _ in group)
    starts_at = _earliest(wanting, present, before, ends_of(before, now), now)
    wait_s = HOUR_S if starts_at == math.inf else starts_at - now - grace_s
    whole = capacity(before.nodes)
    gain_s = dominant_share(asked(wanting.spec, whole), whole) * wait_s
    cost_s = sum(_cost_s(workload, decision) for workload, _ in group)
    if cost_s >= gain_s:
        yield f"moving {names} costs {cost_s} s, and {wanting.spec.name} gains {gain_s} s"


def _moved(pairs: Iterable[Moved]) -> Iterator[Moved]:
    for workload, change in pairs:
        if begins_to_stop(workload, change) and change.status and change.status.reason.code is Code.MOVED:
            yield workload, change


def _cost_s(workload: Workload, decision: Decision) -> float:
    own = [pod for pod in decision.before.pods if pod.workload_uid == workload.uid and not pod.phase.is_final]
    saved = workload.progress.checkpoint_at if workload.progress is not None else None
    since = max(min(pod.created_at for pod in own), saved or -math.inf)
    whole = capacity(decision.before.nodes)
    share = dominant_share(asked(workload.spec, whole), whole)
    return share * (max(0.0, decision.now - since) + RESTART_S)


def _sitting(workload: Workload, change: Change) -> list[Pod]:
    """Pods that stand for the places that are kept."""
    assert change.status is not None
    return [
        Pod(
            uid=f"{workload.uid}-kept-{index}",
            workload_uid=f"{workload.uid}-kept",
            attempt=0,
            index=index,
            node=seat.node,
            grant=seat.grant,
            phase=PodPhase.CREATED,
            created_at=0.0,
        )
        for index, seat in enumerate(change.status.migration.seats)
    ]


def _fits(wanting: Workload, pods: Iterable[Pod], snapshot: Snapshot) -> bool:
    return place(wanting.spec, rooms(snapshot.nodes, pods)) is not None
