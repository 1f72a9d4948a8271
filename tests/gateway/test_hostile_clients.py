"""Clients that mean no good get clear errors, hold no place, and do not reach what is not theirs."""

import socket
import struct
from collections.abc import Callable

import pytest

from fairlead.gateway import conversation
from fairlead.gateway.messages import Refused
from tests.gateway.conftest import Opener
from tests.gateway.parts import Replica, received, service
from tests.waiting import until

Make = Callable[..., Replica]

REST_S = 5.0
"""For so long haproxy waits for the rest of what the door has refused, before it ends the connection."""


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
    monkeypatch.setattr(conversation, "HEAD_S", 0.2)
    door = open_python_door({})
    with door.connect() as silent, door.connect() as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nA: b")
        assert received(slow).startswith(b"HTTP/1.1 408 ")
        assert received(silent) == b""


def test_a_slow_body_takes_no_place(open_door: Opener, replicas: Make) -> None:
    replica = replicas()
    door = open_door({"m": service(replica, max_concurrency=1)})
    with door.connect() as slow:
        slow.sendall(b"POST /m/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\na")
        until(lambda: door.demand()["services"].get("m", {}).get("in_flight") == 1, "it under way")
        assert door.ask().status == 200
    assert replica.asked == ["/echo"]


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
    told = conversation.Conversation._tell_unread

    def tell_and_lose(self: conversation.Conversation, refused: Refused) -> None:
        told(self, refused)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

    monkeypatch.setattr(conversation.Conversation, "_tell_unread", tell_and_lose)
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
        "no more of the answer came from replica replica or got to the client within 1 s",
        "the client took no more of the answer in time",
        "replica replica did not answer in time",
    )
