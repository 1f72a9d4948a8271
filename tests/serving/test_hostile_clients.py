"""Clients that dribble, flood, lie about lengths and send what is no HTTP: clear errors, and the server serves on."""

import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.runtime.serving.inference_protocol import HEADER_LENGTH, read_infer_request
from fairlead.runtime.serving.problems import BadRequest
from fairlead.runtime.serving.routes import ROUTES
from fairlead.runtime.serving.tensors import DTYPES, count
from tests.serving.replica import Replica, x
from tests.waiting import until

INFER = b"POST /v2/models/model/infer HTTP/1.1\r\nHost: a\r\n"
LIMIT = 10_000


@pytest.fixture(scope="module")
def replica() -> Iterator[Replica]:
    with Replica("Echo", max_body_bytes=LIMIT, max_batch_size=4) as replica:
        yield replica


@pytest.fixture(scope="module")
def impatient() -> Iterator[Replica]:
    with Replica("Echo", wait=False, read_timeout_s=0.3, max_connections=20) as replica:
        yield replica


@pytest.fixture(autouse=True)
def _still_serves(replica: Replica) -> Iterator[None]:
    yield
    assert replica.infer(x([1], [1])).status == 200
    until(lambda: replica.get("/v2/health/ready").status == 200, "readiness")


def test_a_body_beyond_the_limit_is_refused_before_it_comes(replica: Replica) -> None:
    answer = replica.raw(INFER + b"Content-Length: 1000000000000\r\n\r\n")
    assert b" 413 " in answer.splitlines()[0]
    assert b"the body has 1000000000000 bytes; at most 10000 are allowed" in answer


def test_a_method_that_a_route_does_not_know_is_told_which_it_knows(replica: Replica) -> None:
    for path, method, knows in (
        ("/v2", "TRACE", "GET"),
        ("/v1/completions", "PUT", "POST"),
        ("/metrics", "POST", "GET"),
    ):
        answer = replica.get(path, method)
        assert (answer.status, answer.headers["Allow"]) == (405, knows)


def test_a_body_of_unknown_length_is_cut_off_at_the_limit(replica: Replica) -> None:
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    answer = replica.raw(INFER + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 3 + b"0\r\n\r\n")
    assert b" 413 " in answer.splitlines()[0]


def test_a_small_body_that_unpacks_to_a_large_one_is_refused(replica: Replica) -> None:
    packed = gzip.compress(b" " * 5_000_000)
    assert len(packed) < LIMIT
    answer = replica.post("/v2/models/model/infer", packed, {"Content-Encoding": "gzip"})
    assert answer.status in (400, 413)


def test_a_packed_request_is_understood(replica: Replica) -> None:
    head = json.dumps({"inputs": [x([1], [1])]}).encode()
    headers = {"Content-Encoding": "gzip", HEADER_LENGTH: str(len(head))}
    assert replica.post("/v2/models/model/infer", gzip.compress(head), headers).status == 200
    assert replica.post("/v2/models/model/infer", b"no gzip", {"Content-Encoding": "gzip"}).status == 400


@pytest.mark.parametrize("part", [b"", b"POST /v2/models/model/infer HTT", INFER + b"X-Slow: "])
def test_a_header_that_does_not_come_ends_the_connection(impatient: Replica, part: bytes) -> None:
    assert impatient.raw(part) == b""


def test_a_body_that_does_not_come_is_told_so(impatient: Replica) -> None:
    answer = impatient.raw(INFER + b"Content-Length: 100\r\n\r\n{")
    assert b" 408 " in answer.splitlines()[0]
    assert b"the body did not come within 0.3 s" in answer


def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(replica: Replica) -> None:
    body = json.dumps({"inputs": [x([1], [1])]}).encode()
    head = INFER + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", replica.port), timeout=60.0) as connection:
        connection.sendall(head)
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
        b"GET / \r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 1000 + b"\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        INFER + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        INFER + b"Content-Length: -5\r\n\r\n",
        INFER + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        INFER + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v2 HTTP/1.1\r\nHost : a\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused(replica: Replica, request_bytes: bytes) -> None:
    answer = replica.raw(request_bytes)
    assert b" 400 " in answer.splitlines()[0], answer
    assert b'"error"' in answer


def test_connections_beyond_the_limit_are_closed_at_once_and_room_comes_back(impatient: Replica) -> None:
    held = [socket.create_connection(("127.0.0.1", impatient.port), timeout=60.0) for _ in range(40)]
    closed = 0
    for connection in held:
        with connection:
            connection.settimeout(60.0)
            try:
                closed += connection.recv(1) == b""
            except ConnectionResetError:
                closed += 1
    assert closed == 40  # 20 at once, the others as they sent no header
    until(lambda: b" 200 " in impatient.raw(b"GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"), "room")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
TENSORS = st.fixed_dictionaries(
    {
        "name": st.text(max_size=3) | JSON,
        "shape": st.lists(st.integers(-1, 4), max_size=4) | JSON,
        "datatype": st.sampled_from(list(DTYPES)) | JSON,
    },
    optional={
        "data": st.lists(st.integers() | st.floats() | st.text(max_size=3) | st.booleans(), max_size=6) | JSON,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-1, 40) | JSON}) | JSON,
    },
)
REQUESTS = st.fixed_dictionaries(
    {"inputs": st.lists(TENSORS, min_size=1, max_size=3) | JSON}, optional={"id": JSON, "outputs": JSON, "extra": JSON}
)


@given(REQUESTS, st.binary(max_size=40), st.none() | st.text(max_size=6))
@settings(max_examples=150)
def test_any_request_is_read_or_refused(request: Any, tail: bytes, length: str | None) -> None:
    head = json.dumps(request).encode()
    for header in (length, str(len(head))):
        try:
            read = read_infer_request(bytearray(head + tail), header, None, "model")
        except BadRequest:
            continue
        assert read.inputs
        for array in read.inputs.values():
            assert array.shape[0] == read.rows
            assert array.size == count(array.shape) > 0


@given(
    st.sampled_from(sorted(ROUTES)), st.sampled_from(["GET", "POST", "PUT", "HEAD", "X"]), JSON, st.binary(max_size=60)
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_body_on_any_route_is_answered(replica: Replica, path: str, method: str, body: Any, tail: bytes) -> None:
    path = path.replace("{model}", "model").replace("{version}", "1")
    answer = replica.ask(method, path, json.dumps(body).encode() + tail, {HEADER_LENGTH: "5"} if tail else {})
    assert answer.status in (200, 400, 404, 405)
    if answer.status != 200 and method != "HEAD":
        assert "error" in answer.json()


def test_the_document_describes_every_route_and_nothing_else(replica: Replica) -> None:
    document = replica.get("/openapi.json").json()
    described = {path: {method.upper() for method in operations} for path, operations in document["paths"].items()}
    assert described == {path: {method} for path, (method, _) in ROUTES.items()}
    names = [operation["operationId"] for operations in document["paths"].values() for operation in operations.values()]
    assert len(set(names)) == len(names)
