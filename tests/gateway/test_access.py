"""No route without its key where keys are on, and no team asks more often than it may."""

import hashlib
import random
import re
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fairlead.gateway import access
from fairlead.gateway.access import MINUTE_S, KeyUses, MinuteCount, is_valid
from fairlead.gateway.demand import read_key_uses
from fairlead.gateway.messages import ResponseHead
from fairlead.gateway.routes import RouteKey
from fairlead.gateway.token_usage import TokenUsage
from tests.gateway.conftest import Opener
from tests.gateway.parts import Replica, service
from tests.waiting import until

Make = Callable[..., Replica]


def key(secret: str, team: str = "vision") -> dict[str, Any]:
    return {"sha256": hashlib.sha256(secret.encode()).hexdigest(), "team": team}


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
def test_a_key_opens_its_service(
    open_python_door: Opener, replicas: Make, headers: dict[str, str], status: int
) -> None:
    replica = replicas()
    door = open_python_door({"m": service(replica, keys=[key("secret"), key("another")])})
    answer = door.ask(headers=headers)
    assert answer.status == status
    assert len(replica.asked) == (status == 200)
    assert (answer.headers["WWW-Authenticate"] == "Bearer") == (status == 401)


def test_the_use_of_a_key_is_told_to_the_minute_and_known_to_the_next_gateway(
    open_python_door: Opener, replicas: Make
) -> None:
    first, other = key("secret"), key("another", team="ads")
    door = open_python_door({"m": service(replicas(), keys=[first, other])})
    began = time.time()
    for secret in ("secret", "wrong"):
        door.ask(headers={"X-API-Key": secret})
    until(lambda: door.demand().get("keys"), "use of a key")
    told = door.demand()["keys"]
    assert set(told) == {first["sha256"]}
    assert told[first["sha256"]] in range(int(began) - MINUTE_S, int(time.time()) + 1, 1)
    assert told[first["sha256"]] % MINUTE_S == 0
    assert KeyUses(read_key_uses(door.directory / "demand.json")).all() == told


def test_of_more_keys_than_are_kept_the_latest_used_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MOST_USES", 2)
    uses = KeyUses({})
    for number in (1, 2, 1, 3):
        uses.note(RouteKey(sha256=str(number), team="t"), 60.0 * number)
    assert dict(uses.all()) == {"1": 60, "3": 180}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": 5}', '{"keys": {"a": "soon"}}', '{"keys": {"a": []}}'])
def test_a_file_without_uses_of_keys_is_of_an_older_gateway(tmp_path: Path, text: str) -> None:
    (tmp_path / "demand.json").write_text(text)
    assert read_key_uses(tmp_path / "demand.json") == {}


