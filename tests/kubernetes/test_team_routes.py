"""Each team's routes are written by themselves: what one team has too much of is told to it, and is its own loss."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.manifests.endpoints import MOST_ROUTES_BYTES
from fairlead.cluster.kubernetes.names import ROUTES
from fairlead.cluster.kubernetes.operator.pods.endpoint_publisher import EndpointPublisher
from fairlead.gateway.packing import ROUTES_KEY, unpacked
from fairlead.specs.serving import Access
from fairlead.state.access_keys import AccessKey
from fairlead.state.snapshot import Snapshot, Workload
from tests.kubernetes.turns import a_turn
from tests.policy.test_team_routes import a_key, endpoints


class ApiServer:
    """The ConfigMaps of gateways, and what else is written."""

    def __init__(self) -> None:
        self.maps: dict[str, dict[str, Any]] = {}
        self.refused: str | None = None

    def apply(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if name == self.refused:
            raise ApiError(path, 403, "Forbidden", "a webhook says no")
        if "/configmaps/" in path:
            self.maps[name] = content
        return content

    def create(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        return content

    def delete(self, path: str) -> dict[str, Any]:
        return self.maps.pop(path.rpartition("/")[2], {})

    def items(self, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
        return [{"metadata": {"name": name}} for name in self.maps]

    def read(self, name: str) -> dict[str, Any]:
        return unpacked(self.maps[name]["binaryData"][ROUTES_KEY])


class View:
    def __init__(self) -> None:
        self.isolation = Isolation()

    def pods_of(self, uid: str) -> dict[str, Any]:
        return {}

    def wake(self) -> None:
        pass


class Cluster:
    def __init__(self, client: ApiServer) -> None:
        self.client, self.view = client, View()
        self.problems: dict[str, str | None] = {}

    def note_address(self, uid: str, problem: str | None) -> None:
        self.problems[uid] = problem

    def keep_addresses(self, uids: object) -> None:
        pass


class Gateways:
    are_there = is_known = True

    def __init__(self, keys: tuple[AccessKey, ...]) -> None:
        self._keys = keys

    def watch(self) -> None:
        pass

    def ready(self) -> list[Any]:
        return []

    def keys(self) -> tuple[AccessKey, ...]:
        return self._keys


class AtOnce:
    def submit(self, run: str, name: str, job: Callable[[], None]) -> None:
        job()


class World:
    def __init__(self) -> None:
        self.server = ApiServer()
        self.cluster = Cluster(self.server)
        gateways = Gateways((a_key("a", 1), a_key("b", 2)))
        self.publisher = EndpointPublisher(cast("Any", self.cluster), cast("Any", gateways))

    def act(self, seen: Snapshot, times: int = 3) -> None:
        for _ in range(times):
            self.publisher.act(a_turn(AtOnce(), snapshot=seen))


def too_large(seen: Snapshot, team: str) -> Snapshot:
    """With so many hosts as do not fit, which no compression makes small."""
    rng = random.Random(0)

    def huge(each: Workload[Any]) -> Workload[Any]:
        if each.spec.team != team:
            return each
        reason = replace(each.status.reason, message="".join(chr(rng.randrange(32, 126)) for _ in range(1_500_000)))
        return replace(each, status=replace(each.status, reason=reason))

    return replace(seen, parents=tuple(map(huge, seen.parents)))


def test_the_routes_of_each_team_are_in_a_map_of_its_own() -> None:
    world = World()
    world.server.maps[f"{ROUTES}-left"] = {}
    seen = endpoints("a", "b", count=2, access=Access())
    world.act(seen)
    assert sorted(world.server.maps) == [ROUTES, f"{ROUTES}-a", f"{ROUTES}-b"], "what is left of no team is removed"
    assert world.server.read(ROUTES) == {"teams": ["a", "b"]}
    assert sorted(world.server.read(f"{ROUTES}-b")["services"]) == ["b/e0", "b/e1"]
    assert not world.publisher._untold()
    world.act(replace(seen, parents=tuple(each for each in seen.parents if each.spec.team == "b")))
    assert sorted(world.server.maps) == [ROUTES, f"{ROUTES}-b"]
    assert world.server.read(ROUTES) == {"teams": ["b"]}


def test_a_team_whose_routes_do_not_fit_is_told_and_alone_has_none(monkeypatch: Any) -> None:
    world = World()
    seen = endpoints("a", "b", count=2, access=Access())
    world.act(seen)
    monkeypatch.setattr("fairlead.policy.serving.routes.failure_of", lambda parent, _: parent.status.reason.message)
    world.act(too_large(endpoints("a", "b", count=3, access=Access()), "a"))
    assert world.server.read(ROUTES) == {"teams": ["b"]}
    assert len(world.server.read(f"{ROUTES}-b")["services"]) == 3
    said = f"of which gateways read {MOST_ROUTES_BYTES:,}; it has to have fewer endpoints or replicas"
    assert {uid: said in (problem or "") for uid, problem in world.cluster.problems.items()} == {
        "a-0": True, "a-1": True, "a-2": True, "b-0": False, "b-1": False, "b-2": False,
    }  # fmt: skip
    monkeypatch.undo()
    world.act(seen)
    assert world.server.read(ROUTES) == {"teams": ["a", "b"]}
    assert world.cluster.problems["a-0"] is None


def test_a_team_whose_routes_the_api_server_refuses_is_told_and_the_others_go_on() -> None:
    world = World()
    world.server.refused = f"{ROUTES}-a"
    world.act(endpoints("a", "b", count=1, access=Access()))
    assert world.server.read(ROUTES) == {"teams": ["b"]}
    assert "a webhook says no" in (world.cluster.problems["a-0"] or "")
    assert world.cluster.problems["b-0"] is None
