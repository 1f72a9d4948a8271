"""The costs of a day fit into an object, however many runs there were, and add up to the same."""

import random
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes.client.published_costs import PublishedCosts
from fairlead.cluster.kubernetes.manifests import cost_objects
from fairlead.cluster.kubernetes.manifests.cost_objects import WHOLE, DayCosts, of_team, read_costs, render_costs
from fairlead.cluster.ledger_tables import CostGrouping
from fairlead.errors import NotFound
from fairlead.ledger.bills import BillLine
from fairlead.ledger.usage import Holder, Use

DAY = 20_000
ROOM = 25_000
NUM_RUNS, NUM_NODES = 1_500, 40


def a_day_of_sweeps() -> DayCosts:
    rng = random.Random(18)
    lines: list[BillLine[Holder | None]] = []
    for number in range(NUM_RUNS):
        uid = str(uuid.UUID(int=rng.getrandbits(128)))
        team = f"team-{number % 3}"
        run = Holder(uid=uid, run=f"rates-{number}", team=team, model=f"rates-{number}", project="search", user="ann")
        node, microusd = f"node-{number % NUM_NODES}", rng.randrange(1, 10**7)
        lines += [
            BillLine(node=node, key=run, use=use, microusd=microusd, unit_ms=rng.randrange(1, 10**12))
            for use in (Use.STARTING, Use.PRODUCTIVE)
        ]
    lines += [
        BillLine(node=f"node-{number}", key=None, use=Use.IDLE, microusd=10**9 + number, unit_ms=10**12)
        for number in range(NUM_NODES)
    ]
    pools = {f"node-{number}": f"pool-{number % 2}" for number in range(NUM_NODES)}
    return DayCosts(day=DAY, at=DAY * 86_400.0 + 1, lines=tuple(lines), pools=pools)


def sums(costs: DayCosts, of: Callable[[BillLine[Holder | None]], object]) -> dict[object, tuple[int, int]]:
    found: defaultdict[object, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for line in costs.lines:
        microusd, unit_ms = found[of(line)]
        found[of(line)] = microusd + line.microusd, unit_ms + line.unit_ms
    return dict(found)


def test_of_more_runs_than_fit_the_cheapest_are_one_row_and_every_sum_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cost_objects, "MOST_BYTES", ROOM)
    costs = a_day_of_sweeps()
    rendered = render_costs(costs, WHOLE, "fairlead-system")
    assert len(rendered["binaryData"][cost_objects.LINES]) <= ROOM * 4 / 3 + 4
    read = read_costs(rendered, DAY)
    assert rendered["data"]["billed_microusd"] == str(sum(line.microusd for line in costs.lines))
    for what in (
        lambda line: (line.key and (line.key.team, line.key.project, line.key.user), line.use),
        lambda line: costs.pools.get(line.node, line.node),
    ):
        assert sums(read, what) == sums(costs, what)
    before, after = ({line.key for line in each.lines if line.key is not None} for each in (costs, read))
    kept, others = after & before, after - before
    assert len(kept) > 300
    assert sorted((each.run, each.team) for each in others) == sorted(
        (f"{sum(run.team == team for run in before - kept)} smaller runs", team)
        for team in ("team-0", "team-1", "team-2")
    )
    spent = sums(costs, lambda line: line.key)
    assert min(spent[run] for run in kept)[0] >= max(spent[run] for run in before - kept)[0]
    rows = PublishedCosts(days=(read,), team=None).statement(CostGrouping.RUN).lines
    assert len({line.key for line in rows}) == len(after) + 1


def test_of_few_runs_each_is_a_row_of_its_node() -> None:
    costs = a_day_of_sweeps()
    few = DayCosts(day=DAY, at=costs.at, lines=costs.lines[:200], pools=costs.pools)
    assert read_costs(render_costs(few, WHOLE, "fairlead-system"), DAY) == few


def test_the_load_of_days_is_the_sum_of_theirs_since_it_was_first_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_objects, "MOST_BYTES", ROOM)
    costs = a_day_of_sweeps()
    loads: list[dict[str, tuple[int, ...]] | None] = [
        None,
        {"pool-0": (50, 7)},
        {},
        {"pool-0": (9,), "pool-1": (3, 3, 3)},
    ]
    days = tuple(
        read_costs(
            render_costs(replace(costs, day=DAY + number, at=(DAY + number + 0.5) * 86_400, loads=each), WHOLE, "x"),
            DAY + number,
        )
        for number, each in enumerate(loads)
    )
    found = PublishedCosts(days=days, team="vision").load()
    assert found.pools == {"pool-0": (59, 7), "pool-1": (3, 3, 3)}
    assert (found.start, found.end, found.team) == ((DAY + 1) * 86_400, (DAY + 3.5) * 86_400, "vision")
    with pytest.raises(NotFound, match="recorded no load"):
        PublishedCosts(days=days[:1], team=None).load()


def test_a_team_is_shown_its_own_load() -> None:
    costs = replace(a_day_of_sweeps(), loads={"pool-0": (100, 60)})
    assert of_team(costs, "team-1", {"pool-0": (40,)}).loads == {"pool-0": (40,)}
