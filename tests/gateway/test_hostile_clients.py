"""Clients that mean no good get clear errors, hold no place, and do not reach what is not theirs."""

import asyncio
import hashlib
import json
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.gateway import byte_stream, client_connection, forwarding, pace
from fairlead.gateway.forwarding import SMALL_BODY
from fairlead.gateway.messages import HttpError
from tests.gateway.conftest import Opener
from tests.gateway.parts import Door, RawReplica, Replica, received, service
from tests.waiting import until

Make = Callable[..., Replica]

HANDSHAKE = (
    b"GET /m/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)
REST_S = 5.0
"""For so long haproxy waits for the rest of what the door has refused, before it ends the connection."""


def connections(door: Door) -> int:
    """The number of clients of a gateway."""
    found = re.search(rb"\nfairlead_gateway_connections (\d+)", door.ask("/metrics", admin=True).body)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (b"POST /m/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (b"GET /m/../n HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET http://m.localhost/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /m/x HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET /m/x HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 500 + b"\r\n", 431),
        (b"GET /m/x HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 40_000, 431),
        (b"GET /" + b"a" * 40_000, 431),
        (b"POST /m/x HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n", 413),
    ],
)
def test_what_is_no_sound_request_is_refused_and_reaches_nobody(
    open_door: Opener, replicas: Make, told: bytes, status: int
) -> None:
    replica = replicas()
    door = open_door({"m": service(replica, timeout_s=REST_S)})
    answer = door.raw(told)
    # haproxy has one status for all that it cannot read.
    assert answer.startswith((b"HTTP/1.1 %d " % status, b"HTTP/1.1 400 "))
    assert replica.asked == []
    assert door.ask().status == 200


def test_what_follows_a_request_with_two_lengths_is_not_taken_for_another(open_door: Opener, replicas: Make) -> None:
    """The door refuses it; haproxy takes its chunks for its length, as the RFC says, and ends the connection."""
    replica = replicas()
    door = open_door({"m": service(replica)})
    answer = door.raw(
        b"POST /m/a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /m/b HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert answer.count(b"HTTP/1.1 ") == 1
    assert "/b" not in replica.asked
    assert answer.startswith(b"HTTP/1.1 400 ") or replica.asked == ["/a"]


def test_a_body_that_grows_beyond_the_most_is_refused(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas(), timeout_s=REST_S)}, most_body=1000)
    with door.connect() as client:
        client.sendall(b"POST /m/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.sendall(b"258\r\n" + b"a" * 600 + b"\r\n258\r\n" + b"a" * 600 + b"\r\n")
        assert received(client).startswith(b"HTTP/1.1 413 ")


def test_a_malformed_chunk_is_refused(open_door: Opener, replicas: Make) -> None:
    replica = replicas()
    door = open_door({"m": service(replica)})
    assert door.raw(b"POST /m/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n").startswith(
        b"HTTP/1.1 400 "
    )
    assert replica.asked == []


def test_a_head_that_does_not_come_to_its_end_is_given_up(
    open_python_door: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_connection, "HEAD_S", 0.2)
    door = open_python_door({})
    with door.connect() as silent, door.connect() as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nA: b")
        assert received(slow).startswith(b"HTTP/1.1 408 ")
        assert received(silent) == b""


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 100\r\n\r\na",
        b"Content-Length: 100000\r\n\r\na",
        b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
        b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
    ],
)
def test_a_slow_body_takes_no_place(open_door: Opener, replicas: Make, body: bytes) -> None:
    replica = replicas()
    door = open_door({"m": service(replica, max_concurrency=1, most_in_flight=1)})
    with door.connect() as slow:
        slow.sendall(b"POST /m/x HTTP/1.1\r\nHost: x\r\n" + body)
        until(lambda: connections(door) == 1, "it under way")
        assert door.ask().status == 200
    assert replica.asked == ["/echo"]


