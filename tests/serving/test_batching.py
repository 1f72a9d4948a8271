"""Requests go through the predictor in batches, one at a time, and come back apart."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.serving.predictors import Gate, Moody
from tests.serving.replica import Answer, Replica
from tests.waiting import until


@pytest.fixture
def gate() -> Iterator[type[Gate]]:
    Gate.opened.clear()
    Gate.sizes.clear()
    while Gate.entered.acquire(blocking=False):
        pass
    yield Gate
    Gate.opened.set()


def data(answer: Answer) -> list[float]:
    assert answer.status == 200, answer.body
    found: list[float] = answer.json()["outputs"][0]["data"]
    return found


def start(replica: Replica, *values: float) -> list[threading.Thread]:
    threads = [threading.Thread(target=replica.numbers, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()


def test_what_waits_while_the_predictor_is_busy_goes_in_batches(gate: type[Gate]) -> None:
    with Replica("Gate", max_batch_size=4) as replica:
        first = start(replica, 0)
        assert gate.entered.acquire(timeout=60)
        rest = start(replica, *range(1, 7))
        until(lambda: replica.metric('fairlead:num_requests_waiting{model_name="model"}') == 6, "six that wait")
        assert replica.metric('fairlead:num_requests_running{model_name="model"}') == 1
        gate.opened.set()
        join(first + rest)
        assert gate.sizes == [1, 4, 2]


def test_each_request_gets_its_own_rows() -> None:
    with Replica("Moody", max_batch_size=8, max_latency_ms=200) as replica:
        values = [float(value) for value in range(24)]
        assert [data(answer) for answer in replica.together(*values)] == [[value] for value in values]
        assert data(replica.numbers(5, 6, 7)) == [5, 6, 7]


def test_a_request_of_more_rows_than_a_batch_is_cut_up() -> None:
    with Replica("Moody", max_batch_size=4) as replica:
        Moody.batches.clear()
        assert data(replica.numbers(*range(10))) == list(range(10))
        assert [len(batch) for batch in Moody.batches] == [4, 4, 2]


def test_a_bad_request_fails_alone(gate: type[Gate]) -> None:
    with Replica("Moody", max_batch_size=16) as replica:
        Moody.batches.clear()
        answers = replica.together(1, -1, 2, 101, *range(3, 12))
        assert [answer.status for answer in answers[:4]] == [200, 400, 200, 500]
        assert all(answer.status == 200 for answer in answers[4:])
        assert answers[1].json()["error"] == "Moody.predict() refused the inputs: negative"
        assert answers[3].json()["error"] == "Moody.predict() raised RuntimeError: too hot"


def test_requests_of_other_shapes_do_not_share_a_batch() -> None:
    with Replica("Echo", max_batch_size=8) as replica:
        wide = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
        assert data(replica.infer(wide)) == [1, 2, 3]
        assert data(replica.numbers(4)) == [4]


def test_a_full_queue_is_said_at_once_and_when_to_come_again(gate: type[Gate]) -> None:
    with Replica("Gate", max_queue=2) as replica:
        threads = start(replica, 0)
        assert gate.entered.acquire(timeout=60)
        threads += start(replica, 1, 2)
        until(lambda: replica.metric('fairlead:num_requests_waiting{model_name="model"}') == 2, "two that wait")
        refused = replica.numbers(3)
        assert refused.status == 429
        assert refused.json()["error"] == "2 requests wait, and no more may"
        assert int(refused.headers["Retry-After"]) >= 1
        gate.opened.set()
        join(threads)
        assert data(replica.numbers(4)) == [4]


def test_without_a_queue_an_idle_predictor_still_serves() -> None:
    with Replica("Moody", max_queue=0) as replica:
        assert data(replica.numbers(1)) == [1]


def test_a_client_that_goes_away_leaves_its_place(gate: type[Gate]) -> None:
    with Replica("Gate", max_queue=1) as replica:
        threads = start(replica, 0)
        assert gate.entered.acquire(timeout=60)
        body = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}'
        head = b"POST /v2/models/model/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", replica.port), timeout=60.0) as connection:
            connection.sendall(head + body)
            until(lambda: replica.metric('fairlead:num_requests_waiting{model_name="model"}') == 1, "one that waits")
        until(lambda: replica.metric('fairlead:num_requests_waiting{model_name="model"}') == 0, "none that waits")
        gate.opened.set()
        join(threads)
        assert gate.sizes == [1]
