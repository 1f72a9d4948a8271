"""No route without its key where keys are on, and no team asks more often than it may."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.gateway.access import TokenBucket
from tests.gateway.conftest import Opener
from tests.gateway.parts import Replica, service

Make = Callable[..., Replica]


def key(secret: str, team: str = "vision", rate: float | None = None) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(secret.encode()).hexdigest(), "team": team, "requests_per_second": rate}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Basic c2VjcmV0"}, 401),
        ({"X-API-Key": ""}, 401),
        ({"Authorization": "Bearer wrong"}, 403),
        ({"X-API-Key": "wrong"}, 403),
        ({"X-API-Key": "wrong", "Authorization": "Bearer secret"}, 403),
        ({"Authorization": "Bearer secret"}, 200),
        ({"Authorization": "bearer  secret"}, 200),
        ({"X-API-Key": "secret"}, 200),
        ({"X-API-Key": "another"}, 200),
    ],
)
def test_a_key_opens_its_service(open_door: Opener, replicas: Make, headers: dict[str, str], status: int) -> None:
    replica = replicas()
    door = open_door({"m": service(replica, keys=[key("secret"), key("another")])})
    answer = door.ask(headers=headers)
    assert answer.status == status
    assert len(replica.asked) == (status == 200)
    assert (answer.headers["WWW-Authenticate"] == "Bearer") == (status == 401)


@pytest.mark.parametrize("path", ["/m", "/m/", "/m/x", "/m?x", "http://127.0.0.1/m/x"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
def test_no_way_in_does_without_a_key(open_door: Opener, replicas: Make, path: str, method: str) -> None:
    replica = replicas()
    door = open_door({"m": service(replica, keys=[key("secret")])})
    assert door.ask(path, method=method, headers={"Host": "127.0.0.1"}).status == 401
    assert door.ask(method=method, headers={"Host": "m.localhost"}).status == 401
    assert replica.asked == []


def test_whoever_may_not_ask_wakes_nothing(open_door: Opener) -> None:
    door = open_door({"m": service(keys=[key("secret")], max_queue=0)})
    assert [door.ask(headers={"X-API-Key": each}).status for each in ("", "wrong")] == [401, 403]
    assert door.demand()["services"] == {}
    assert door.ask(headers={"X-API-Key": "secret"}).status == 429
    assert door.demand()["services"]["m"]["wake"] is not None


def test_a_key_is_not_passed_on(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas(), keys=[key("secret")])})
    told = door.ask(headers={"Authorization": "Bearer secret"}).json()["headers"]
    assert {"authorization", "x-api-key"}.isdisjoint(told)


def test_without_keys_what_looks_like_one_is_the_replicas(open_door: Opener, replicas: Make) -> None:
    told = open_door({"m": service(replicas())}).ask(headers={"Authorization": "Bearer x"}).json()["headers"]
    assert told["authorization"] == "Bearer x"


def test_a_team_that_asks_too_often_is_told_when_to_come_back(open_door: Opener, replicas: Make) -> None:
    keys = [key("one", rate=0.01), key("two", "speech")]
    door = open_door({"m": service(replicas(), keys=keys)})
    assert door.ask(headers={"X-API-Key": "one"}).status == 200
    refused = door.ask(headers={"X-API-Key": "one"})
    assert (refused.status, refused.headers["Retry-After"]) == (429, "100")
    assert "team vision may ask 0.01 times a second" in refused.json()["error"]
    assert door.ask(headers={"X-API-Key": "two"}).status == 200


def test_keys_of_one_team_share_its_rate(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas(), keys=[key("one", rate=0.01), key("two", rate=0.01)])})
    assert [door.ask(headers={"X-API-Key": each}).status for each in ("one", "two")] == [200, 429]


def test_a_bucket_lets_its_rate_through_and_a_seconds_worth_at_once() -> None:
    bucket = TokenBucket(10.0, 0.0)
    assert [bucket.take(100.0) for _ in range(10)] == [0.0] * 10
    assert bucket.take(100.0) == pytest.approx(0.1)
    assert sum(bucket.take(100.0 + n * 0.01) == 0.0 for n in range(1, 201)) in (19, 20)
