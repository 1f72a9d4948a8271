"""Requests for a service that sleeps or is full are held, and never longer or more of them than may be."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

from tests.gateway.conftest import Opener
from tests.gateway.parts import LIMIT_S, Door, Replica, revision, service
from tests.waiting import until

Make = Callable[..., Replica]


def queued(door: Door) -> int:
    """Requests that wait for m, by demand.json."""
    return int(door.demand()["services"].get("m", {"queued": 0})["queued"])


def test_requests_of_a_sleeping_service_are_held_until_a_replica_is_there(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service()})
    asking = [door.ask_beside(f"/m/{number}", method="POST", body=b"x") for number in range(5)]
    until(lambda: queued(door) == 5, "five that wait")
    woken = door.demand()["services"]["m"]["wake"]
    assert woken is not None
    replica = replicas()
    door.write_routes({"m": service(replica)})
    assert [each.answer().status for each in asking] == [200] * 5
    assert sorted(replica.asked) == [f"/{number}" for number in range(5)]
    until(lambda: door.demand()["services"]["m"]["wake"] is None, "end of the wake-up")


def test_whoever_writes_the_routes_is_woken_once(open_door: Opener, replicas: Make, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wake:
        wake.bind(str(tmp_path / "wake"))
        wake.settimeout(LIMIT_S)
        door = open_door({"m": service()}, wake=tmp_path / "wake")
        asking = [door.ask_beside() for _ in range(3)]
        wake.recv(10)
        assert door.demand()["services"]["m"]["wake"] is not None
        until(lambda: queued(door) == 3, "three that wait")
        wake.setblocking(False)
        try:
            again = wake.recv(10)
        except BlockingIOError:
            again = None
        assert again is None
        door.write_routes({"m": service(replicas())})
        assert [each.answer().status for each in asking] == [200] * 3


def test_a_service_that_was_not_woken_is_asked_for_again(open_door: Opener, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wake:
        wake.bind(str(tmp_path / "wake"))
        wake.settimeout(LIMIT_S)
        door = open_door({"m": service(timeout_s=1.0)}, wake=tmp_path / "wake")
        woken = []
        for _ in range(2):
            assert door.ask().status == 503
            wake.recv(10)
            woken.append(door.demand()["services"]["m"]["wake"])
        assert woken[0] < woken[1]


def test_a_supervisor_that_is_not_there_is_nobodys_trouble(open_door: Opener, replicas: Make, tmp_path: Path) -> None:
    door = open_door({"m": service()}, wake=tmp_path / "nowhere")
    asking = door.ask_beside()
    until(lambda: queued(door) == 1, "one that waits")
    door.write_routes({"m": service(replicas())})
    assert asking.answer().status == 200


def test_more_than_may_wait_are_told_to_come_back(open_door: Opener) -> None:
    door = open_door({"m": service(max_queue=2)})
    asking = [door.ask_beside() for _ in range(2)]
    until(lambda: queued(door) == 2, "two that wait")
    refused = door.ask()
    assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
    assert "no replica is ready yet and 2 requests wait already" in refused.json()["error"]
    door.write_routes({"m": service(failure="over")})
    assert [each.answer().status for each in asking] == [503, 503]


def test_a_service_that_cannot_serve_says_why_at_once_and_to_those_who_wait(open_door: Opener) -> None:
    door = open_door({"m": service()})
    asking = door.ask_beside()
    until(lambda: queued(door) == 1, "one that waits")
    door.write_routes({"m": service(failure="the image has no program `serve`")})
    for answer in (asking.answer(), door.ask()):
        assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
        assert answer.json()["error"] == "m: the image has no program `serve`"


def test_a_failure_is_nothing_while_a_replica_serves(open_door: Opener, replicas: Make) -> None:
    assert open_door({"m": service(replicas(), failure="r2 does not start")}).ask().status == 200


def test_a_full_replica_is_given_no_more_and_the_next_is_served_when_one_is_done(
    open_door: Opener, replicas: Make
) -> None:
    replica = replicas()
    door = open_door({"m": service(replica, max_concurrency=2, max_queue=1)})
    asking = [door.ask_beside(f"/m/slow/{number}") for number in range(3)]
    until(lambda: queued(door) == 1, "one that waits")
    until(lambda: len(replica.asked) == 2, "two under way")
    refused = door.ask()
    assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
    assert "every replica is busy" in refused.json()["error"]
    replica.go.release()
    until(lambda: len(replica.asked) == 3, "third one under way")
    replica.go.release(2)
    assert [each.answer().status for each in asking] == [200] * 3


def test_a_service_that_stays_full_is_said_to_be_in_time(open_door: Opener) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(LIMIT_S)
        door = open_door({"m": service(("ws", listening.getsockname()[1]), max_concurrency=1, timeout_s=0.5)})
        with door.connect() as client:
            client.sendall(
                b"GET /m/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            replica, _ = listening.accept()
            with replica:
                replica.sendall(
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
                )
                assert client.recv(12) == b"HTTP/1.1 101"
                refused = door.ask()
    assert (refused.status, refused.json()["error"]) == (503, "m: no replica had room within 0.5 s")


def test_a_replica_that_does_not_answer_in_time_is_said_to(open_door: Opener, replicas: Make) -> None:
    refused = open_door({"m": service(replicas(), timeout_s=0.5)}).ask("/m/slow")
    assert refused.status == 504
    assert re.fullmatch("(a replica|replica replica) of m did not answer within 0.5 s", refused.json()["error"])


def test_a_service_that_does_not_wake_is_said_to_in_time(open_door: Opener) -> None:
    refused = open_door({"m": service(timeout_s=0.5)}).ask()
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert refused.json()["error"] == "m: no replica became ready within 0.5 s"


def test_who_stops_waiting_leaves_the_queue(open_door: Opener) -> None:
    door = open_door({"m": service(max_queue=1)})
    with door.connect() as client:
        client.sendall(b"GET /m/ HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: queued(door) == 1, "one that waits")
    until(lambda: queued(door) == 0, "empty queue")
    assert door.demand()["services"]["m"]["in_flight"] == 0


def test_when_every_replica_refuses_requests_wait_for_one_that_does_not(open_door: Opener, replicas: Make) -> None:
    ended = replicas("ended")
    ended.end()
    door = open_door({"m": service(ended)})
    asking = [door.ask_beside(method="POST", body=b"x") for _ in range(3)]
    until(lambda: queued(door) == 3, "three that wait")
    assert door.demand()["services"]["m"]["wake"] is None
    door.write_routes({"m": service(replicas("alive"))})
    assert [each.answer().json()["replica"] for each in asking] == ["alive"] * 3


def test_a_replica_that_is_removed_finishes_what_it_has(open_door: Opener, replicas: Make) -> None:
    old, new = replicas("old"), replicas("new")
    door = open_door({"m": service(old)})
    asking = door.ask_beside("/m/slow")
    until(lambda: old.asked == ["/slow"], "one under way")
    door.write_routes({"m": service(revisions=[revision("r2", new)])})
    until(lambda: door.ask().json()["replica"] == "new", "new routes")
    assert [door.ask().json()["replica"] for _ in range(5)] == ["new"] * 5
    old.go.release()
    assert asking.answer().json()["replica"] == "old"


def test_routes_that_are_wrong_change_nothing(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    door.write_routes({"m": service(timeout_s=-1)})
    until(lambda: b"fairlead_gateway_routes_valid 0.0" in door.ask("/metrics", admin=True).body, "word of it")
    assert door.ask().status == 200
    door.write_routes({"m": service(failure="over")})
    until(lambda: door.ask().status == 503, "new routes")
