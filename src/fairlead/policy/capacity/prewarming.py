"""Decides how many nodes of a pool should exist before runs wait for them: by a forecast, and at known peaks.

The number is a total of used and free nodes: missing ones are requested by placeholders, as all nodes are, and surplus
ones are no longer held. No run is stopped for that: a node is removed once it is empty.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING

from fairlead.deferred import deferred
from fairlead.policy.capacity.demand_history import SLOT_S
from fairlead.policy.capacity.pool_nodes import node_of
from fairlead.policy.placement.node_eligibility import Eligibility
from fairlead.policy.placement.placement import NodeCapacity, shape_of
from fairlead.policy.queue.timeline import members
from fairlead.policy.scaling.scale_up import is_asking, requested_pods
from fairlead.specs.pool import Peak, Pool
from fairlead.state.cron_times import times_after, zone_of
from fairlead.state.pool_demand import PoolDemand, Standby
from fairlead.state.snapshot import Node, Snapshot, Workload
from fairlead.text.quantities import describe_duration, plural

if TYPE_CHECKING:
    from fairlead.policy.capacity import demand_forecast
else:
    demand_forecast = deferred("fairlead.policy.capacity.demand_forecast")


def standby(snapshot: Snapshot, now: float) -> tuple[Standby, ...] | None:
    """Return the number of nodes that each pool should have; None if it is unchanged."""
    wanted = tuple(reserve for pool in snapshot.pools if (reserve := _wanted(pool, now)) is not None)
    return None if wanted == snapshot.standby else wanted


def next_look(pools: Iterable[PoolDemand], now: float) -> Iterator[float]:
    """Yield times at which the number may change although nothing has happened."""
    for demand in pools:
        if demand.pool.prewarm is not None:
            yield (now // SLOT_S + 1) * SLOT_S
        for peak in demand.pool.peaks.values():
            for begins, ends in _spans(peak, now, demand.lead_s):
                yield begins
                yield ends


def needed_nodes(demand: Sequence[PoolDemand], snapshot: Snapshot) -> tuple[int, ...]:
    """Return how many nodes of each pool are in use, or missing for the runs that request nodes.

    A requesting run counts for the cheapest pool that suits it.
    """
    busy = {pod.node for pod in snapshot.pods if not pod.phase.is_final}
    numbers = [len(busy & pool_demand.nodes) for pool_demand in demand]
    asking = [run for run in snapshot.workloads if is_asking(run)]
    if asking:
        templates = [_template(pool_demand.pool) for pool_demand in demand]
        eligibility = Eligibility(templates)
        order = sorted(range(len(demand)), key=lambda n: _price(demand[n].pool))
        room: dict[int, int] = {}
        for run in asking:
            _count(run, templates, eligibility, order, numbers, room)
    return tuple(min(number, pool_demand.pool.nodes) for number, pool_demand in zip(numbers, demand, strict=True))


def _count(
    run: Workload,
    templates: Sequence[Node],
    eligibility: Eligibility,
    order: Sequence[int],
    numbers: list[int],
    room: dict[int, int],
) -> None:
    """Add the nodes that a run lacks to its pool; ``room`` tracks the used thousandths of each pool's added nodes."""
    shape = shape_of(run.spec, eligibility)
    for number in order:
        per_node = members(NodeCapacity.of(templates[number]), shape, 1000)
        if per_node:
            # In thousandths of a node, because small runs share one.
            wanted = room.get(number, 0) + -(-1000 * len(requested_pods(run)) // per_node)
            numbers[number] += -(-wanted // 1000) - -(-room.get(number, 0) // 1000)
            room[number] = wanted
            return


def _wanted(demand: PoolDemand, now: float) -> Standby | None:
    pool = demand.pool
    nodes, why = 0, ""
    if pool.prewarm is not None:
        # The next look comes a minute later, and its nodes come as much later.
        horizon = math.ceil(demand.lead_s / SLOT_S) + 1
        predicted = demand_forecast.forecast(demand.needed, horizon, pool.prewarm.confidence)
        if predicted is not None:
            nodes = min(predicted.nodes, pool.prewarm.most_nodes or pool.nodes)
            why = (
                f"within the {describe_duration(demand.lead_s)} that nodes take, {plural(nodes, 'node')} will do "
                f"{pool.prewarm.confidence:.3g} of the time, by {predicted.by}"
            )
    for name, peak in sorted(pool.peaks.items()):
        if peak.nodes > nodes and any(begins <= now < ends for begins, ends in _spans(peak, now, demand.lead_s)):
            nodes, why = peak.nodes, f"the peak {name} asks for {plural(peak.nodes, 'node')}"
    nodes = min(nodes, pool.nodes)
    return Standby(pool=pool.name, nodes=nodes, why=why) if nodes else None


def _spans(peak: Peak, now: float, lead_s: float) -> Iterator[tuple[float, float]]:
    """Yield when a peak's nodes are requested and released, around now.

    They are requested ahead by the lead time of nodes.
    """
    for day in range(-int(peak.for_s // 86400) - 2, 3):
        for at in _moments(peak.at, peak.timezone, _day(now, peak.timezone, day)):
            yield at - lead_s, at + peak.for_s


def _day(now: float, timezone: str, offset: int) -> str:
    return (datetime.fromtimestamp(now, zone_of(timezone)).date() + timedelta(days=offset)).isoformat()


@lru_cache(maxsize=1024)
def _moments(text: str, timezone: str, day: str) -> tuple[float, ...]:
    """Return the times of a cron on a day."""
    zone = zone_of(timezone)
    midnight = datetime.fromisoformat(day).replace(tzinfo=zone)
    begin, end = midnight.timestamp(), (midnight + timedelta(days=1)).timestamp()
    return tuple(takewhile(lambda at: at < end, times_after(text, begin - 1, zone)))


def _template(pool: Pool) -> Node:
    return node_of(pool, f"{pool.name}-template")


def _price(pool: Pool) -> float:
    return math.inf if pool.price_per_hour is None else pool.price_per_hour
