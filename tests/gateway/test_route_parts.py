"""A gateway on Kubernetes puts the routes together from those of teams, and one team's part is its own matter."""

import json
from typing import Any

from fairlead.cluster.kubernetes.manifests.endpoints import render_routes, render_team_routes
from fairlead.gateway.in_cluster import RouteParts
from fairlead.gateway.packing import ROUTES_KEY
from fairlead.gateway.routes import read_routes
from tests.gateway.parts import service


def part(team: str, *names: str, keys: dict[str, dict[str, None]] | None = None) -> dict[str, Any]:
    services = {
        name: {**service(("u-0", 8001)), "path": f"/{name}", "hosts": [name.replace("/", ".")], "keys": [team]}
        for name in names
    }
    return render_team_routes(team, {"services": services, "keys": {team: {"a" * 64: None}} if keys is None else keys})


def test_the_parts_of_the_listed_teams_are_one_whole() -> None:
    parts = RouteParts()
    parts.take(part("a", "a/web"))
    assert parts.whole() is None, "it is not known yet which teams there are"
    parts.take(render_routes(["a", "b"]))
    parts.take(part("b", "b/web", "b/chat"))
    parts.take(part("gone", "gone/web"))
    whole = parts.whole()
    assert whole is not None
    assert sorted(whole["services"]) == ["a/web", "b/chat", "b/web"]
    assert sorted(whole["keys"]) == ["a", "b"]


def test_a_team_has_no_service_under_the_name_of_another_and_no_keys_for_it() -> None:
    parts = RouteParts()
    parts.take(render_routes(["a", "b"]))
    parts.take(part("b", "b/web", "a/web", keys={"a": {"b" * 64: None}, "b": {"c" * 64: None}}))
    whole = parts.whole()
    assert whole is not None
    assert sorted(whole["services"]) == ["b/web"]
    assert whole["keys"] == {"b": {"c" * 64: None}}


def test_a_part_that_cannot_be_read_leaves_the_others_as_they_become() -> None:
    parts = RouteParts()
    for each in (render_routes(["a", "b"]), part("a", "a/web"), part("b", "b/web")):
        parts.take(each)
    broken = part("a", "a/other")
    broken["binaryData"] = {ROUTES_KEY: "not base64"}
    parts.take(broken)
    parts.take({"metadata": {"name": "fairlead-routes-b"}, "binaryData": None})
    parts.take(part("b", "b/other"))
    whole = parts.whole()
    assert whole is not None
    assert sorted(whole["services"]) == ["a/web", "b/other"]
    parts.take(part("a"), is_there=False)
    left = parts.whole()
    assert left is not None
    assert sorted(left["services"]) == ["b/other"]


def test_what_the_operator_writes_is_what_a_gateway_reads() -> None:
    parts = RouteParts()
    parts.take(render_routes(["a"]))
    parts.take(part("a", "a/web"))
    whole = parts.whole()
    assert whole is not None
    (route,) = read_routes(json.dumps(whole)).services.values()
    assert route.keys is not None
    assert [(key.team, key.sha256) for key in route.keys] == [("a", "a" * 64)]
