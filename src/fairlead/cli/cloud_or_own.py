"""Formats the comparison of cloud and owned nodes: each way to pay, the cheapest mix, the break-even, and a chart."""

from pathlib import Path
from typing import Any

import click

from fairlead.cli.charts import Axis, Curve, chart
from fairlead.cli.show import as_json, table
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.frozen import dataclass
from fairlead.ledger.comparison import Mix, Payment, break_even, cheapest_mix, level_times, load_of
from fairlead.ledger.prices import OwnedNode
from fairlead.ledger.usage import HOUR_MS
from fairlead.text.money import MICROUSD, describe_microusd
from fairlead.text.quantities import describe_dollars, describe_duration, plural
from fairlead.traces.reading import read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The busy time of each node, the busiest first, out of ``length_ms`` milliseconds."""

    name: str
    busy_ms: tuple[int, ...]
    length_ms: int


def load_of_machine(cluster: LocalCluster, since: float, until: float) -> Load:
    """Return the recorded load of this machine."""
    spans = cluster.busy_spans(since=since, until=until)
    busy = []
    for node in sorted({node for node, _, _ in spans}):
        # Concurrent runs count as one busy node.
        changes = load_of(((start, end, 1) for name, start, end in spans if name == node), size=len(spans))
        busy += level_times(changes)
    return _load("this machine", busy, round((until - since) * 1000))


def load_of_trace(path: Path, gpus: int) -> Load:
    """Return the load of a trace if each run starts at once, on nodes with a number of GPUs."""
    spans = [
        (round(each.at_s * 1000), round((each.at_s + each.duration_s) * 1000), round(each.num_gpus * 1000))
        for each in read_trace(path)
    ]
    if not any(held for _, _, held in spans):
        raise click.UsageError(f"no run of {path} asks for a GPU.")
    changes = load_of(spans, size=gpus * 1000)
    return _load(str(path), level_times(changes), changes[-1][0] - changes[0][0])


def describe(
    load: Load, prices: dict[Payment, int], node: OwnedNode | None, most: dict[Payment, int], *, json_: bool
) -> str:
    """Format the comparison for a load and prices, as text or JSON."""
    mix = cheapest_mix(load.busy_ms, load.length_ms, prices, most=most)
    alone = {way: _alone(load, way, rate) for way, rate in prices.items()}
    evens = _evens(prices)
    if json_:
        return as_json(_json(load, prices, node, mix, alone, evens))
    ways = [way for way in Payment if way in prices]
    rows = [
        (way.value, describe_dollars(prices[way] / MICROUSD), describe_microusd(alone[way]), str(mix.count(way)))
        for way in ways
    ]
    busy = sum(load.busy_ms) / max(1, load.length_ms * len(load.busy_ms))
    lines = [
        f"{load.name}: {plural(len(load.busy_ms), 'node')} at most, busy {busy:.1%} of {_say(load.length_ms)}.",
        "",
        table([("NODES", "AN HOUR", "ALL OF THEM", "IN THE CHEAPEST MIX"), *rows]),
        "",
        f"The cheapest mix costs {describe_microusd(mix.microusd)}, "
        f"on-demand alone {describe_microusd(alone[Payment.ON_DEMAND])}.",
    ]
    for way, even in evens.items():
        if even is None:
            lines.append(f"A node that is {way.value} never pays off: an hour of it costs more than on demand.")
        else:
            lines.append(f"A node that is {way.value} pays off if it is busy more than {even:.1%} of the time.")
            if way is Payment.OWNED and node is not None:
                hourly = prices[Payment.ON_DEMAND]
                parts = [f"{name} {rate / hourly:.1%}" for name, rate in node.terms.items() if rate and hourly]
                lines.append(f"That is {', '.join(parts)} of the on-demand price.")
    return "\n".join(lines)


def draw(load: Load, prices: dict[Payment, int], most: dict[Payment, int], node: OwnedNode | None) -> str:
    """Draw the cost of a node by its busy share for each way to pay, and the nodes of the cheapest mix, as SVG."""
    hours = max(1, load.length_ms) / HOUR_MS
    curves = []
    for way in (way for way in Payment if way in prices):
        hourly = prices[way] / MICROUSD
        terms = "" if way is not Payment.OWNED or node is None else f" ({_terms(node)})"
        level = f"{describe_dollars(hourly)} an hour{', busy or not' if way.is_fixed else ' that it is busy'}{terms}"
        first = hourly if way.is_fixed else 0.0
        curves.append(Curve(name=f"{way.value}: {level}", places=[(0.0, first), (100.0, hourly)]))
    for way, even in _evens(prices).items():
        if even is not None and even <= 1:
            name = f"{way.value} pays off above {even:.1%}"
            curves.append(Curve(name=name, places=[(100 * even, prices[way] / MICROUSD)], is_joined=False))
    mix = cheapest_mix(load.busy_ms, load.length_ms, prices, most=most)
    shown = [(100 * each.busy_ms / max(1, load.length_ms), each.microusd / MICROUSD / hours) for each in mix.levels]
    title = f"{load.name}: {plural(len(mix.levels), 'node')}, cheapest at {describe_microusd(mix.microusd)} in all"
    curves.append(Curve(name="nodes of this load, as the cheapest mix pays for them", places=shown, is_joined=False))
    x = Axis(name=f"part of {_say(load.length_ms)} that the node is busy, %")
    return chart(title, curves, x, Axis(name="dollars an hour of that time"))


def _terms(node: OwnedNode) -> str:
    return ", ".join(f"{name} {describe_dollars(rate / MICROUSD)}" for name, rate in node.terms.items() if rate)


def _evens(prices: dict[Payment, int]) -> dict[Payment, float | None]:
    return {way: break_even(prices[way], prices[Payment.ON_DEMAND]) for way in prices if way.is_fixed}


def _load(name: str, busy: list[int], length_ms: int) -> Load:
    return Load(name=name, busy_ms=tuple(sorted(busy, reverse=True)), length_ms=length_ms)


def _alone(load: Load, way: Payment, rate: int) -> int:
    """Compute the cost of the load if all nodes are paid for in one way."""
    busy_ms = [load.length_ms] * len(load.busy_ms) if way.is_fixed else load.busy_ms
    return cheapest_mix(busy_ms, load.length_ms, {Payment.ON_DEMAND: rate}).microusd


def _json(
    load: Load,
    prices: dict[Payment, int],
    node: OwnedNode | None,
    mix: Mix,
    alone: dict[Payment, int],
    evens: dict[Payment, float | None],
) -> dict[str, Any]:
    return {
        "load": load.name,
        "length_s": load.length_ms / 1000,
        "busy_s": [each / 1000 for each in load.busy_ms],
        "microusd_per_hour": {way.value: rate for way, rate in prices.items()},
        "terms": None if node is None else node.terms,
        "microusd_alone": {way.value: amount for way, amount in alone.items()},
        "mix": {way.value: mix.count(way) for way in prices},
        "microusd": mix.microusd,
        "break_even": {way.value: even for way, even in evens.items()},
    }


def _say(length_ms: int) -> str:
    return describe_duration(length_ms / 1000)
