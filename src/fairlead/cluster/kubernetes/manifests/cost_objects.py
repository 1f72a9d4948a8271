"""The costs of a day as a ConfigMap: one with all of them for the operator's namespace, one for each team's. Pure.

People read them with their own rights. What a day has cost so far is in them; a day that is over changes no more.
"""

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from fairlead.cluster.kubernetes.names import COSTS, MANAGED_BY, MANAGER
from fairlead.frozen import dataclass
from fairlead.ledger.bills import Line
from fairlead.ledger.usage import DAY_MS, Holder, Use

WHOLE, TEAM = "fairlead-costs", "fairlead-cost"
"""Names without the day: of all costs, and of those of one team."""
LINES = "lines.json.gz"
# An object of the API server has at most 1 MiB, and base64 makes four bytes of three.
MOST_BYTES = 700_000
OTHERS = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCosts:
    """The costs of one day.

    Attributes:
        day: Counted from 1970, UTC.
        at: Up to when it was counted.
        lines: Who paid what; the payer is None for what nobody held.
        pools: The pool of each node that is on a line.
    """

    day: int
    at: float
    lines: tuple[Line[Holder | None], ...]
    pools: Mapping[str, str]


def name_of(kind: str, day: int) -> str:
    """The name of the object of a day."""
    return f"{kind}-{date_of(day)}"


def date_of(day: int) -> str:
    """The day as people write it."""
    return datetime.fromtimestamp(day * DAY_MS / 1000, UTC).strftime("%Y-%m-%d")


def of_team(costs: DayCosts, team: str) -> DayCosts:
    """The part of the costs that one team pays."""
    lines = tuple(line for line in costs.lines if line.key is not None and line.key.team == team)
    return DayCosts(day=costs.day, at=costs.at, lines=lines, pools=_pools_of(lines, costs.pools))


def render_costs(costs: DayCosts, kind: str, namespace: str) -> dict[str, Any]:
    """The object. Of too many lines for one those of a pool's nodes are summed up, and then the cheapest runs."""
    content = _packed(costs)
    if len(content) > MOST_BYTES:
        summed = _by_pool(costs)
        content = _packed(summed)
        most = len({line.key for line in summed.lines})
        while len(content) > MOST_BYTES and most:
            # As many as should fit, with room for the sums; the next round has still less.
            most = int(most * MOST_BYTES / len(content) * 0.9)
            content = _packed(_with_sums(summed, most))
    metadata = {"name": name_of(kind, costs.day), "namespace": namespace, "labels": {MANAGED_BY: MANAGER, COSTS: kind}}
    data = {"at": f"{costs.at:.3f}", "billed_microusd": str(sum(line.microusd for line in costs.lines))}
    packed = {LINES: base64.b64encode(content).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data, "binaryData": packed}


def read_costs(content: Mapping[str, Any], day: int) -> DayCosts:
    """The costs that ``render_costs`` wrote.

    Raises:
        ValueError: It is not of that form.
    """
    try:
        plain = json.loads(gzip.decompress(base64.b64decode(content["binaryData"][LINES])))
        holders = [None if each is None else Holder(**each) for each in plain["holders"]]
        lines = tuple(
            Line(node=plain["nodes"][node], key=holders[holder], use=Use(use), microusd=microusd, unit_ms=unit_ms)
            for node, holder, use, microusd, unit_ms in plain["lines"]
        )
        return DayCosts(day=day, at=float(content["data"]["at"]), lines=lines, pools=dict(plain["pools"]))
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
        "holders": [None if each is None else _plain(each) for each in holders],
        "lines": [
            [nodes[line.node], holders[line.key], line.use.value, line.microusd, line.unit_ms] for line in costs.lines
        ],
    }
    # Without a time in it the same costs are the same bytes.
    return gzip.compress(json.dumps(plain, separators=(",", ":")).encode(), mtime=0)


def _plain(holder: Holder) -> dict[str, str]:
    return {name: getattr(holder, name) for name in ("uid", "run", "team", "model", "project", "user")}


def _by_pool(costs: DayCosts) -> DayCosts:
    sums: defaultdict[tuple[str, Holder | None, Use], list[int]] = defaultdict(lambda: [0, 0])
    for line in costs.lines:
        found = sums[costs.pools.get(line.node, ""), line.key, line.use]
        found[0] += line.microusd
        found[1] += line.unit_ms
    lines = tuple(
        Line(node=pool, key=key, use=use, microusd=microusd, unit_ms=unit_ms)
        for (pool, key, use), (microusd, unit_ms) in sums.items()
    )
    return DayCosts(day=costs.day, at=costs.at, lines=lines, pools={line.node: line.node for line in lines})


def _with_sums(costs: DayCosts, most: int) -> DayCosts:
    """The same with the dearest runs by themselves, and one row in place of all others of an account and a user."""
    spent: defaultdict[Holder, int] = defaultdict(int)
    for line in costs.lines:
        if line.key is not None:
            spent[line.key] += line.microusd
    dearest = set(sorted(spent, key=lambda each: (-spent[each], each.uid))[:most])
    others: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for each in spent:
        if each not in dearest:
            others[each.team, each.project, each.user] += 1
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
        found = sums[line.node, key, line.use]
        found[0] += line.microusd
        found[1] += line.unit_ms
    lines = tuple(
        Line(node=node, key=key, use=use, microusd=microusd, unit_ms=unit_ms)
        for (node, key, use), (microusd, unit_ms) in sums.items()
    )
    return DayCosts(day=costs.day, at=costs.at, lines=lines, pools=costs.pools)


def _pools_of(lines: Iterable[Line[Holder | None]], pools: Mapping[str, str]) -> dict[str, str]:
    return {line.node: pools.get(line.node, "") for line in lines}
