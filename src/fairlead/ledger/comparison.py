"""Finds the cheapest mix of owned and cloud nodes for a recorded load.

The load is how many nodes were busy at each time. The first node is busy most of the time, the tenth less: as levels of
the load are nested, each level is paid for by itself, and the cheapest way for each is the cheapest mix of all. Nothing
is estimated: load and prices are given. Money is micro-dollars, prices are for an hour of a node.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate, pairwise

from fairlead.frozen import dataclass
from fairlead.ledger.usage import HOUR_MS, UsageInterval


class Payment(StrEnum):
    """A way to pay for a node. The first two are paid for whether it is busy or not."""

    OWNED = "owned"
    RESERVED = "reserved"
    ON_DEMAND = "on-demand"
    SPOT = "spot"

    @property
    def is_fixed(self) -> bool:
        """Return whether it is paid for all the time, busy or not."""
        return self in (Payment.OWNED, Payment.RESERVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One more node of the mix: how long it was busy, how it is paid for, and what it costs."""

    busy_ms: int
    payment: Payment
    microusd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The cheapest mix, busiest node first, over a time."""

    length_ms: int
    levels: tuple[Level, ...]

    @property
    def microusd(self) -> int:
        """Return the cost of all levels."""
        return sum(level.microusd for level in self.levels)

    def count(self, payment: Payment) -> int:
        """Return the number of nodes that are paid for in that way."""
        return sum(level.payment is payment for level in self.levels)


def level_times(changes: Sequence[tuple[int, int]]) -> list[int]:
    """Return the busy milliseconds of each level of a load, from the first node on.

    Args:
        changes: Times in milliseconds, ascending, with the number of nodes that are busy from then on; after the last
            none is.

    Raises:
        ValueError: Times fall, or a number is negative.
    """
    lasted: defaultdict[int, int] = defaultdict(int)
    for (at, count), (until, _) in pairwise(changes):
        if until < at or count < 0:
            raise ValueError("times rise, and numbers of nodes are not negative")
        lasted[count] += until - at
    # A level is busy for as long as it, or any level above it, is the last one that is.
    busy = list(accumulate(lasted[count] for count in range(max(lasted, default=0), 0, -1)))
    return busy[::-1]


def load_of(spans: Iterable[tuple[int, int, int]], size: int = 1) -> list[tuple[int, int]]:
    """Return the number of busy nodes over time, given spans that each hold a part of a node.

    Args:
        spans: Beginning and end in milliseconds, and the amount held, in units of which a node has ``size``.
    """
    deltas: defaultdict[int, int] = defaultdict(int)
    for start, end, held in spans:
        deltas[start] += held
        deltas[end] -= held
    changes, now = [], 0
    for at in sorted(deltas):
        now += deltas[at]
        changes.append((at, -(-now // size)))
    return changes


def busy_levels(spans: Iterable[tuple[str, int, int]]) -> list[int]:
    """Return the busy milliseconds of each level of a load: how long at least one node was busy, at least two, ...

    Args:
        spans: Nodes with the beginning and end, in milliseconds, of what was held of them. Several at once keep a node
            busy once.
    """
    by_node: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for node, start, end in spans:
        by_node[node].append((start, end, 1))
    busy = []
    for held in by_node.values():
        changes = load_of(held, size=len(held))
        busy += [(at, until, 1) for (at, count), (until, _) in pairwise(changes) if count]
    return level_times(load_of(busy))


def pool_loads(
    intervals: Iterable[UsageInterval], pools: Mapping[str, str], start_ms: int, end_ms: int
) -> dict[str | None, dict[str, tuple[int, ...]]]:
    """Return the load that runs were on each pool within a window, as ``busy_levels``: of each team, and None for all.

    Args:
        pools: The pool of each node; the nodes without one are a pool with an empty name.
    """
    spans: defaultdict[tuple[str | None, str], list[tuple[str, int, int]]] = defaultdict(list)
    for interval in intervals:
        if interval.holder is not None and interval.share and interval.overlap_ms(start_ms, end_ms):
            span = interval.node, max(interval.start_ms, start_ms), min(interval.end_ms, end_ms)
            for team in (None, interval.holder.team):
                spans[team, pools.get(interval.node, "")].append(span)
    loads: defaultdict[str | None, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for (team, pool), node_spans in spans.items():
        loads[team][pool] = tuple(busy_levels(node_spans))
    return dict(loads)


def cheapest_mix(
    busy_ms: Sequence[int],
    length_ms: int,
    prices: dict[Payment, int],
    *,
    egress: int = 0,
    most: dict[Payment, int] | None = None,
) -> Mix:
    """Choose the cheapest way to pay for each level, within bounds on the number of nodes of each way.

    Args:
        busy_ms: Busy time of each level, descending; none longer than ``length_ms``.
        egress: Micro-dollars for the data that leave the cloud in an hour in which a rented node is busy.
        most: Maximum number of nodes of a way; unbounded without one. On-demand has none.

    Raises:
        ValueError: There is no price for on-demand nodes, or a level is busy longer than there was time.
    """
    if Payment.ON_DEMAND not in prices:
        raise ValueError("a price of on-demand nodes is needed: what nothing else may carry goes there")
    if any(level > length_ms for level in busy_ms):
        raise ValueError("no node is busy longer than there was time")
    bounds = {way: len(busy_ms) if most is None else most.get(way, len(busy_ms)) for way in prices}
    bounds[Payment.ON_DEMAND] = len(busy_ms)
    # Of two ways, the one in which a busy hour costs less, apart from what is paid at all times, belongs to the busier
    # levels: exchanging two levels that lie otherwise costs no more. How many of each is left, which is dynamic
    # programming.
    ways = sorted(prices, key=lambda way: (0 if way.is_fixed else prices[way]) + _egress(way, egress))
    costs = {way: [cost_of(way, busy, length_ms, prices[way], egress=egress) for busy in busy_ms] for way in ways}
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for way in ways:
        after: dict[int, tuple[int, tuple[int, ...]]] = {}
        for level, (amount, counts) in best.items():
            most_here = min(bounds[way], len(busy_ms) - level)
            for more, cost in enumerate(accumulate(costs[way][level : level + most_here], initial=amount)):
                if level + more not in after or cost < after[level + more][0]:
                    after[level + more] = cost, (*counts, more)
        best = after
    payments = [way for way, count in zip(ways, best[len(busy_ms)][1], strict=True) for _ in range(count)]
    levels = (
        Level(busy_ms=busy, payment=way, microusd=costs[way][level])
        for level, (busy, way) in enumerate(zip(busy_ms, payments, strict=True))
    )
    return Mix(length_ms=length_ms, levels=tuple(levels))


def break_even(way: Payment, prices: dict[Payment, int], *, egress: int = 0) -> float | None:
    """Return the busy share above which a fixed way is cheaper than on demand; None if it never is."""
    fixed = prices[way]
    # What both pay for egress does not decide.
    hourly = prices[Payment.ON_DEMAND] + egress - _egress(way, egress)
    if fixed == 0:
        return 0.0
    return fixed / hourly if fixed <= hourly else None


def cost_of(way: Payment, busy_ms: int, length_ms: int, rate: int, *, egress: int = 0) -> int:
    """Return the cost of a node that is paid for in one way and busy for some of the time."""
    paid_ms = length_ms if way.is_fixed else busy_ms
    return (2 * (rate * paid_ms + _egress(way, egress) * busy_ms) + HOUR_MS) // (2 * HOUR_MS)


def _egress(way: Payment, egress: int) -> int:
    """Return the part of the egress that a way pays: data of one's own machines do not leave a cloud."""
    return 0 if way is Payment.OWNED else egress
