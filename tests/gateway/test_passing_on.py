"""Requests get to their replica and answers back, unchanged but for what is between neighbours."""

import hashlib
import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.gateway.conftest import Opener
from tests.gateway.parts import LIMIT_S, RawReplica, Replica, received, revision, service
from tests.waiting import until

Make = Callable[..., Replica]

KEY = {"sha256": hashlib.sha256(b"secret").hexdigest(), "team": "vision"}


@pytest.mark.slow
def test_a_path_below_the_services_is_asked_for_without_it(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    assert [door.ask(path).json()["path"] for path in ("/m/a/b?c=d", "/m", "/m?x=1", "/m/")] == [
        "/a/b?c=d", "/", "/?x=1", "/",
    ]  # fmt: skip


def test_a_host_gets_the_path_as_it_is(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    told = door.ask("/m/x", headers={"Host": "M.localhost:8080"}).json()
    assert (told["path"], told["headers"]["host"]) == ("/m/x", "M.localhost:8080")


def test_a_longer_path_comes_before_a_shorter_one(open_door: Opener, replicas: Make) -> None:
    one, two = replicas("one"), replicas("two")
    door = open_door({"m": service(one, hosts=[]), "n": service(two, path="/m/deep", hosts=[])})
    assert [door.ask(path).json()["replica"] for path in ("/m/deep/x", "/m/deeper", "/m/x")] == ["two", "one", "one"]


@pytest.mark.parametrize("path", ["/", "/other", "/mm", "/-/metrics", "/metrics"])
def test_what_is_served_nowhere_is_not_found(open_door: Opener, replicas: Make, path: str) -> None:
    assert open_door({"m": service(replicas())}).ask(path).status == 404


def test_a_body_arrives_whole(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    assert door.ask(method="POST", body=b"hello").json()["body"] == "hello"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_passed_on_as_it_comes(open_door: Opener, replicas: Make, chunked: bool) -> None:
    piece = bytes(range(256)) * 4096

    def pieces() -> Iterator[bytes]:
        for _ in range(8):
            yield piece

    door = open_door({"m": service(replicas())})
    headers = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(8 * len(piece))}
    told = door.ask(method="PUT", body=pieces(), headers=headers, chunked=chunked).json()["body"].encode("latin-1")
    assert hashlib.sha256(told).digest() == hashlib.sha256(piece * 8).digest()


def test_pieces_of_an_answer_come_as_they_are_sent(open_door: Opener, replicas: Make) -> None:
    replica = replicas()
    door = open_door({"m": service(replica)})
    with door.connect() as client, client.makefile("rb") as lines:
        client.sendall(b"GET /m/stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        while lines.readline() != b"\r\n":
            pass
        for number in range(3):
            replica.go.release()
            assert [lines.readline(), lines.read(11)] == [b"9\r\n", b"data: %d\n\n\r\n" % number]
        assert lines.read() == b"0\r\n\r\n"


def test_a_client_of_http_1_0_gets_no_chunks(open_door: Opener, replicas: Make) -> None:
    replica = replicas()
    replica.go.release(3)
    answer = open_door({"m": service(replica)}).raw(b"GET /m/stream HTTP/1.0\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


def test_one_connection_carries_many_requests(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    with door.connect() as client:
        client.sendall(
            b"GET /m/a HTTP/1.1\r\nHost: x\r\n\r\n" * 2 + b"GET /m/b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        assert received(client).count(b"HTTP/1.1 200 OK") == 3


def test_the_answer_to_head_has_no_body(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    answer = door.ask(method="HEAD")
    assert (answer.body, int(answer.headers["Content-Length"]) > 0) == (b"", True)


def test_an_answer_without_a_length_ends_with_the_connection(open_door: Opener) -> None:
    with RawReplica(b"HTTP/1.1 200 OK\r\n\r\nall of it") as replica:
        door = open_door({"m": service((replica.name, replica.port))})
        assert door.ask().body == b"all of it"


def test_fields_between_neighbours_are_not_passed_on(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    answer = door.ask(headers={"Connection": "keep-alive, X-Mine", "X-Mine": "1", "TE": "trailers", "X-Other": "2"})
    told = answer.json()["headers"]
    assert {"te", "x-mine", "connection", "keep-alive"}.isdisjoint(told)
    assert told["x-other"] == "2"
    assert "Keep-Alive" not in answer.headers


def test_a_replica_learns_who_asked_and_how(open_door: Opener, replicas: Make) -> None:
    told = open_door({"m": service(replicas())}).ask(headers={"X-Forwarded-For": "10.0.0.9"}).json()["headers"]
    assert told["x-forwarded-for"] == "10.0.0.9, 127.0.0.1"
    assert told["x-forwarded-prefix"] == "/m"
    assert told["x-forwarded-proto"] == "http"


@pytest.mark.parametrize("lines", [[b"1.1.1.1", b"2.2.2.2"], [b"1.1.1.1, 2.2.2.2"], [b"", b"1.1.1.1", b"2.2.2.2"]])
def test_addresses_of_all_lines_are_passed_on(open_door: Opener, replicas: Make, lines: list[bytes]) -> None:
    """A proxy in front may add a line of its own, with the true address, to the client's."""
    replica = replicas()
    door = open_door({"m": service(replica)})
    told = b"".join(b"X-Forwarded-For: %b\r\n" % line for line in lines)
    door.raw(b"GET /m/echo HTTP/1.1\r\nHost: x\r\n" + told + b"Connection: close\r\n\r\n")
    assert replica.headers[0]["x-forwarded-for"] == "1.1.1.1, 2.2.2.2, 127.0.0.1"


@pytest.mark.parametrize("trusts", [True, False])
def test_only_a_trusted_proxy_says_under_which_name_and_scheme_it_was_asked(
    open_door: Opener, replicas: Make, trusts: bool
) -> None:
    door = open_door({"m": service(replicas())}, trusts_loopback=trusts)
    headers = {"Host": "m.localhost", "X-Forwarded-Host": "models.example", "X-Forwarded-Proto": "https"}
    told = door.ask("/echo", headers=headers).json()["headers"]
    seen = told["x-forwarded-host"], told["x-forwarded-proto"]
    assert seen == (("models.example", "https") if trusts else ("m.localhost", "http"))
    told = door.ask("/echo", headers={"Host": "m.localhost"}).json()["headers"]
    assert (told["x-forwarded-host"], told["x-forwarded-proto"]) == ("m.localhost", "http")


def test_a_field_with_an_underscore_is_dropped(open_door: Opener, replicas: Make) -> None:
    headers = {"X_Forwarded_Proto": "https", "X_A": "1"}
    told = open_door({"m": service(replicas())}).ask(headers=headers).json()["headers"]
    assert not {"x_forwarded_proto", "x_a"} & told.keys()


def test_a_sound_request_id_is_kept_and_another_is_replaced(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    kept = door.ask(headers={"X-Request-Id": "abc-1"})
    made = door.ask(headers={"X-Request-Id": 'a "b"'})
    assert kept.json()["headers"]["x-request-id"] == kept.headers["X-Request-Id"] == "abc-1"
    assert len(made.headers["X-Request-Id"]) == 32
    assert made.json()["headers"]["x-request-id"] == made.headers["X-Request-Id"]


def test_a_trace_is_passed_on_or_begun(open_door: Opener, replicas: Make) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    door = open_door({"m": service(replicas())})
    passed = door.ask(headers={"traceparent": trace, "tracestate": "a=b"}).json()["headers"]
    begun = door.ask(headers={"traceparent": "00-1-2-3", "tracestate": "a=b"}).json()["headers"]
    assert (passed["traceparent"], passed["tracestate"]) == (trace, "a=b")
    assert [len(part) for part in begun["traceparent"].split("-")] == [2, 32, 16, 2]
    assert "tracestate" not in begun


def test_an_expected_100_comes_before_the_body(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    with door.connect() as client:
        client.sendall(
            b"POST /m/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
            b"Expect: 100-continue\r\nConnection: close\r\n\r\n"
        )
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"ok")
        answer = received(client)
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["body"] == "ok"
    assert b"expect" not in answer.lower()


@pytest.mark.slow
def test_a_websocket_is_passed_through(open_door: Opener) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(LIMIT_S)
    with listening:
        door = open_door({"m": service(("ws", listening.getsockname()[1]))})
        with door.connect() as client:
            client.sendall(
                b"GET /m/chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            replica, _ = listening.accept()
            with replica:
                replica.settimeout(LIMIT_S)
                head = replica.recv(4096)
                assert b"Upgrade: websocket" in head
                assert b"dGhlIHNhbXBsZSBub25jZQ==" in head
                replica.sendall(
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n\x81\x02hi"
                )
                got = b""
                while b"\x81\x02hi" not in got:
                    got += client.recv(4096)
                assert got.startswith(b"HTTP/1.1 101 ")
                client.sendall(b"\x81\x80abcd")
                assert replica.recv(100) == b"\x81\x80abcd"
            assert received(client) == b""


@pytest.mark.parametrize(
    "fields",
    [
        b"Upgrade: websocket\r\n",
        b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
        b"Upgrade: TLS/1.2\r\nConnection: upgrade\r\n",
        b"Upgrade: websocket\r\nConnection: keep-alive\r\n",
    ],
)
@pytest.mark.parametrize("more", [{}, {"keys": [KEY], "tokens_per_minute": 100}])
def test_an_upgrade_that_is_not_asked_for_in_full_or_not_known_is_ignored(
    open_door: Opener, replicas: Make, fields: bytes, more: dict[str, Any]
) -> None:
    """RFC 9110, 7.8: `Upgrade` counts with its name in `Connection`, and a server may ignore it."""
    replica = replicas()
    door = open_door({"m": service(replica, **more)})
    with door.connect() as client:
        client.sendall(b"GET /m/echo HTTP/1.1\r\nHost: x\r\nX-API-Key: secret\r\n" + fields + b"\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert not {"upgrade", "http2-settings"} & replica.headers[0].keys()


def test_an_upgrade_of_http_1_0_is_ignored(open_python_door: Opener, replicas: Make) -> None:
    """haproxy refuses a handshake without a key by itself."""
    replica = replicas()
    door = open_python_door({"m": service(replica)})
    answer = door.raw(b"GET /m/echo HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert "upgrade" not in replica.headers[0]


@pytest.mark.parametrize("cut", [0, 20, 26, 40])
def test_a_client_of_http_2_is_answered_in_its_own_words(open_python_door: Opener, cut: int) -> None:
    asked = (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0d"
        b"\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a"
    )
    door = open_python_door({})
    with door.connect() as client:
        client.sendall(asked[:cut])
        client.sendall(asked[cut:])
        answer = received(client)
    assert answer[:9] == b"\0\0\0\x04\0\0\0\0\0", "settings"
    assert answer[12:18] == b"\x01\x04\0\0\0\x01", "the head of the answer to request 1"
    assert b"\x08\x03505" in answer
    assert b"use HTTP/1.1" in answer
    until(lambda: [line["status"] for line in door.log()] == [505], "its line")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_with_http_2_shows_why_it_is_not_served(open_python_door: Opener) -> None:
    door = open_python_door({})
    url = f"http://127.0.0.1:{door.port}/m"
    asked = subprocess.run(["curl", "-si", "--http2-prior-knowledge", url], capture_output=True, text=True, check=False)
    if asked.returncode in (1, 2, 4):
        pytest.skip("this curl has no HTTP/2")
    assert asked.stdout.startswith("HTTP/2 505")
    assert "use HTTP/1.1" in asked.stdout


@pytest.mark.parametrize(
    "sent", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100, b"PRI * HTTP/2.0\r\n\r\nno\r\n\r\n"]
)
def test_what_only_begins_as_http_2_is_closed(open_python_door: Opener, sent: bytes) -> None:
    door = open_python_door({})
    assert door.raw(sent) == b""


def test_a_request_that_no_replica_has_seen_goes_to_another(open_door: Opener, replicas: Make) -> None:
    ended, alive = replicas("ended"), replicas("alive")
    ended.end()
    door = open_door({"m": service(ended, alive)})
    assert [door.ask(method="POST", body=b"x").json()["replica"] for _ in range(4)] == ["alive"] * 4


def test_a_connection_that_a_replica_has_ended_is_not_used_again(open_door: Opener) -> None:
    with RawReplica(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as replica:
        door = open_door({"m": service((replica.name, replica.port))})
        assert [door.ask(method="POST", body=b"x").status for _ in range(20)] == [200] * 20
        assert len(replica.read) == 20


def test_a_request_that_may_have_begun_is_not_sent_again(open_door: Opener, replicas: Make) -> None:
    one, two = replicas("one"), replicas("two")
    door = open_door({"m": service(one, two)})
    answer = door.ask("/m/fail", method="POST", body=b"x")
    assert answer.status == 502
    assert "may have begun" in answer.json()["error"]
    assert len(one.asked) + len(two.asked) == 1


def test_a_request_of_an_idempotent_service_is_sent_again_but_not_for_ever(open_door: Opener, replicas: Make) -> None:
    one, two, three, four = (replicas(name) for name in ("one", "two", "three", "four"))
    door = open_door({"m": service(one, two, three, four, idempotent=True)})
    assert door.ask("/m/fail", method="POST", body=b"x").status == 502
    assert sum(len(each.asked) for each in (one, two, three, four)) == 3


def test_an_answer_that_breaks_off_is_seen_to_be_broken_off(open_door: Opener) -> None:
    with RawReplica(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf") as replica:
        answer = open_door({"m": service((replica.name, replica.port))}).raw(b"GET /m/ HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"content-length: 10" in answer.lower() or answer == b""
    assert len(answer.partition(b"\r\n\r\n")[2]) < 10


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
)
def test_an_answer_that_is_not_http_is_a_bad_gateway(open_door: Opener, answer: bytes) -> None:
    with RawReplica(answer) as replica:
        assert open_door({"m": service((replica.name, replica.port))}).ask().status == 502


def test_a_client_that_goes_away_ends_its_request(open_door: Opener) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(LIMIT_S)
    with listening:
        door = open_door({"m": service(("slow", listening.getsockname()[1]))})
        with door.connect() as client:
            client.sendall(b"GET /m/ HTTP/1.1\r\nHost: x\r\n\r\n")
            replica, _ = listening.accept()
            replica.settimeout(LIMIT_S)
            assert replica.recv(4096).startswith(b"GET / HTTP/1.1")
        with replica:
            assert received(replica) == b""
    until(door.log, "line of the access log")
    assert [line["status"] for line in door.log()] == [499]


def test_copies_go_to_shadows_and_their_answers_to_nobody(open_door: Opener, replicas: Make) -> None:
    real, shadow = replicas("real"), replicas("shadow")
    revisions = [revision("r1", real), revision("r2", shadow, shadow=True, weight=50)]
    door = open_door({"m": service(revisions=revisions)})
    assert [door.ask(method="POST", body=b"x").json()["replica"] for _ in range(3)] == ["real"] * 3
    until(lambda: len(shadow.asked) == 3, "three copies")
    assert shadow.headers[0]["x-fairlead-shadow"] == "1"
    assert "x-fairlead-shadow" not in real.headers[0]
    until(lambda: door.counted("m", "r2") == 3, "count of copies")


@pytest.mark.slow
def test_a_websocket_is_not_copied(open_python_door: Opener, replicas: Make) -> None:
    shadow = replicas("shadow")
    switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with RawReplica(switched) as replica:
        told = [revision("r1", replica), revision("r2", shadow, shadow=True)]
        door = open_python_door({"m": service(revisions=told)})
        asked = b"GET /m/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert door.raw(asked).startswith(b"HTTP/1.1 101 ")
    assert door.counted("m", "r2") == 0
    assert b'fairlead_gateway_shadows_total{outcome="sent"' not in door.ask("/metrics", admin=True).body
    assert shadow.asked == []


def test_a_shadow_that_refuses_is_nobodys_trouble(open_door: Opener, replicas: Make) -> None:
    shadow = replicas("shadow")
    shadow.end()
    door = open_door({"m": service(revisions=[revision("r1", replicas("real")), revision("r2", shadow, shadow=True)])})
    assert door.ask().status == 200
