"""Divides the bill of each node among its payers. Money is always whole micro-dollars."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Generic, TypeVar

from fairlead.frozen import dataclass
from fairlead.ledger.apportionment import apportion
from fairlead.ledger.usage import HOUR_MS, WHOLE, UsageInterval, Use

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch(Generic[Key]):
    """A span in which a node existed at one price, with the parts of it that were held.

    Attributes:
        rate: Micro-dollars for an hour of the node.
        rest: Payer of what was not held.
        held: Units of the node times milliseconds, by payer and use.
    """

    node: str
    start_ms: int
    end_ms: int
    rate: int
    rest: Key
    held: Mapping[tuple[Key, Use], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine(Generic[Key]):
    """The amount that one payer pays on one node for one use.

    Attributes:
        unit_ms: Units of the node times milliseconds, of which ``WHOLE`` times ``HOUR_MS`` are an hour of the node.
    """

    node: str
    key: Key
    use: Use
    microusd: int
    unit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(Generic[Key]):
    """All lines of some nodes; ``billed`` is the bill of each node in micro-dollars, the sum of its lines."""

    billed: Mapping[str, int]
    lines: tuple[BillLine[Key], ...]

    @property
    def billed_microusd(self) -> int:
        """Return the bill of all nodes together."""
        return sum(self.billed.values())


def statement(stretches: Iterable[Stretch[Key]]) -> Statement[Key]:
    """Sum up the bill of each node and divide it among its holders.

    A node's bill is its price times the time for which it existed, rounded once per node to the nearest micro-dollar.
    It is divided by time, price and share; what was not held is idle. If skewed clocks or an overbooked node make more
    held than existed, all parts shrink in proportion.
    """
    weights: defaultdict[str, defaultdict[tuple[Key, Use], int]] = defaultdict(lambda: defaultdict(int))
    amounts: defaultdict[str, defaultdict[tuple[Key, Use], int]] = defaultdict(lambda: defaultdict(int))
    unrounded: defaultdict[str, int] = defaultdict(int)
    for stretch in stretches:
        length_ms = stretch.end_ms - stretch.start_ms
        unrounded[stretch.node] += stretch.rate * length_ms
        node_weights, node_amounts = weights[stretch.node], amounts[stretch.node]
        available = WHOLE * length_ms
        idle = max(0, available - sum(stretch.held.values()))
        held = dict(stretch.held)
        if idle:
            held[stretch.rest, Use.IDLE] = held.get((stretch.rest, Use.IDLE), 0) + idle
        total = available if idle else sum(held.values())
        for (payer, use), unit_ms in held.items():
            # With more held than there was, the stretch costs what it costs, divided among them.
            node_weights[payer, use] += stretch.rate * (unit_ms if total == available else unit_ms * available // total)
            node_amounts[payer, use] += unit_ms
    billed = {node: (2 * amount + HOUR_MS) // (2 * HOUR_MS) for node, amount in unrounded.items()}
    lines = []
    for node, weights_of_node in weights.items():
        amounts_microusd = apportion(billed[node], list(weights_of_node.values()))
        lines += [
            BillLine(node=node, key=payer, use=use, microusd=microusd, unit_ms=amounts[node][payer, use])
            for (payer, use), microusd in zip(weights_of_node, amounts_microusd, strict=True)
        ]
    return Statement(billed=billed, lines=tuple(lines))


@dataclass(frozen=True, slots=True, order=True)
class PriceChange:
    """The price of an hour of a node in micro-dollars from a time on; None once the node is no longer paid for."""

    from_ms: int
    rate: int | None


def priced_spans(changes: Sequence[PriceChange], start_ms: int, end_ms: int) -> list[tuple[int, int, int]]:
    """Split a window where the price changes: beginning, end and hourly rate of each span, without unpriced ones."""
    ordered = sorted(changes, key=lambda change: change.from_ms)
    spans = []
    for index, change in enumerate(ordered):
        next_from_ms = ordered[index + 1].from_ms if index + 1 < len(ordered) else end_ms
        start, end = max(change.from_ms, start_ms), min(next_from_ms, end_ms)
        if change.rate is not None and start < end:
            spans.append((start, end, change.rate))
    return spans


def stretches_of(
    prices: Mapping[str, Sequence[PriceChange]],
    intervals: Iterable[UsageInterval],
    start_ms: int,
    end_ms: int,
    *,
    key: Callable[[UsageInterval], Key],
    rest: Callable[[str], Key],
) -> list[Stretch[Key]]:
    """Sum up intervals within a window, for each node and price.

    Args:
        prices: Price changes of each node.
        key: Returns the payer of an interval.
        rest: Returns the payer of what was not held of a node.
    """
    by_node: defaultdict[str, list[UsageInterval]] = defaultdict(list)
    for interval in intervals:
        by_node[interval.node].append(interval)
    stretches = []
    for node, changes in prices.items():
        for start, end, rate in priced_spans(changes, start_ms, end_ms):
            held: defaultdict[tuple[Key, Use], int] = defaultdict(int)
            for interval in by_node[node]:
                if (overlap_ms := interval.overlap_ms(start, end)) > 0:
                    held[key(interval), interval.use] += overlap_ms * interval.share
            stretches.append(
                Stretch(node=node, start_ms=start, end_ms=end, rate=rate, rest=rest(node), held=dict(held))
            )
    return stretches


def cost_of(intervals: Iterable[UsageInterval], prices: Mapping[str, Sequence[PriceChange]]) -> int | None:
    """Return the cost of intervals in micro-dollars; None if no price is known for any of them."""
    amount, is_priced = 0, False
    for interval in intervals:
        for start, end, rate in priced_spans(prices.get(interval.node, ()), interval.start_ms, interval.end_ms):
            amount, is_priced = amount + rate * (end - start) * interval.share, True
    denominator = HOUR_MS * WHOLE
    return (2 * amount + denominator) // (2 * denominator) if is_priced else None
