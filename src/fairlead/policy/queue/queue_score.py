"""Scores a run among those of its team: points of priority, as counted by the order of the rules.

First come, first served: the requested priority plus the points gained by waiting (``fairlead.policy.queue.ageing``).
Shortest first: the remaining work of the run is subtracted. A run that needs the whole cluster for W more seconds loses
a point for every ``AGEING_S / PATIENCE`` of them, as if it had arrived ``PATIENCE x W`` seconds later. Per GPU this is
the order of shortest remaining service, that of ``fairlead.policy.selection.worth.worth``.

So no run starves: a run of W is overtaken by none of its priority that arrives more than ``PATIENCE x W`` seconds
later, nor by one with p points more that arrives ``p x AGEING_S`` seconds after that.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fairlead.policy.queue.ageing import AGEING_S, effective_priority
from fairlead.policy.queue.dominant_shares import ClusterCapacity, asked, dominant_share
from fairlead.policy.queue.quotas import is_scavenger
from fairlead.policy.queue.remaining_work import Remaining, remaining_of
from fairlead.state.scheduling_policy import Order
from fairlead.state.snapshot import Snapshot, Workload

# The remaining work assumed for a run of which nothing is known, in seconds of the whole cluster, whatever its size.
# Such runs keep their order among themselves, after runs known to be short and before runs known to be long.
UNKNOWN_S = 600.0
# Seconds of waiting for each second of the whole cluster; docs/decisions/0013 compares other values.
PATIENCE = 300.0


@dataclass(slots=True, kw_only=True)
class Standing:
    """Scores of runs at one time, each computed once.

    Attributes:
        whole: The capacity of the cluster.
    """

    order: Order
    remaining: Remaining
    whole: ClusterCapacity
    now: float
    _points: dict[str, int] = field(default_factory=dict)
    _left_s: dict[str, float | None] = field(default_factory=dict)
    _work_s: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, whole: ClusterCapacity, order: Order, now: float) -> "Standing":
        """Return the scores for the runs of a snapshot."""
        return cls(order=order, remaining=remaining_of(snapshot.completed), whole=whole, now=now)

    def points(self, workload: Workload) -> int:
        """Return the points of priority; the run with more points goes first. Those of a scavenger never change."""
        if workload.uid not in self._points:
            points = effective_priority(workload, self.now)
            if self.order is Order.SHORTEST and not is_scavenger(workload.spec):
                points -= int(PATIENCE * self.work_s(workload) / AGEING_S)
            self._points[workload.uid] = points
        return self._points[workload.uid]

    def precedence(self, workload: Workload) -> tuple[int, float, float, str]:
        """Return the sort key for runs of one team; the smallest comes first."""
        work_s = 0.0 if self.order is Order.FIRST_COME or is_scavenger(workload.spec) else self.work_s(workload)
        return -self.points(workload), work_s, workload.created_at, workload.uid

    def in_order(self, waiting: Iterable[Workload]) -> list[Workload]:
        """Return the runs sorted by ``precedence``."""
        if self.order is not Order.FIRST_COME:
            return sorted(waiting, key=self.precedence)
        now = self.now
        ranked = [(-effective_priority(run, now), run.created_at, run.uid, run) for run in waiting]
        # Uids are unique, so runs themselves are never compared.
        ranked.sort()
        return [run for *_, run in ranked]

    def work_s(self, workload: Workload) -> float:
        """Return the remaining work in seconds of the whole cluster."""
        if workload.uid not in self._work_s:
            left_s, share = self.left_s(workload), dominant_share(asked(workload.spec, self.whole), self.whole)
            self._work_s[workload.uid] = UNKNOWN_S if left_s is None else share * left_s
        return self._work_s[workload.uid]

    def left_s(self, workload: Workload) -> float | None:
        """Return the remaining time in seconds on the fewest nodes that the run requests; None if unknown."""
        if workload.uid not in self._left_s:
            self._left_s[workload.uid] = self.remaining.left_s(workload, self.now)
        return self._left_s[workload.uid]
