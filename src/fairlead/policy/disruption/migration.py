"""A run on its way to another place, which is kept for it until it starts there; ``defragmentation`` says who moves.

The place is in the run's status from the stop notice on, so whoever comes next knows of it. While the run saves and
leaves, what is kept counts as held; then it starts there before anybody else is looked at. When the place is gone, as
when its node is, or when somebody stops or suspends the run, nothing is kept any more and it waits like any other.
"""

from collections.abc import Iterable, Mapping, Sequence

from fairlead.policy.disruption.defragmentation import Move
from fairlead.policy.kinds.changes import stop
from fairlead.policy.placement.placement import FreeCapacity, Placement
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Pod, Reservation, Workload
from fairlead.text.quantities import plural


def is_moving(workload: Workload) -> bool:
    """Return whether it stops or has stopped only to go on in the place that is kept for it."""
    status = workload.status
    reason = status.reason if status.phase is Phase.PENDING else status.next_reason
    return (
        bool(status.seats)
        and workload.intent is Intent.RUN
        and status.phase in (Phase.STOPPING, Phase.PENDING)
        and reason is not None
        and reason.code is Code.MOVED
    )


def keep(workloads: Iterable[Workload], free: FreeCapacity) -> dict[str, tuple[Reservation, ...]]:
    """The places that are kept, by uid, taken in ``free``; those that are gone are left out."""
    kept = {}
    for workload in workloads:
        if not is_moving(workload):
            continue
        taken: list[Reservation] = []
        for seat in workload.status.seats:
            if not free.has(seat.node, seat.grant):
                break
            free.hold(seat.node, seat.grant)
            taken.append(seat)
        if len(taken) == len(workload.status.seats):
            kept[workload.uid] = workload.status.seats
        else:
            for seat in taken:
                free.hold(seat.node, seat.grant, -1)
    return kept


def coming(uid: str) -> str:
    """Return what is kept for a run on the move, as a holding of its own."""
    return f"{uid} on the move"


def placed_in(seats: Sequence[Reservation]) -> tuple[Placement, ...]:
    """The gang in the places that were kept for it."""
    return tuple(Placement(index=index, node=seat.node, grant=seat.grant) for index, seat in enumerate(seats))


def move_away(move: Move, wanting: Workload, pods: Mapping[str, Sequence[Pod]], now: float) -> Change:
    """The run is told to save its work and to leave for the place that is kept for it."""
    run = move.workload
    live = tuple(pod for pod in pods[run.uid] if not pod.phase.is_final)
    reason = Reason(
        code=Code.MOVED,
        message=f"moves to {where(move.seats)}, where its place is kept, so that {wanting.spec.name} fits, which "
        f"needs {plural(wanting.spec.nodes, 'node')}; it saves first and goes on from there",
    )
    return stop(
        run, live, Phase.PENDING, reason, reason, now, seats=move.seats, moved_at=now, moved_cost_s=move.cost_s
    )  # fmt: skip


def change_place(run: Workload, live: tuple[Pod, ...], seats: tuple[Reservation, ...], why: str, now: float) -> Change:
    """The run is told to save its work and to leave for a place that suits itself better, which is kept for it."""
    reason = Reason(code=Code.MOVED, message=f"moves to {where(seats)}, {why}; it saves first and goes on from there")
    return stop(run, live, Phase.PENDING, reason, reason, now, seats=seats, moved_at=now, moved_cost_s=0.0)


def describe_makes_room(moves: Sequence[Move]) -> str:
    """Return what a run waits for that others move for."""
    found = sorted((move.workload.spec.name, where(move.seats)) for move in moves)
    names = ", ".join(f"{name} has moved to {where}" for name, where in found[:3])
    more = f" and {plural(len(found) - 3, 'more run')} elsewhere" if len(found) > 3 else ""
    return f"starts when {names}{more}, which leaves its room in one piece"


def where(seats: Sequence[Reservation]) -> str:
    """The nodes of some places."""
    return ", ".join(sorted({seat.node for seat in seats}))
