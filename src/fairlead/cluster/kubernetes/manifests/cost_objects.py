"""The costs of a day as ConfigMaps: one with all costs in the operator's namespace, one for each team. Pure.

Users read them with their own rights. They contain the costs of the day so far; a past day no longer changes.
"""

import base64
import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fairlead.cluster.kubernetes.names import COSTS, MANAGED_BY, MANAGER
from fairlead.frozen import dataclass
from fairlead.ledger.bills import BillLine
from fairlead.ledger.usage import DAY_MS, Holder, Use
from fairlead.untrusted_json import parse_object

WHOLE, TEAM = "fairlead-costs", "fairlead-cost"
"""Name prefixes without the day: of all costs, and of one team's costs."""
MOST_UNPACKED_BYTES = 256 << 20
LINES = "lines.json.gz"
# An object of the API server has at most 1 MiB, and base64 encodes three bytes as four.
MOST_BYTES = 700_000
OTHERS = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCosts:
    """The costs of one day.

    Attributes:
        day: Days since 1970, UTC.
        at: Time up to which it is counted, in Unix seconds.
        lines: Costs by payer; the payer is None for unused capacity.
        pools: The pool of each node in the lines.
        loads: For each pool, how many milliseconds at least one of its nodes was busy with runs, at least two, and so
            on; None if an earlier version wrote the costs.
    """

    day: int
    at: float
    lines: tuple[BillLine[Holder | None], ...]
    pools: Mapping[str, str]
    loads: Mapping[str, tuple[int, ...]] | None = None


def name_of(kind: str, day: int) -> str:
    """Return the name of the object of a day."""
    return f"{kind}-{date_of(day)}"


def date_of(day: int) -> str:
    """Return the day in the form 2026-01-31."""
    return datetime.fromtimestamp(day * DAY_MS / 1000, UTC).strftime("%Y-%m-%d")


def of_team(costs: DayCosts, team: str, loads: Mapping[str, tuple[int, ...]]) -> DayCosts:
    """Return the part of the costs that one team pays, with its own load."""
    lines = tuple(line for line in costs.lines if line.key is not None and line.key.team == team)
    return DayCosts(day=costs.day, at=costs.at, lines=lines, pools=_pools_of(lines, costs.pools), loads=loads)


def render_costs(costs: DayCosts, kind: str, namespace: str) -> dict[str, Any]:
    """Render the object; if it is too large, lines are summed by pool, and then those of the cheapest runs."""
    content = _packed(costs)
    if len(content) > MOST_BYTES:
        summed = _by_pool(costs)
        content = _packed(summed)
        most = len({line.key for line in summed.lines})
        while len(content) > MOST_BYTES and most:
            # An estimate of how many fit, with space for the sums; the next round has fewer.
            most = int(most * MOST_BYTES / len(content) * 0.9)
            content = _packed(_with_sums(summed, most))
    metadata = {"name": name_of(kind, costs.day), "namespace": namespace, "labels": {MANAGED_BY: MANAGER, COSTS: kind}}
    data = {"at": f"{costs.at:.3f}", "billed_microusd": str(sum(line.microusd for line in costs.lines))}
    packed = {LINES: base64.b64encode(content).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data, "binaryData": packed}


def _unpacked(text: str) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(base64.b64decode(text))) as file:
        return file.read(MOST_UNPACKED_BYTES + 1)


def read_costs(content: Mapping[str, Any], day: int) -> DayCosts:
    """Parse costs that ``render_costs`` rendered.

    Raises:
        ValueError: The content does not have that form.
    """
    try:
        plain = parse_object(_unpacked(content["binaryData"][LINES]), max_bytes=MOST_UNPACKED_BYTES)
        holders = [None if holder is None else Holder(**holder) for holder in plain["holders"]]
        lines = tuple(
            BillLine(node=plain["nodes"][node], key=holders[holder], use=Use(use), microusd=microusd, unit_ms=unit_ms)
            for node, holder, use, microusd, unit_ms in plain["lines"]
        )
        loads = plain.get("loads")
        return DayCosts(
            day=day,
            at=float(content["data"]["at"]),
            lines=lines,
            pools=dict(plain["pools"]),
            loads=None if loads is None else {pool: tuple(map(int, busy_ms)) for pool, busy_ms in loads.items()},
        )
    except (KeyError, TypeError, ValueError, OSError, EOFError, IndexError) as error:
        raise ValueError(f"the costs of {date_of(day)} cannot be read: {error!r}") from error


def _packed(costs: DayCosts) -> bytes:
    nodes = {name: number for number, name in enumerate(sorted({line.node for line in costs.lines}))}
    holders: dict[Holder | None, int] = {}
    for line in costs.lines:
        holders.setdefault(line.key, len(holders))
    plain = {
        "nodes": list(nodes),
        "pools": dict(costs.pools),
        "holders": [None if holder is None else _plain(holder) for holder in holders],
        "lines": [
            [nodes[line.node], holders[line.key], line.use.value, line.microusd, line.unit_ms] for line in costs.lines
        ],
    }
    if costs.loads is not None:
        plain["loads"] = dict(costs.loads)
    # Without a timestamp, equal costs have equal bytes.
    return gzip.compress(json.dumps(plain, separators=(",", ":")).encode(), mtime=0)


def _plain(holder: Holder) -> dict[str, str]:
    return {name: getattr(holder, name) for name in ("uid", "run", "team", "model", "project", "user")}


def _by_pool(costs: DayCosts) -> DayCosts:
    sums: defaultdict[tuple[str, Holder | None, Use], list[int]] = defaultdict(lambda: [0, 0])
    for line in costs.lines:
        amounts = sums[costs.pools.get(line.node, ""), line.key, line.use]
        amounts[0] += line.microusd
        amounts[1] += line.unit_ms
    lines = tuple(
        BillLine(node=pool, key=key, use=use, microusd=microusd, unit_ms=unit_ms)
        for (pool, key, use), (microusd, unit_ms) in sums.items()
    )
    return replace(costs, lines=lines, pools={line.node: line.node for line in lines})


def _with_sums(costs: DayCosts, most: int) -> DayCosts:
    """Return the costs with separate lines for the dearest runs, and one sum of all others by account and user."""
    spent: defaultdict[Holder, int] = defaultdict(int)
    for line in costs.lines:
        if line.key is not None:
            spent[line.key] += line.microusd
    dearest = set(sorted(spent, key=lambda holder: (-spent[holder], holder.uid))[:most])
    others: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for holder in spent:
        if holder not in dearest:
            others[holder.team, holder.project, holder.user] += 1
    sums: defaultdict[tuple[str, Holder | None, Use], list[int]] = defaultdict(lambda: [0, 0])
    for line in costs.lines:
        key = line.key
        if key is not None and key not in dearest:
            account = key.team, key.project, key.user
            name = f"{others[account]} smaller runs"
            key = Holder(
                uid="/".join((OTHERS, *account)),
                run=name,
                team=key.team,
                model=name,
                project=key.project,
                user=key.user,
            )
        amounts = sums[line.node, key, line.use]
        amounts[0] += line.microusd
        amounts[1] += line.unit_ms
    lines = tuple(
        BillLine(node=node, key=key, use=use, microusd=microusd, unit_ms=unit_ms)
        for (node, key, use), (microusd, unit_ms) in sums.items()
    )
    return replace(costs, lines=lines)


def _pools_of(lines: Iterable[BillLine[Holder | None]], pools: Mapping[str, str]) -> dict[str, str]:
    return {line.node: pools.get(line.node, "") for line in lines}