def test_chunks_of_a_short_body_reach_a_replica_with_their_length(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    told = door.ask(method="POST", body=iter([b"ab", b"cd"]), chunked=True).json()
    assert (told["body"], told["headers"]["content-length"]) == ("abcd", "4")
    assert "transfer-encoding" not in told["headers"]


def test_chunks_of_a_long_body_reach_a_replica_as_they_come(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    told = door.ask(method="POST", body=iter([b"ab" * 1_000_000, b"cd" * 1_000_000]), chunked=True).json()
    assert told["body"] == "ab" * 1_000_000 + "cd" * 1_000_000
    assert told["headers"]["transfer-encoding"] == "chunked"


@pytest.mark.slow
def test_an_upload_that_is_too_slow_is_given_up(
    open_python_door: Opener, replicas: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "WINDOW_S", 0.3)
    replica = replicas()
    door = open_python_door({"m": service(replica, max_concurrency=1)})
    with door.connect() as slow:
        slow.sendall(b"POST /m/x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n" + b"a" * SMALL_BODY)
        slow.settimeout(0.02)
        answer = b""
        while not answer:
            slow.sendall(b"a")
            with suppress(TimeoutError):
                answer = slow.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"too slowly" in answer
    assert door.ask().status == 200
    assert door.counted("m", "r1") <= 1, "the replica is not to blame"


def test_a_reader_that_is_too_slow_is_given_up(
    open_python_door: Opener, replicas: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece that it takes in time renews no time-out."""
    monkeypatch.setattr(pace, "WINDOW_S", 0.3)
    monkeypatch.setattr(pace, "LEAST_RATE", 1_000_000_000)
    door = open_python_door({"m": service(replicas(), max_concurrency=1)})
    with door.connect() as slow:
        size = 30_000_000
        slow.sendall(b"POST /m/x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b"a" * size)
        until(lambda: not slow.recv(1000) or door.log() != [], "its end", every_s=0.001)
    (line,) = door.log()
    assert line["error"] == "the client took the answer too slowly"
    assert line["bytes_out"] < size
    assert door.ask().status == 200


def test_answers_that_nobody_reads_stop_the_reading_and_end_the_connection(
    open_python_door: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_connection, "IDLE_S", 1.0)
    door = open_python_door({}, access_log_bytes=100_000_000)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", door.port))
        client.setblocking(False)
        sent = 0
        with suppress(BlockingIOError):
            sent = client.send(b"GET / HTTP/1.1\r\nHost:a\r\n\r\n" * 100_000)
        assert sent > 1000
        until(lambda: connections(door) == 1, "it")
        until(lambda: connections(door) == 0, "its end")
    assert len(door.log()) < 20_000


def test_requests_that_came_at_once_leave_others_their_turn(open_python_door: Opener) -> None:
    door = open_python_door({})
    number = 3000
    with door.connect() as many, door.connect() as one:
        until(lambda: connections(door) == 2, "both")
        many.sendall(b"GET /many HTTP/1.1\r\nHost:a\r\n\r\n" * number)
        one.sendall(b"GET /one HTTP/1.1\r\nHost:a\r\n\r\n")
        until(lambda: len(door.log()) == number + 1, "all", timeout_s=60.0)
    assert [line["path"] for line in door.log()].index("/one") < number


def test_a_closed_connection_ends_though_its_peer_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_stream, "CLOSE_S", 0.2)

    async def close() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            _, made = await loop.create_connection(lambda: byte_stream.ByteStream(loop), sock=ours)
            made.write(b"a" * 10_000_000)
            made.close()
            async with asyncio.timeout(30.0):
                while await made.more():
                    pass
            assert made.lost

    asyncio.run(close())


def test_only_one_place_closes_a_connection() -> None:
    """So that each is aborted if its peer does not read."""
    sources = Path(byte_stream.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "transport.close()" in path.read_text()] == ["byte_stream.py"]


def test_a_websocket_in_which_nothing_happens_is_ended(
    open_python_door: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "TUNNEL_IDLE_S", 0.3)
    with RawReplica(SWITCHED, stays=True) as replica:
        door = open_python_door({"m": service(replica, max_concurrency=1)})
        assert door.raw(HANDSHAKE).startswith(b"HTTP/1.1 101 ")
        until(lambda: door.log() != [], "its line")
    (line,) = door.log()
    assert line["error"] == "nothing was sent for 0.3 s"


def test_a_websocket_keeps_its_peers_probed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:

        async def probed() -> int:
            loop = asyncio.get_running_loop()
            _, made = await loop.create_connection(lambda: byte_stream.ByteStream(loop), sock=client)
            made.keep_alive()
            on: int = made.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            made.abort()
            return on

        assert asyncio.run(probed()) == 1


def test_a_key_that_is_revoked_ends_its_websocket_and_no_other(open_door: Opener) -> None:
    one, two = ({"sha256": hashlib.sha256(each).hexdigest(), "team": "t"} for each in (b"one", b"two"))
    with RawReplica(SWITCHED, stays=True) as replica:
        door = open_door({"m": service(replica, keys=[one, two])})
        with door.connect() as revoked, door.connect() as kept:
            for client, secret in ((revoked, b"one"), (kept, b"two")):
                client.sendall(HANDSHAKE.replace(b"Host", b"X-API-Key: " + secret + b"\r\nHost"))
                assert client.recv(65536).startswith(b"HTTP/1.1 101 ")
            door.write_routes({"m": service(replica, keys=[two])})
            assert received(revoked) == b""
            kept.setblocking(False)
            with pytest.raises(BlockingIOError):
                kept.recv(1)
        until(lambda: len(door.log()) == 2, "both")
    assert "its key is not valid any more" in [line["error"] for line in door.log()]


def test_a_key_that_is_revoked_ends_its_stream(open_door: Opener, replicas: Make) -> None:
    key = {"sha256": hashlib.sha256(b"one").hexdigest(), "team": "t"}
    replica = replicas()
    door = open_door({"m": service(replica, keys=[key])})
    with door.connect() as client:
        client.sendall(b"GET /m/stream HTTP/1.1\r\nHost: x\r\nX-API-Key: one\r\n\r\n")
        replica.go.release()
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        door.write_routes({"m": service(replica, keys=[])})
        assert b"0\r\n\r\n" not in received(client)


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: 2\r\n\r\nhi", b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"],
)
def test_a_websocket_with_a_body_is_a_request_like_any_other(open_door: Opener, replicas: Make, body: bytes) -> None:
    """Its body has one reader; a tunnel would be a second."""
    replica = replicas()
    door = open_door({"m": service(replica)})
    answer = door.raw(HANDSHAKE[:-2].replace(b": Upgrade", b": Upgrade, close") + body)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert (json.loads(answer.partition(b"\r\n\r\n")[2])["body"], "upgrade" in replica.headers[0]) == ("hi", False)


def test_a_body_that_does_not_come_is_given_up(open_door: Opener, replicas: Make) -> None:
    replica = replicas()
    door = open_door({"m": service(replica, timeout_s=0.5)})
    with door.connect() as slow:
        slow.sendall(b"POST /m/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\na")
        assert received(slow).startswith(b"HTTP/1.1 408 ")
    assert replica.asked == []


def test_more_connections_than_may_be_end_the_idle_ones(open_python_door: Opener, replicas: Make) -> None:
    door = open_python_door({"m": service(replicas())}, most_connections=3)
    idle = [door.connect() for _ in range(3)]
    try:
        until(lambda: b"fairlead_gateway_connections 3.0" in door.ask("/metrics", admin=True).body, "three of them")
        assert door.ask().status == 200
        assert received(idle[0]) == b""
    finally:
        for each in idle:
            each.close()


def test_when_none_is_idle_a_further_connection_is_turned_away(open_python_door: Opener, replicas: Make) -> None:
    replica = replicas()
    door = open_python_door({"m": service(replica)}, most_connections=2)
    asking = [door.ask_beside("/m/slow") for _ in range(2)]
    until(lambda: len(replica.asked) == 2, "two under way")
    assert door.ask().status == 503
    replica.go.release(2)
    assert [each.answer().status for each in asking] == [200, 200]


def test_a_client_that_resets_its_connection_at_its_answer_is_no_defect(
    open_python_door: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = open_python_door({})
    client = door.connect()
    told = client_connection.ClientConnection._refuse_unreadable

    def tell_and_lose(self: client_connection.ClientConnection, refused: HttpError) -> None:
        told(self, refused)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

    monkeypatch.setattr(client_connection.ClientConnection, "_refuse_unreadable", tell_and_lose)
    client.sendall(b"no request\r\n\r\n")
    until(lambda: client.fileno() == -1, "the answer")
    until(lambda: b"fairlead_gateway_connections 0.0" in door.ask("/metrics", admin=True).body, "the end of it")
    assert b"fairlead_gateway_defects_total 0.0" in door.ask("/metrics", admin=True).body


def test_figures_are_for_this_machine_and_not_behind_the_door(open_door: Opener, replicas: Make) -> None:
    replica = replicas()
    door = open_door({"m": service(replica)})
    assert door.ask("/-/metrics").status == 404
    assert door.ask("/m/-/metrics").json()["path"] == "/-/metrics"
    assert door.ask("/metrics", admin=True).status == 200
    assert door.ask("/metrics", admin=True, headers={"Host": "evil.example"}).status == 403


def test_a_client_that_does_not_read_makes_nothing_grow(open_door: Opener, replicas: Make) -> None:
    """Only a real connection shows that reading from the replica stops when writing to the client does."""
    replica = replicas()
    piece = b"x" * 1_000_000
    door = open_door({"m": service(replica, timeout_s=1.0)})
    with door.connect() as client:
        client.sendall(
            b"POST /m/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\nConnection: close\r\n\r\n" + piece * 30
        )
        until(lambda: door.log() != [], "end of it")
    (line,) = door.log()
    assert line["bytes_out"] < 30_000_000
    assert line["error"] in (
        "the client took the answer too slowly",
        "the client took no more of the answer in time",
        "replica replica did not answer in time",
    )
