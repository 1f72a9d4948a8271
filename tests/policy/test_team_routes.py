"""A team's part of the routes: its endpoints and its keys, each once, and nothing of other teams."""

from dataclasses import replace
from typing import Any

from fairlead.policy.serving.routes import places_on_cluster, routes, team_routes
from fairlead.specs.serving import Access
from fairlead.state.access_keys import MOST_KEYS, AccessKey, kept_keys, too_many
from fairlead.state.snapshot import Snapshot, Workload
from tests.policy.test_serving import World, spec


def a_key(team: str, number: int) -> AccessKey:
    return AccessKey(team=team, name=f"k{number}", sha256=f"{number:064x}", created_at=float(number))


def endpoints(*teams: str, count: int, access: Access | None) -> Snapshot:
    parent = World(spec()).serving
    found: list[Workload[Any]] = [
        replace(parent, uid=f"{team}-{number}", spec=replace(parent.spec, name=f"e{number}", team=team, access=access))
        for team in teams
        for number in range(count)
    ]
    return Snapshot(nodes=(), workloads=(), pods=(), parents=tuple(found))


def test_the_keys_of_a_team_are_in_the_routes_once_however_many_endpoints_accept_them() -> None:
    keys = [a_key(team, number) for team in ("a", "b", "c") for number in range(MOST_KEYS)]
    seen = endpoints("a", count=20, access=Access(teams=("a", "b")))
    found = routes(seen, places_on_cluster(seen), {}, keys)
    assert {name: each["keys"] for name, each in found["services"].items()} == {
        f"a/e{number}": ["a", "b"] for number in range(20)
    }
    assert {team: len(hashes) for team, hashes in found["keys"].items()} == {"a": MOST_KEYS, "b": MOST_KEYS}
    shares = team_routes(found)
    assert sorted(shares) == ["a", "b"]
    assert list(shares["b"]["services"]) == []
    assert list(shares["a"]["keys"]) == ["a"]


def test_what_one_team_has_changes_the_part_of_no_other() -> None:
    keys = [a_key("a", 1)]
    one = endpoints("a", "b", count=1, access=Access())
    more = endpoints("a", "b", count=30, access=Access())
    more = replace(more, parents=tuple(each for each in more.parents if each.spec.team == "b" or each in one.parents))
    before, after = (team_routes(routes(seen, places_on_cluster(seen), {}, keys)) for seen in (one, more))
    assert before["a"] == after["a"]
    assert before["b"] != after["b"]


def test_a_team_has_a_bound_of_keys_and_the_oldest_count() -> None:
    keys = [a_key("a", number) for number in range(MOST_KEYS + 5)]
    assert kept_keys(reversed(keys)) == tuple(keys[:MOST_KEYS])
    assert too_many("a", keys[: MOST_KEYS - 1]) is None
    assert too_many("b", keys) is None
    said = too_many("a", keys[:MOST_KEYS], "--context prod")
    assert said is not None
    assert "Team a has 100 keys; it may have 100" in said
    assert "`fairlead keys revoke k0 --team a --context prod`" in said
