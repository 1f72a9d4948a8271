"""A routes.json that is wrong is refused with every mistake that it has."""

import json

import pytest

from fairlead.errors import InvalidSpec
from fairlead.gateway.routes import Backend, RevisionRoute, RouteKey, Routes, ServiceRoute, read_routes

WHOLE = {
    "path": "/m", "hosts": ["m.localhost"], "keys": ["t", "nobody"],
    "timeout_s": 30, "idempotent": True, "max_concurrency": 4, "max_queue": 7, "failure": None, "later": "unknown",
    "revisions": [
        {"name": "r3", "weight": 2, "shadow": False, "replicas": [{"id": "u-0", "url": "http://127.0.0.1:8001"}]}
    ],
}  # fmt: skip


def test_all_of_it_is_read() -> None:
    route = ServiceRoute(
        "m", "/m", ("m.localhost",), (RouteKey("a" * 64, "t"),), 30.0, True, 4, 7,
        (RevisionRoute("r3", 2, False, (Backend("u-0", "127.0.0.1", 8001),)),), None,
    )  # fmt: skip
    told = {"version": 2, "wake": "/run/wake", "services": {"m": WHOLE}, "keys": {"t": {"a" * 64: None}}}
    assert read_routes(json.dumps(told)) == Routes({"m": route}, "/run/wake")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"path": "m"}, "m: `path` has to be a path; it is 'm'"),
        ({"path": "/m/../n"}, None),
        ({"path": "/m m"}, "m: `path` has to be a path; it is '/m m'"),
        ({"hosts": "m"}, "m: `hosts` has to be a list of texts; it is 'm'"),
        ({"hosts": ["M"]}, "m: `hosts` has to be small letters; it is 'M'"),
        ({"keys": [{"sha256": "a" * 64}]}, f"m: `keys` has to be a list of teams; it is {{'sha256': '{'a' * 64}'}}"),
        ({"requests_per_minute": 0}, "m: `requests_per_minute` has to be null or a positive number; it is 0"),
        ({"tokens_per_minute": 1.5}, "m: `tokens_per_minute` has to be null or a positive number; it is 1.5"),
        ({"timeout_s": "5"}, "m: `timeout_s` has to be a positive number of seconds; it is '5'"),
        ({"idempotent": 1}, "m: `idempotent` has to be true or false; it is 1"),
        ({"max_concurrency": 0}, "m: `max_concurrency` has to be null or a positive number; it is 0"),
        ({"max_queue": -1}, "m: `max_queue` has to be a whole number, at least 0; it is -1"),
        ({"failure": 3}, "m: `failure` has to be null or a text; it is 3"),
        ({"revisions": {}}, "m: `revisions` has to be a list of mappings; it is {}"),
        ({"revisions": [{"name": ""}]}, "m: `name` has to be a text; it is ''"),
        ({"revisions": [{"name": "r", "weight": 0.5}]}, "m: `weight` has to be a whole number, at least 0; it is 0.5"),
        (
            {"revisions": [{"name": "r", "replicas": [{"id": "a", "url": "https://127.0.0.1:1"}]}]},
            "m: `url` of a replica has to be http://HOST:PORT; it is 'https://127.0.0.1:1'",
        ),
        (
            {"revisions": [{"name": "r", "replicas": [{"id": "a", "url": "http://127.0.0.1:99999"}]}]},
            "m: `url` of a replica has to be http://HOST:PORT; it is 'http://127.0.0.1:99999'",
        ),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, object], problem: str | None) -> None:
    told = json.dumps({"version": 2, "services": {"m": {**WHOLE, **change}}})
    if problem is None:
        read_routes(told)  # it is matched as it stands, and no request has such a path
        return
    with pytest.raises(InvalidSpec) as error:
        read_routes(told)
    assert len(error.value.problems) == 1
    assert error.value.problems[0].startswith(problem)


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ("{", "routes.json is not JSON"),
        ("[]", "routes.json has version 'list'; this gateway reads version 2"),
        ('{"version": 1}', "routes.json has version 1; this gateway reads version 2"),
        ('{"version": 2, "services": []}', "routes.json has no mapping `services`"),
        ('{"version": 2, "services": {"m": 1}}', "m: has to be a mapping; it is 1"),
        ('{"version": 2, "wake": 1, "services": {}}', "`wake` has to be null or the path of a socket; it is 1"),
    ],
)
def test_what_is_no_routes_file_is_refused(told: str, problem: str) -> None:
    with pytest.raises(InvalidSpec, match=problem.replace("[", r"\[")):
        read_routes(told)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ([], "`keys` has to be a mapping of teams to hashes; it is []"),
        ({"t": ["a" * 64]}, f"`keys` of t have to be a mapping of hashes to times; it is ['{'a' * 64}']"),
        ({"t": {"a": None}}, "`keys` of t have to be 64 hex digits with null or a time; one is 'a'"),
        (
            {"t": {"a" * 64: "soon"}},
            f"`keys` of t have to be 64 hex digits with null or a time; one is '{'a' * 64}'",
        ),
    ],
)
def test_keys_that_are_wrong_are_named(keys: object, problem: str) -> None:
    with pytest.raises(InvalidSpec) as error:
        read_routes(json.dumps({"version": 2, "services": {}, "keys": keys}))
    assert error.value.problems == (problem,)


def test_two_services_cannot_share_a_place() -> None:
    with pytest.raises(InvalidSpec) as error:
        read_routes(json.dumps({"version": 2, "services": {"m": WHOLE, "n": WHOLE}}))
    assert error.value.problems == ("n: m.localhost belongs to m already", "n: /m belongs to m already")
