"""Formats the comparison of cloud and owned nodes: each way to pay, the cheapest mix, the break-even, and a chart."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.charts import Axis, Curve, chart
from fairlead.cli.show import as_json, table
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.frozen import dataclass
from fairlead.ledger.comparison import (
    Mix,
    Payment,
    break_even,
    busy_levels,
    cheapest_mix,
    cost_of,
    level_times,
    load_of,
)
from fairlead.ledger.prices import OwnedNode
from fairlead.ledger.usage import HOUR_MS
from fairlead.text.money import MICROUSD, describe_microusd
from fairlead.text.quantities import describe_dollars, describe_duration, plural
from fairlead.traces.reading import read_trace

if TYPE_CHECKING:
    from fairlead.cluster.kubernetes.client.user_client import UserClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """Ways to pay for a node.

    Attributes:
        prices: Micro-dollars an hour of each way.
        egress: Micro-dollars for the data that leave the cloud in an hour in which a rented node is busy.
        node: The owned node, with its terms.
        most: Maximum number of nodes of a way.
    """

    prices: dict[Payment, int]
    egress: int = 0
    node: OwnedNode | None = None
    most: dict[Payment, int]

    def mix(self, load: "Load") -> Mix:
        """Return the cheapest mix for a load."""
        return cheapest_mix(load.busy_ms, load.length_ms, self.prices, egress=self.egress, most=self.most)

    def alone(self, way: Payment, load: "Load") -> int:
        """Return the cost of a load of which all nodes are paid for in one way."""
        return sum(cost_of(way, busy, load.length_ms, self.prices[way], egress=self.egress) for busy in load.busy_ms)

    def evens(self) -> dict[Payment, float | None]:
        """Return the busy share from which each fixed way pays off."""
        return {way: break_even(way, self.prices, egress=self.egress) for way in self.prices if way.is_fixed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The busy time of each level of a load, the first one first, out of ``length_ms`` milliseconds."""

    name: str
    busy_ms: tuple[int, ...]
    length_ms: int


def load_of_machine(cluster: LocalCluster, since: float, until: float) -> Load:
    """Return the recorded load of this machine."""
    busy = busy_levels(cluster.busy_spans(since=since, until=until))
    return Load(name="this machine", busy_ms=tuple(busy), length_ms=round((until - since) * 1000))


def load_of_cluster(cluster: "UserClient", pool: str | None, since: float, until: float) -> Load:
    """Return the recorded load of a pool of a cluster; without one, of the only pool that runs held.

    Raises:
        NotFound, NotAllowed: No load is recorded, or the user may not read any.
        click.UsageError: Runs held several pools, or not this one.
    """
    load = cluster.load(since, until)
    # A cluster without pools has one with an empty name.
    names = ", ".join(map(repr, sorted(load.pools))) or "none"
    if pool is None and len(load.pools) > 1:
        raise click.UsageError(f"A node of one pool costs other than one of another: give --pool, one of {names}.")
    if pool is not None and pool not in load.pools:
        raise click.UsageError(f"Runs held no node of a pool {pool!r} in this time. They held nodes of: {names}.")
    named = pool if pool is not None else next(iter(load.pools), "")
    of_team = "" if load.team is None else f"namespace {load.team} on "
    return Load(
        name=f"{of_team}{f'pool {named} of ' if named else ''}{cluster.account}",
        busy_ms=load.pools.get(named, ()),
        length_ms=round((load.end - load.start) * 1000),
    )


def load_of_trace(path: Path, gpus: int) -> Load:
    """Return the load of a trace if each run starts at once, on nodes with a number of GPUs."""
    spans = [
        (round(arrival.at_s * 1000), round((arrival.at_s + arrival.duration_s) * 1000), round(arrival.num_gpus * 1000))
        for arrival in read_trace(path)
    ]
    if not any(held for _, _, held in spans):
        raise click.UsageError(f"no run of {path} asks for a GPU.")
    changes = load_of(spans, size=gpus * 1000)
    return Load(name=str(path), busy_ms=tuple(level_times(changes)), length_ms=changes[-1][0] - changes[0][0])


