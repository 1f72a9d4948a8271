"""Ranks a run among those of its team: points of priority, as the order of the rules counts them.

First come, first served: the priority that was asked for and what waiting has added (``fairlead.policy.queue.ageing``).
Shortest first: what is left of the run counts against it besides. A run that needs the whole cluster for W more seconds
loses a point for every ``AGEING_S / PATIENCE`` of them, as if it had come ``PATIENCE x W`` seconds later. Per GPU that
is the order of shortest remaining service, which is that of ``fairlead.policy.selection.worth.worth``.

So nobody starves: a run of W is passed by none of its priority that comes more than ``PATIENCE x W`` seconds later, nor
by one of p points more that comes ``p x AGEING_S`` seconds after that.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fairlead.policy.queue.ageing import AGEING_S, effective_priority
from fairlead.policy.queue.dominant_shares import Capacity, asked, dominant_share
from fairlead.policy.queue.quotas import is_scavenger
from fairlead.policy.queue.remaining_work import Remaining, remaining_of
from fairlead.state.scheduling_policy import Order
from fairlead.state.snapshot import Snapshot, Workload

# What counts as left of a run of which nothing is known, in seconds of the whole cluster, however large it is. So such
# runs keep their turn among themselves, and go behind those that are known to be short, before those known to be long.
UNKNOWN_S = 600.0
# Seconds of waiting for each second of the whole cluster; see docs/decisions/0013 for what other values give.
PATIENCE = 300.0


@dataclass(slots=True, kw_only=True)
class Standing:
    """Points of runs at one time; worked out once for each.

    Attributes:
        whole: All that the cluster has.
    """

    order: Order
    remaining: Remaining
    whole: Capacity
    now: float
    _points: dict[str, int] = field(default_factory=dict)
    _left_s: dict[str, float | None] = field(default_factory=dict)
    _work_s: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, whole: Capacity, order: Order, now: float) -> "Standing":
        """That of the runs of a snapshot."""
        return cls(order=order, remaining=remaining_of(snapshot.completed), whole=whole, now=now)

    def points(self, workload: Workload) -> int:
        """Points of priority; the run with more of them goes first. Those of a scavenger never change."""
        if workload.uid not in self._points:
            points = effective_priority(workload, self.now)
            if self.order is Order.SHORTEST and not is_scavenger(workload.spec):
                points -= int(PATIENCE * self.work_s(workload) / AGEING_S)
            self._points[workload.uid] = points
        return self._points[workload.uid]

    def precedence(self, workload: Workload) -> tuple[int, float, float, str]:
        """Sorts runs of one team: the first comes first."""
        work_s = 0.0 if self.order is Order.FIRST_COME or is_scavenger(workload.spec) else self.work_s(workload)
        return -self.points(workload), work_s, workload.created_at, workload.uid

    def in_order(self, waiting: Iterable[Workload]) -> list[Workload]:
        """Those of each team in their turn, by ``precedence``."""
        if self.order is not Order.FIRST_COME:
            return sorted(waiting, key=self.precedence)
        now = self.now
        ranked = [(-effective_priority(each, now), each.created_at, each.uid, each) for each in waiting]
        # A uid is of one run, so that no two runs are compared.
        ranked.sort()
        return [each for *_, each in ranked]

    def work_s(self, workload: Workload) -> float:
        """Return what is left of it, in seconds of the whole cluster."""
        if workload.uid not in self._work_s:
            left_s, share = self.left_s(workload), dominant_share(asked(workload.spec, self.whole), self.whole)
            self._work_s[workload.uid] = UNKNOWN_S if left_s is None else share * left_s
        return self._work_s[workload.uid]

    def left_s(self, workload: Workload) -> float | None:
        """Return what is left of it, in seconds on the fewest nodes that it asks for; None when nothing is known."""
        if workload.uid not in self._left_s:
            self._left_s[workload.uid] = self.remaining.left_s(workload, self.now)
        return self._left_s[workload.uid]
