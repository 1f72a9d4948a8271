"""Formats simulated rounds of a Federation, and the bytes of its rounds, as text and JSON."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, cast

from fairlead.cli.outlook import cost_forecasts
from fairlead.cli.show import table
from fairlead.cluster.client import ClusterClient
from fairlead.policy.kinds.federated_rounds import (
    RoundsForecast,
    choose,
    describe_rounds,
    forecast,
    is_foreseeable,
)
from fairlead.specs.federation import DAY_MINUTES, SERVER, WAYS, Federation, Site
from fairlead.specs.training import Training
from fairlead.state.plan import child_uid
from fairlead.state.snapshot import AnyWorkload
from fairlead.text.money import describe_microusd
from fairlead.text.quantities import describe_duration, describe_memory

MOST_ROWS, MOST_COLUMNS = 6, 8
HOUR_S = 3600.0
HEADERS = ("SAMPLE", "DEADLINE", "A ROUND", "UPDATES", "ROUNDS", "THEY TAKE", "COST")


def describe_federation(cluster: ClusterClient, spec: Federation) -> list[str]:
    """Describe the time and the cost of a federation, and the best other samples and deadlines."""
    if spec.app is None:
        return []
    if not is_foreseeable(spec):
        missing = next(name for name, site in spec.sites.items() if site.expect is None)
        return [f"{spec.name}: no estimate: site {missing} has no `expect`, such as `expect: {{train: 40s}}`"]
    own, others = _simulated(spec)
    hourly = _hourly(cluster, spec)
    lines = [f"{spec.name}: {describe_rounds(spec, own)}"]
    if own.updates:
        total_s = own.round_s * spec.rounds
        lines.append(
            f"{spec.name}: {spec.rounds} rounds take about {describe_duration(total_s)}{_cost(hourly, total_s, ', ')}"
        )
    rows = [_row(spec, hourly, candidate) for candidate in (own, *others[:MOST_ROWS])]
    lines.append(
        f"{spec.name}: samples and deadlines by the time until as much is learned as in {spec.rounds} rounds of all "
        "sites; the first row is that of the spec:"
    )
    return [*lines, table([HEADERS, *rows])]


def federation_json(cluster: ClusterClient, spec: Federation) -> dict[str, Any]:
    """Return the simulated rounds as JSON objects; None without an estimate."""
    if not is_foreseeable(spec):
        return {"rounds": None}
    own, others = _simulated(spec)
    hourly = _hourly(cluster, spec)
    return {"rounds": _json(spec, hourly, own), "other_rounds": [_json(spec, hourly, other) for other in others]}


def crossed_bytes(cluster: ClusterClient, federation: AnyWorkload) -> Mapping[int, Mapping[str, Mapping[str, int]]]:
    """Return the bytes of arrays that went to and came from each site, by round and site."""
    rounds: dict[int, dict[str, dict[str, int]]] = {}
    for name, points in cluster.series(child_uid(federation.uid, SERVER)).items():
        way, _, site = name.partition(".")
        if way not in WAYS or site not in cast("Federation", federation.spec).sites:
            continue
        for point in points:
            if point.step is not None:
                rounds.setdefault(point.step, {}).setdefault(site, {})[way] = int(point.value)
    return dict(sorted(rounds.items()))


def crossed_lines(cluster: ClusterClient, federation: AnyWorkload) -> list[str]:
    """Return a table of the bytes to and from each site in the newest rounds; empty before the first one is over."""
    rounds = crossed_bytes(cluster, federation)
    names = [name for name in cast("Federation", federation.spec).sites if any(name in by for by in rounds.values())]
    shown = names[:MOST_COLUMNS]
    if not shown:
        return []
    rows = [
        (str(number), *(_both_ways(by_site.get(name, {})) for name in shown))
        for number, by_site in list(rounds.items())[-MOST_ROWS:]
    ]
    left = len(names) - len(shown)
    more = f"; {left} more sites: --json" if left else ""
    return [
        f"Bytes of arrays to and from each site{more}:",
        *table([("ROUND", *(name.upper() for name in shown)), *rows]).splitlines(),
    ]


def _both_ways(numbers: Mapping[str, int]) -> str:
    return " / ".join(describe_memory(numbers.get(way, 0)) for way in WAYS) if numbers else "-"


def _simulated(spec: Federation) -> tuple[RoundsForecast, tuple[RoundsForecast, ...]]:
    own = forecast(spec, spec.sampled_sites, spec.deadline_s, time.time())
    free = replace(spec, sample_auto=spec.privacy is None, deadline_auto=True)
    return own, tuple(candidate for candidate in choose(free) if candidate.worth > 0)


def hourly_microusd(spec: Federation, price_of: Callable[[Training], float | None]) -> tuple[float, bool]:
    """Return the price of all runs in micro-dollars an hour, and whether that of each is known.

    A site costs nothing while its window is closed.

    Args:
        price_of: Price of a run in micro-dollars an hour where the spec has none; None if unknown.
    """
    prices = [price_of(spec.described_server())]
    for name, site in spec.sites.items():
        price = None if site.expect is None or site.expect.price is None else 1e6 * site.expect.price
        price = price_of(spec.described_site(name)) if price is None else price
        prices.append(None if price is None else price * _open_share(site))
    return sum(price for price in prices if price is not None), None not in prices


def _hourly(cluster: ClusterClient, spec: Federation) -> tuple[float, bool]:
    def price_of(run: Training) -> float | None:
        return min((float(cost.microusd_per_hour) for cost in cost_forecasts(cluster, run)), default=None)

    return hourly_microusd(spec, price_of)


def _open_share(site: Site) -> float:
    if site.minutes is None:
        return 1.0
    begins, ends = site.minutes
    return (ends - begins) % DAY_MINUTES / DAY_MINUTES


def _cost(hourly: tuple[float, bool], seconds: float, before: str = "") -> str:
    microusd, is_known = hourly
    if not microusd:
        return ""
    return f"{before}{'' if is_known else 'at least '}{describe_microusd(round(microusd * seconds / HOUR_S))}"


def _row(spec: Federation, hourly: tuple[float, bool], forecast: RoundsForecast) -> tuple[str, ...]:
    deadline = "the app's" if forecast.deadline_s is None else describe_duration(forecast.deadline_s)
    needed = forecast.rounds_for(spec.rounds)
    head = (str(forecast.sample), deadline)
    if needed is None or not forecast.updates:
        return (*head, "-", f"{forecast.updates:.3g}", "-", "-", "")
    seconds = needed * forecast.round_s
    rounds = (describe_duration(forecast.round_s), f"{forecast.updates:.3g}", str(needed))
    return (*head, *rounds, describe_duration(seconds), _cost(hourly, seconds))


def _json(spec: Federation, hourly: tuple[float, bool], forecast: RoundsForecast) -> dict[str, Any]:
    needed = forecast.rounds_for(spec.rounds)
    seconds = None if needed is None else needed * forecast.round_s
    cost = None if seconds is None or not hourly[1] else round(hourly[0] * seconds / HOUR_S)
    return {**asdict(forecast), "rounds": needed, "seconds": seconds, "microusd": cost}
