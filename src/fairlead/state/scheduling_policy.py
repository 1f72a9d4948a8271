"""By which rules those that wait are started: the named policies of clusters, which a simulation can compare."""

from enum import StrEnum

from fairlead.frozen import dataclass


class Backfill(StrEnum):
    """Says who is promised a start that nobody behind may delay.

    NONE: nobody starts before one that waits ahead of it. EASY (Lifka, JSSPP 1995): the first that does not fit.
    CONSERVATIVE (Mu'alem and Feitelson, TPDS 2001): everybody, as far as ``SchedulingPolicy.most_promises``.
    """

    NONE = "none"
    EASY = "easy"
    CONSERVATIVE = "conservative"


class Order(StrEnum):
    """Says who goes first of runs of one team.

    FIRST_COME: The higher priority, which waiting raises, then the older. SHORTEST: So, too, but what is left to do of
    a run counts against it as ``fairlead.policy.queue.queue_score`` says.
    """

    FIRST_COME = "first-come"
    SHORTEST = "shortest"


class Selection(StrEnum):
    """Says which set of runs should hold the GPUs, where any of them may be stopped for others.

    NONE: No set is chosen; each run is looked at in its turn.
    LEAST_WORK: The set whose progress is worth most, where a second of a run with less left to do is worth more, as
        ``fairlead.policy.selection.worth`` says.
    FINISH_TIME: Those first that would else be late against an equal share of the cluster, as
        ``fairlead.policy.selection.finish_time`` says.
    """

    NONE = "none"
    LEAST_WORK = "least-work"
    FINISH_TIME = "finish-time"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPolicy:
    """The rules of a queue.

    Attributes:
        fair: Teams have guarantees and equal weighted shares; waiting raises priority.
        order: Who goes first of runs of one team; it needs ``fair``.
        preempts_longer: Where ``order`` is SHORTEST, runs may be stopped for others of their team that have less left
            to do, when less is waited for that in all.
        selection: Which set of runs should hold the GPUs, of all teams together; needs ``fair`` and ``preempts``.
        preempts: Runs may be stopped, with a checkpoint, for others that come before them.
        moves: Runs may be moved, with a checkpoint, to room that is free, so that another finds its room in one piece.
        most_moved: Which part of the whole cluster's time moves may cost at most in any hour, as far as they redo work.
        moved_apart_s: At least so long is between two moves of a run.
        most_promises: More waiting runs than this are given no start of their own; it bounds the cost of a decision.
    """

    backfill: Backfill = Backfill.EASY
    fair: bool = True
    order: Order = Order.FIRST_COME
    preempts_longer: bool = False
    selection: Selection = Selection.NONE
    preempts: bool = True
    moves: bool = True
    most_moved: float = 0.05
    moved_apart_s: float = 4 * 3600.0
    most_promises: int = 50

    @property
    def num_promises(self) -> int:
        """Return how many of those that wait are promised a start."""
        return {Backfill.NONE: 0, Backfill.EASY: 1, Backfill.CONSERVATIVE: self.most_promises}[self.backfill]


DEFAULT = SchedulingPolicy()

POLICIES = {
    "fifo": SchedulingPolicy(backfill=Backfill.NONE, fair=False, order=Order.FIRST_COME, preempts=False, moves=False),
    "backfill": SchedulingPolicy(fair=False, order=Order.FIRST_COME, preempts=False, moves=False),
    "conservative": SchedulingPolicy(
        backfill=Backfill.CONSERVATIVE, fair=False, order=Order.FIRST_COME, preempts=False, moves=False
    ),
    "default": DEFAULT,
    "shortest": SchedulingPolicy(order=Order.SHORTEST),
    "preempting": SchedulingPolicy(order=Order.SHORTEST, preempts_longer=True),
    "least-work": SchedulingPolicy(order=Order.SHORTEST, selection=Selection.LEAST_WORK),
    "finish-time": SchedulingPolicy(order=Order.SHORTEST, selection=Selection.FINISH_TIME),
}
