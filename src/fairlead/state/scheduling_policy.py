"""Rules by which pending runs are started: the named policies of clusters, which a simulation can compare."""

from enum import StrEnum

from fairlead.frozen import dataclass


class Backfill(StrEnum):
    """The set of pending runs that are promised a start which no later run may delay.

    NONE: no run starts before one that waits ahead of it. EASY (Lifka, JSSPP 1995): the first that does not fit.
        CONSERVATIVE (Mu'alem and Feitelson, TPDS 2001): all, up to ``SchedulingPolicy.most_promises``.
    """

    NONE = "none"
    EASY = "easy"
    CONSERVATIVE = "conservative"


class Order(StrEnum):
    """The order of runs of one team.

    FIRST_COME: Higher priority first, which waiting raises, then the older. SHORTEST: The same, but the remaining work
        of a run counts against it, as described in ``fairlead.policy.queue.queue_score``.
    """

    FIRST_COME = "first-come"
    SHORTEST = "shortest"


class Selection(StrEnum):
    """The rule that selects the set of runs that should hold the GPUs, if any of them may be stopped for others.

    NONE: No set is selected; each run is considered in order.
    LEAST_WORK: The set whose progress is worth most, where a second of a run with less remaining work is worth more, as
        described in ``fairlead.policy.selection.worth``.
    FINISH_TIME: First the runs that would otherwise be late against an equal share of the cluster, as described in
        ``fairlead.policy.selection.finish_time``.
    """

    NONE = "none"
    LEAST_WORK = "least-work"
    FINISH_TIME = "finish-time"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPolicy:
    """The rules of a queue.

    Attributes:
        fair: Whether teams have guarantees and weighted shares, and waiting raises priority.
        order: The order of runs of one team; needs ``fair``.
        preempts_longer: With ``order`` SHORTEST, whether runs may be stopped for others of their team with less
            remaining work, if that reduces total waiting.
        selection: The rule that selects the runs that hold the GPUs, across all teams; needs ``fair`` and ``preempts``.
        holds_unknown: Whether room is held for the first run while its start is unknown; otherwise others pass it.
        preempts: Whether runs may be stopped, with a checkpoint, for others that come before them.
        moves: Whether runs may be moved, with a checkpoint, to free room, so that another gets contiguous room.
        most_moved: The part of the whole cluster's time in any hour that moves may cost at most in repeated work.
        moved_apart_s: The minimum time between two moves of a run.
        places_by_risk: Whether, of nodes that are otherwise equal, wide gangs get those with the fewest failures.
        withdraws_nodes: Whether nodes are taken out whose failures cost more than their repair.
        shows_names: Whether reasons name the runs of other teams than that of their reader.
        most_promises: The maximum number of pending runs with a promised start; bounds the cost of a decision.
    """

    backfill: Backfill = Backfill.EASY
    fair: bool = True
    order: Order = Order.FIRST_COME
    preempts_longer: bool = False
    selection: Selection = Selection.NONE
    holds_unknown: bool = True
    preempts: bool = True
    moves: bool = True
    most_moved: float = 0.05
    moved_apart_s: float = 4 * 3600.0
    places_by_risk: bool = True
    withdraws_nodes: bool = True
    shows_names: bool = True
    most_promises: int = 50

    @property
    def num_promises(self) -> int:
        """Return the number of pending runs that are promised a start."""
        if self.backfill is Backfill.CONSERVATIVE:
            return self.most_promises
        return 1 if self.backfill is Backfill.EASY else 0


DEFAULT = SchedulingPolicy()

POLICIES = {
    "fifo": SchedulingPolicy(backfill=Backfill.NONE, fair=False, order=Order.FIRST_COME, preempts=False, moves=False),
    "backfill": SchedulingPolicy(fair=False, order=Order.FIRST_COME, preempts=False, moves=False),
    "conservative": SchedulingPolicy(
        backfill=Backfill.CONSERVATIVE, fair=False, order=Order.FIRST_COME, preempts=False, moves=False
    ),
    "default": DEFAULT,
    "best-effort": SchedulingPolicy(holds_unknown=False),
    "shortest": SchedulingPolicy(order=Order.SHORTEST),
    "preempting": SchedulingPolicy(order=Order.SHORTEST, preempts_longer=True),
    "least-work": SchedulingPolicy(order=Order.SHORTEST, selection=Selection.LEAST_WORK),
    "finish-time": SchedulingPolicy(order=Order.SHORTEST, selection=Selection.FINISH_TIME),
}
