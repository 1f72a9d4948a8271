"""Moves a run to another place, which is reserved until it starts there; ``defragmentation`` chooses the runs.

The place is in the run's status from the stop notice on, so the next pass knows of it. While the run saves and leaves,
the reserved place counts as held; then the run starts there before any other is considered. If the place is gone, for
example with its node, or if a user stops or suspends the run, the reservation ends and the run queues as usual.
"""

from collections.abc import Iterable, Mapping, Sequence

from fairlead.policy.disruption.defragmentation import Move
from fairlead.policy.placement.placement import FreeCapacity, Placement
from fairlead.policy.queue.changes import stop
from fairlead.policy.queue.run_names import Reader
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Migration, Phase, Pod, Reservation, Workload
from fairlead.text.quantities import plural


def is_moving(workload: Workload) -> bool:
    """Return whether it stops or has stopped only to resume in its reserved place."""
    status = workload.status
    reason = status.reason if status.phase is Phase.PENDING else status.after_stop.reason
    return (
        bool(status.migration.seats)
        and workload.intent is Intent.RUN
        and status.phase in (Phase.STOPPING, Phase.PENDING)
        and reason is not None
        and reason.code is Code.MOVED
    )


def keep(workloads: Iterable[Workload], free: FreeCapacity) -> dict[str, tuple[Reservation, ...]]:
    """Return the reserved places by uid, allocated in ``free``; those that are gone are omitted."""
    reserved = {}
    for workload in workloads:
        if not is_moving(workload):
            continue
        taken: list[Reservation] = []
        for seat in workload.status.migration.seats:
            if not free.has(seat.node, seat.grant):
                break
            free.hold(seat.node, seat.grant)
            taken.append(seat)
        if len(taken) == len(workload.status.migration.seats):
            reserved[workload.uid] = workload.status.migration.seats
        else:
            for seat in taken:
                free.hold(seat.node, seat.grant, -1)
    return reserved


def coming(uid: str) -> str:
    """Return the uid under which the reserved places of a moving run are held."""
    return f"{uid} on the move"


def placed_in(seats: Sequence[Reservation]) -> tuple[Placement, ...]:
    """Return the placement of a gang in its reserved places."""
    return tuple(Placement(index=index, node=seat.node, grant=seat.grant) for index, seat in enumerate(seats))


def move_away(move: Move, wanting: Workload, pods: Mapping[str, Sequence[Pod]], now: float, reader: Reader) -> Change:
    """Return the change that moves a run to its reserved place to make room for another."""
    run = move.workload
    live = tuple(pod for pod in pods[run.uid] if not pod.phase.is_final)
    reason = Reason(
        code=Code.MOVED,
        message=f"moves to {where(move.seats)}, where its place is kept, so that {reader.name(wanting.spec)} fits, "
        f"which needs {plural(wanting.spec.nodes, 'node')}; it saves first and continues from there",
    )
    migration = Migration(seats=move.seats, decided_at=now, cost_s=move.cost_s)
    return stop(run, live, Phase.PENDING, reason, reason, now, migration=migration)


def change_place(run: Workload, live: tuple[Pod, ...], seats: tuple[Reservation, ...], why: str, now: float) -> Change:
    """Return the change that moves a run to a place that suits it better, which is reserved."""
    reason = Reason(code=Code.MOVED, message=f"moves to {where(seats)}, {why}; it saves first and continues from there")
    return stop(run, live, Phase.PENDING, reason, reason, now, migration=Migration(seats=seats, decided_at=now))


def describe_makes_room(moves: Sequence[Move], reader: Reader) -> str:
    """Explain for which moves a run waits."""
    pairs = sorted((reader.name(move.workload.spec), where(move.seats)) for move in moves)
    names = ", ".join(f"{name} has moved to {where}" for name, where in pairs[:3])
    more = f" and {plural(len(pairs) - 3, 'more run')} elsewhere" if len(pairs) > 3 else ""
    return f"starts when {names}{more}, which leaves its room in one piece"


def where(seats: Sequence[Reservation]) -> str:
    """Return the nodes of some places."""
    return ", ".join(sorted({seat.node for seat in seats}))