@pytest.mark.parametrize("path", ["/m", "/m/", "/m/x", "/m?x", "http://127.0.0.1/m/x"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
def test_no_way_in_does_without_a_key(open_python_door: Opener, replicas: Make, path: str, method: str) -> None:
    replica = replicas()
    door = open_python_door({"m": service(replica, keys=[key("secret")])})
    assert door.ask(path, method=method, headers={"Host": "127.0.0.1"}).status == 401
    assert door.ask(method=method, headers={"Host": "m.localhost"}).status == 401
    assert replica.asked == []


def test_whoever_may_not_ask_wakes_nothing(open_python_door: Opener) -> None:
    door = open_python_door({"m": service(keys=[key("secret")], max_queue=0)})
    assert [door.ask(headers={"X-API-Key": each}).status for each in ("", "wrong")] == [401, 403]
    assert door.demand()["services"] == {}
    assert door.ask(headers={"X-API-Key": "secret"}).status == 429
    assert door.demand()["services"]["m"]["wake"] is not None


def test_a_key_is_not_passed_on(open_python_door: Opener, replicas: Make) -> None:
    door = open_python_door({"m": service(replicas(), keys=[key("secret")])})
    told = door.ask(headers={"Authorization": "Bearer secret"}).json()["headers"]
    assert {"authorization", "x-api-key"}.isdisjoint(told)


def test_without_keys_what_looks_like_one_is_the_replicas(open_python_door: Opener, replicas: Make) -> None:
    told = open_python_door({"m": service(replicas())}).ask(headers={"Authorization": "Bearer x"}).json()["headers"]
    assert told["authorization"] == "Bearer x"


def test_a_service_with_keys_on_and_none_made_opens_to_nobody(open_python_door: Opener, replicas: Make) -> None:
    replica = replicas()
    door = open_python_door({"m": service(replica, keys=[])})
    assert [door.ask(headers=each).status for each in ({}, {"X-API-Key": "any"})] == [401, 403]
    assert replica.asked == []


HOSTILE = {
    "two fields, the right one second": b"X-API-Key: wrong\r\nX-API-Key: secret\r\n",
    "two schemes, the right one second": b"Authorization: Basic eA==\r\nAuthorization: Bearer secret\r\n",
    "a name with an underscore": b"X_API_Key: secret\r\n",
    "a blank before the colon": b"X-API-Key : secret\r\n",
    "a folded line": b"X-API-Key:\r\n secret\r\n",
    "a lone line feed": b"A: b\nX-API-Key: secret\r\n",
    "a NUL behind it": b"X-API-Key: secret\x00\r\n",
    "a quoted one": b'X-API-Key: "secret"\r\n',
    "a list": b"X-API-Key: secret, wrong\r\n",
    "other letters": b"X-API-Key: SECRET\r\n",
    "no letters of ours": b"X-API-Key: \xff\xfe\r\n",
    "its hash": b"X-API-Key: " + hashlib.sha256(b"secret").hexdigest().encode() + b"\r\n",
    "a long one": b"X-API-Key: " + b"a" * 20_000 + b"\r\n",
    "as a cookie": b"Cookie: X-API-Key=secret\r\n",
    "as a forwarded one": b"X-Forwarded-Authorization: Bearer secret\r\nX-Original-URL: /-/healthz\r\n",
    "as one for proxies": b"Proxy-Authorization: Bearer secret\r\n",
    "only named": b"Connection: X-API-Key\r\n",
    "as a shadow": b"X-Fairlead-Shadow: 1\r\n",
}


TARGETS = (b"/m/x", b"http://m.localhost/x", b"/x", b"//m/x", b"/m/./x", b"/m/%2e%2e/m/x")


def test_no_trick_opens_a_service(open_python_door: Opener, replicas: Make) -> None:
    replica = replicas()
    door = open_python_door({"m": service(replica, keys=[key("secret")])})
    for trick, headers in HOSTILE.items():
        for target, host in product(TARGETS, (b"127.0.0.1", b"m.localhost")):
            answer = door.raw(
                b"POST %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\nContent-Length: 2\r\n%b\r\nhi"
                % (target, host, headers)
            )
            assert answer.split(b" ", 2)[1] in (b"400", b"401", b"403", b"404"), (trick, target, host, answer)
    assert replica.asked == []
    assert door.ask(headers={"X-API-Key": "secret"}).status == 200


def test_a_request_behind_one_with_a_key_needs_its_own(open_python_door: Opener, replicas: Make) -> None:
    replica = replicas()
    door = open_python_door({"m": service(replica, keys=[key("secret")])})
    first = b"POST /m/a HTTP/1.1\r\nHost: a\r\nX-API-Key: secret\r\nContent-Length: 2\r\n\r\nhi"
    second = b"GET /m/b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = door.raw(first + second)
    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"200", b"401"]
    assert replica.asked == ["/a"]


def test_a_key_is_in_no_log(open_python_door: Opener, replicas: Make) -> None:
    door = open_python_door({"m": service(replicas(), keys=[key("s3cr3t")])})
    for told in ("s3cr3t", "wr0ng"):
        door.ask(f"/m/x?key={told}", headers={"X-API-Key": told})
    until(lambda: len(door.log()) == 2)
    written = "".join(path.read_text() for path in door.directory.iterdir() if path.is_file())
    assert "s3cr3t" not in written
    assert "wr0ng" not in written
    assert [(each["team"], each["status"]) for each in door.log()] == [("vision", 200), ("", 403)]


def test_a_team_that_asks_too_often_is_told_when_to_come_back(open_python_door: Opener, replicas: Make) -> None:
    keys = [key("one"), key("two", "speech")]
    door = open_python_door({"m": service(replicas(), keys=keys, requests_per_minute=2)})
    assert [door.ask(headers={"X-API-Key": "one"}).status for _ in range(3)] == [200, 200, 429]
    refused = door.ask(headers={"X-API-Key": "one"})
    assert 50 <= int(refused.headers["Retry-After"]) <= 61
    assert "team vision has had its 2 requests of this minute" in refused.json()["error"]
    assert door.ask(headers={"X-API-Key": "two"}).status == 200


def test_keys_of_one_team_share_its_rate(open_python_door: Opener, replicas: Make) -> None:
    door = open_python_door({"m": service(replicas(), keys=[key("one"), key("two")], requests_per_minute=1)})
    assert [door.ask(headers={"X-API-Key": each}).status for each in ("one", "two")] == [200, 429]


def test_a_team_that_has_had_its_tokens_is_told_when_to_come_back(open_python_door: Opener, replicas: Make) -> None:
    replica = replicas()
    keys = [key("one"), key("two", "speech")]
    door = open_python_door({"m": service(replica, keys=keys, tokens_per_minute=100)})

    def ask(tokens: int, by: str = "one") -> int:
        headers = {"X-API-Key": by, "Accept-Encoding": "gzip"}
        return door.ask(f"/m/tokens/{tokens}", method="POST", headers=headers, body=b"{}").status

    assert [ask(60), ask(60), ask(1), ask(1, "two")] == [200, 200, 429, 200]
    assert all("accept-encoding" not in each for each in replica.headers)
    websocket = {"X-API-Key": "two", "Connection": "Upgrade", "Upgrade": "websocket"}
    assert door.ask(headers=websocket).status == 400


def test_a_stream_that_its_client_leaves_has_cost_what_came(open_python_door: Opener, replicas: Make) -> None:
    replica = replicas()
    door = open_python_door({"m": service(replica, keys=[key("one")], tokens_per_minute=2)})
    replica.go.release(2)
    with door.connect() as client:
        client.sendall(b"GET /m/stream HTTP/1.1\r\nHost: a\r\nX-API-Key: one\r\n\r\n")
        read = b""
        while b"data: 1" not in read:
            read += client.recv(4096)
    until(lambda: door.ask(headers={"X-API-Key": "one"}).status == 429)


def test_no_minute_has_more_than_is_allowed() -> None:
    draw = random.Random(5)
    count, now, taken, refused = MinuteCount(), 0.0, list[float](), 0
    for _ in range(2_000):
        now += draw.expovariate(2.0)
        wait_s = count.wait_s(30, now)
        if wait_s > 0.0:
            refused += 1
            now += wait_s
            assert count.wait_s(30, now) == 0.0
        count.add(1, now)
        taken.append(now)
        assert sum(now - MINUTE_S < at for at in taken) <= 30
    assert refused > 50
    assert len(taken) > 30 * (now / MINUTE_S - 1) * 0.9


def usage_of(body: bytes, kind: bytes = b"application/json", bytes_in: int = 40, piece: int = 7) -> int:
    response = ResponseHead(200, b"OK", [(b"content-type", b"Content-Type", kind)], frozenset(), -1, True)
    usage = TokenUsage(response)
    for at in range(0, len(body), piece):
        usage.add(body[at : at + piece])
    return usage.total(bytes_in)


def test_tokens_are_those_that_an_answer_tells_or_else_a_guess() -> None:
    told = b'"usage": {"prompt_tokens": 5, "total_tokens": 17}'
    assert usage_of(b'{"choices": [], ' + told + b"}") == 17
    assert usage_of(b"{" + told + b', "choices": "' + b"x" * 9_000 + b'"}') == 17
    assert usage_of(b"x" * 400) == 110
    stream = b"".join(b"data: {%d}\n\n" % number for number in range(30))
    assert usage_of(stream, b"text/event-stream; charset=utf-8") == 40
    assert usage_of(stream, b"text/event-stream", piece=1) == 40
    assert usage_of(stream + b"data: {" + told + b"}\n\ndata: [DONE]\n\n", b"text/event-stream") == 17


def test_a_key_is_refused_from_when_it_expires(open_python_door: Opener, replicas: Make) -> None:
    over, open_ = {**key("over"), "expires_at": time.time() - 1}, {**key("open"), "expires_at": time.time() + 3600}
    door = open_python_door({"m": service(replicas(), keys=[over, open_])})
    assert door.ask("/m/x", headers={"X-API-Key": "open"}).status == 200
    refused = door.ask("/m/x", headers={"X-API-Key": "over"})
    assert (refused.status, refused.json()["error"]) == (403, "this key has expired; ask your team for a new one")
    assert is_valid(open_["sha256"], (RouteKey(open_["sha256"], "t", open_["expires_at"]),))
    assert not is_valid(over["sha256"], (RouteKey(over["sha256"], "t", over["expires_at"]),))
