"""Forecasts the cost of a run on the existing nodes that have a price."""

import math

from fairlead.frozen import dataclass
from fairlead.policy.placement.placement import why_never
from fairlead.policy.queue import run_forecast
from fairlead.policy.queue.budgets import rate_of
from fairlead.policy.queue.durations import durations_of
from fairlead.state.snapshot import Snapshot, Workload

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostForecast:
    """The cost of a run on nodes of one price, in micro-dollars.

    Attributes:
        node: One of the nodes.
        num_nodes: The number of such nodes.
        microusd: The total; None if the duration of the run is unknown.
        low_microusd, high_microusd: Bounds that hold in nine of ten cases; None if unknown.
        is_limit: Whether the total is a limit that the run's ``max_duration`` or ``max_cost`` enforces.
    """

    node: str
    num_nodes: int
    microusd_per_hour: int
    microusd: int | None
    is_limit: bool
    low_microusd: int | None = None
    high_microusd: int | None = None


def forecasts(workload: Workload, snapshot: Snapshot, now: float) -> tuple[CostForecast, ...]:
    """Return the cost for each price of nodes that could hold a pod of the run, cheapest first."""
    spec = workload.spec
    one, length_s = spec.at(1), durations_of(snapshot.completed).length_s(workload, now)
    kinds: dict[int, list[str]] = {}
    for node in snapshot.nodes:
        if node.price_per_hour and why_never(one, (node,)) is None:
            kinds.setdefault(round(rate_of(spec, (node,)) * HOUR_S), []).append(node.name)
    most = math.inf if spec.max_cost is None else spec.max_cost * 1_000_000
    costs, takes = [], run_forecast.forecast(workload, snapshot, now)
    for rate, names in sorted(kinds.items()):
        cost = min(most, rate * length_s / HOUR_S if rate else 0.0)
        costs.append(
            CostForecast(
                node=min(names),
                num_nodes=len(names),
                microusd_per_hour=rate,
                microusd=None if math.isinf(cost) else round(cost),
                is_limit=spec.max_duration_s is not None or cost == most,
                low_microusd=None if takes is None else round(min(most, rate * takes.low_s / HOUR_S)),
                high_microusd=None if takes is None else round(min(most, rate * takes.high_s / HOUR_S)),
            )
        )
    return tuple(costs)
