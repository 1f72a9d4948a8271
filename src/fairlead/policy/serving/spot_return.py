"""Decides when replicas above the base that hold on-demand nodes for lack of spot return to spot.

A move costs the start of a replica beside the one that it replaces. How long spot stays available is unknown. So a
replica moves once spot has had room for so long that staying on on-demand has cost as much extra as a move costs: the
break-even rule of the ski rental problem, which costs at most twice the optimum with full knowledge (Karlin, Manasse,
Rudolph and Sleator,
"Competitive snoopy caching", Algorithmica 1988).
"""

import math
from collections.abc import Mapping, Sequence

from fairlead.frozen import dataclass
from fairlead.policy.placement.free_capacity import rooms
from fairlead.policy.placement.placement import place
from fairlead.policy.placement.task_mix import settled_mix
from fairlead.policy.queue.budgets import HOUR_S, rate_of
from fairlead.specs.gang import GangSpec
from fairlead.state.snapshot import Snapshot, Workload
from fairlead.text.money import MICROUSD

# Spot room that exists for less may be gone before the move is complete.
LEAST_S = 60.0
# Spot price relative to on-demand, if nodes have no price: in the upper half of cloud prices.
USUAL_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRoom:
    """Room for another replica of an endpoint on spot nodes now.

    Attributes:
        price: Dollars per hour of a replica there; None if unknown.
        price_now: Dollars per hour of the most expensive replica that would move.
    """

    price: float | None = None
    price_now: float | None = None

    def pays_after_s(self, start_s: float) -> float:
        """Return for how long there has to be room before a replica moves; infinity for never.

        Args:
            start_s: The start time of a replica.
        """
        if self.price is None or self.price_now is None:
            share = USUAL_SHARE
        elif self.price >= self.price_now:
            return math.inf
        else:
            share = self.price / self.price_now
        return max(LEAST_S, start_s * share / (1.0 - share))

    @property
    def prices(self) -> str:
        """Return both prices as the end of a sentence; empty if unknown."""
        if self.price is None or self.price_now is None:
            return ""
        return f", at ${self.price:.4g} an hour instead of ${self.price_now:.4g}"


def spot_room(spec: GangSpec, displaced: Sequence[Workload], snapshot: Snapshot) -> SpotRoom | None:
    """Return the room that a replica of a spec would find on spot nodes now; None for none."""
    placed = place(spec.on(spot=True), rooms(snapshot.nodes, snapshot.pods, settled_mix(snapshot.workloads)))
    if placed is None:
        return None
    uids = {run.uid for run in displaced}
    nodes = {pod.node for pod in snapshot.pods if pod.workload_uid in uids and not pod.phase.is_final}
    return SpotRoom(
        price=_price(spec, {placement.node for placement in placed}, snapshot), price_now=_price(spec, nodes, snapshot)
    )


def _price(spec: GangSpec, names: set[str], snapshot: Snapshot) -> float | None:
    """Return dollars per hour on the most expensive of some nodes; None if one of them has no price."""
    nodes: Mapping[str, float | None] = {node.name: node.price_per_hour for node in snapshot.nodes}
    if any(nodes.get(name) is None for name in names):
        return None
    return rate_of(spec, [node for node in snapshot.nodes if node.name in names]) * HOUR_S / MICROUSD