def describe(load: Load, offers: Offers, *, json_: bool) -> str:
    """Format the comparison for a load and prices, as text or JSON."""
    prices, node, mix = offers.prices, offers.node, offers.mix(load)
    alone = {way: offers.alone(way, load) for way in prices}
    if json_:
        return as_json(_json(load, offers, mix, alone))
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
    hourly = prices[Payment.ON_DEMAND] + offers.egress
    if offers.egress:
        lines.append(
            f"In each hour in which it is busy, a node of the cloud costs {describe_dollars(offers.egress / MICROUSD)} "
            "more, for the data that leave it."
        )
    for way, even in offers.evens().items():
        if even is None:
            lines.append(f"A node that is {way.value} never pays off: an hour of it costs more than on demand.")
        else:
            lines.append(f"A node that is {way.value} pays off if it is busy more than {even:.1%} of the time.")
            if way is Payment.OWNED and node is not None:
                parts = [f"{name} {rate / hourly:.1%}" for name, rate in node.terms.items() if rate and hourly]
                lines.append(
                    f"That is {', '.join(parts)} of the on-demand price{' with egress' if offers.egress else ''}."
                )
    return "\n".join(lines)


def draw(load: Load, offers: Offers) -> str:
    """Draw the cost of a node by its busy share for each way to pay, and the nodes of the cheapest mix, as SVG."""
    prices, node = offers.prices, offers.node
    hours = max(1, load.length_ms) / HOUR_MS
    curves = []
    for way in (way for way in Payment if way in prices):
        hourly = prices[way] / MICROUSD
        terms = "" if way is not Payment.OWNED or node is None else f" ({_terms(node)})"
        level = f"{describe_dollars(hourly)} an hour{', busy or not' if way.is_fixed else ' that it is busy'}{terms}"
        first = hourly if way.is_fixed else 0.0
        leaving = 0.0 if way is Payment.OWNED else offers.egress / MICROUSD
        level += f", and {describe_dollars(leaving)} egress in a busy hour" if leaving else ""
        curves.append(Curve(name=f"{way.value}: {level}", places=[(0.0, first), (100.0, hourly + leaving)]))
    for way, even in offers.evens().items():
        if even is not None and even <= 1:
            name = f"{way.value} pays off above {even:.1%}"
            cost = (prices[way] + (0 if way is Payment.OWNED else offers.egress * even)) / MICROUSD
            curves.append(Curve(name=name, places=[(100 * even, cost)], is_joined=False))
    mix = offers.mix(load)
    shown = [(100 * level.busy_ms / max(1, load.length_ms), level.microusd / MICROUSD / hours) for level in mix.levels]
    title = f"{load.name}: {plural(len(mix.levels), 'node')}, cheapest at {describe_microusd(mix.microusd)} in all"
    curves.append(Curve(name="nodes of this load, as the cheapest mix pays for them", places=shown, is_joined=False))
    x = Axis(name=f"part of {_say(load.length_ms)} that the node is busy, %")
    return chart(title, curves, x, Axis(name="dollars an hour of that time"))


def _terms(node: OwnedNode) -> str:
    return ", ".join(f"{name} {describe_dollars(rate / MICROUSD)}" for name, rate in node.terms.items() if rate)


def _json(load: Load, offers: Offers, mix: Mix, alone: dict[Payment, int]) -> dict[str, Any]:
    return {
        "load": load.name,
        "length_s": load.length_ms / 1000,
        "busy_s": [busy / 1000 for busy in load.busy_ms],
        "microusd_per_hour": {way.value: rate for way, rate in offers.prices.items()},
        "egress_microusd_per_busy_hour": offers.egress,
        "terms": None if offers.node is None else offers.node.terms,
        "microusd_alone": {way.value: amount for way, amount in alone.items()},
        "mix": {way.value: mix.count(way) for way in offers.prices},
        "microusd": mix.microusd,
        "break_even": {way.value: even for way, even in offers.evens().items()},
    }


def _say(length_ms: int) -> str:
    return describe_duration(length_ms / 1000)
