"""What two servers could understand differently is refused."""

import asyncio
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.gateway.byte_stream import ByteStream
from fairlead.gateway.messages import (
    CHUNKED,
    UNTIL_CLOSE,
    Body,
    HttpError,
    Malformed,
    chunk,
    read_request,
    read_response,
)

HOST = b"Host: x\r\n"


def head(*fields: bytes, line: bytes = b"POST /m HTTP/1.1") -> bytes:
    return b"".join(each + b"\r\n" for each in (line, b"Host: x", *fields, b""))


@pytest.mark.parametrize(
    ("told", "status", "why"),
    [
        (head(b"Content-Length: 3", b"Transfer-Encoding: chunked"), 400, "both given"),
        (head(b"Content-Length: 3", b"Content-Length: 3"), 400, "given twice"),
        (head(b"Content-Length: 3", b"content-length: 4"), 400, "given twice"),
        (head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 400, "given twice"),
        (head(b"Transfer-Encoding: chunked, identity"), 400, "has to be chunked"),
        (head(b"Transfer-Encoding: xchunked"), 400, "has to be chunked"),
        (head(b"Transfer-Encoding:\x0bchunked"), 400, "not NAME: VALUE"),
        (head(b"Transfer-Encoding : chunked"), 400, "not NAME: VALUE"),
        (head(b"Transfer-Encoding: chunked", line=b"POST /m HTTP/1.0"), 400, "and HTTP/1.1"),
        (head(b"Content-Length: +3"), 400, "whole number"),
        (head(b"Content-Length: 3, 3"), 400, "whole number"),
        (head(b"Content-Length: 0x3"), 400, "whole number"),
        (head(b"Content-Length:"), 400, "whole number"),
        (head(b"Content-Length: 9999999999999999"), 400, "whole number"),
        (head(b"A: b", b" c: d"), 400, "not NAME: VALUE"),
        (head(b"A: b\nTransfer-Encoding: chunked"), 400, "not NAME: VALUE"),
        (head(b"A: b\rc: d"), 400, "not NAME: VALUE"),
        (head(b"A: b\x00"), 400, "not NAME: VALUE"),
        (head(b": b"), 400, "not NAME: VALUE"),
        (head(b"Host: y"), 400, "given twice"),
        (b"GET /m HTTP/1.1\r\n\r\n", 400, "Host is missing"),
        (b"GET /m HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "Host is not"),
        (b"GET /m HTTP/1.1\r\nHost: a@b\r\n\r\n", 400, "Host is not"),
        (b"GET /m HTTP/1.1\r\nHost:\r\n\r\n", 400, "Host is not"),
        (head(line=b"GET /m HTTP/2.0"), 400, "request line"),
        (head(line=b"GET  /m HTTP/1.1"), 400, "request line"),
        (head(line=b"GET /m\x01 HTTP/1.1"), 400, "request line"),
        (head(line=b"GET /m\xe9 HTTP/1.1"), 400, "request line"),
        (head(line=b"GET /m"), 400, "request line"),
        (head(line=b"G@T /m HTTP/1.1"), 400, "request line"),
        (head(line=b"CONNECT x:80 HTTP/1.1"), 405, "CONNECT"),
        (head(line=b"OPTIONS * HTTP/1.1"), 400, "a path"),
        (head(line=b"GET m HTTP/1.1"), 400, "a path"),
        (head(line=b"GET http://y/m HTTP/1.1"), 400, "a path"),
        (head(line=b"GET ftp://x/m HTTP/1.1"), 400, "a path"),
        (head(line=b"GET /m#f HTTP/1.1"), 400, "fragment"),
        (head(line=b"GET /m/../n HTTP/1.1"), 400, "segment"),
        (head(line=b"GET /m/./n HTTP/1.1"), 400, "segment"),
        (head(line=b"GET /m/.. HTTP/1.1"), 400, "segment"),
        (head(line=b"GET /m/%2e%2E/n HTTP/1.1"), 400, "segment"),
        (head(line=b"GET /m/.%2e/n HTTP/1.1"), 400, "segment"),
        (head(line=b"GET /m%2f..%2Fn HTTP/1.1"), 400, "segment"),
        (head(line=b"GET /m\\..\\n HTTP/1.1"), 400, "segment"),
        (head(line=b"GET /m%5c..%5Cn HTTP/1.1"), 400, "segment"),
        (head(line=b"GET /" + b"m" * 9000 + b" HTTP/1.1"), 414, "longer than"),
        (head(*(b"A: b",) * 200), 431, "header fields"),
    ],
)
def test_a_head_that_could_be_misunderstood_is_refused(told: bytes, status: int, why: str) -> None:
    with pytest.raises(HttpError, match=why) as refused:
        read_request(told)
    assert refused.value.status == status


def test_the_address_of_the_very_host_is_a_path() -> None:
    request = read_request(head(line=b"GET http://X/m?q HTTP/1.1"))
    assert (request.path, request.query) == (b"/m", b"?q")


@pytest.mark.parametrize("path", [b"/m/a..b", b"/m/...", b"/m/.well-known", b"/m/%2e%2ea", b"/m/v1.0/x?../.."])
def test_dots_within_segments_and_queries_are_taken(path: bytes) -> None:
    request = read_request(head(line=b"GET " + path + b" HTTP/1.1"))
    assert request.path + request.query == path


def test_a_name_with_an_underscore_is_dropped() -> None:
    assert read_request(head(b"Content_Length: 3", b"X_Forwarded_For: a")).fields == [(b"host", b"Host", b"x")]


@pytest.mark.parametrize(
    ("fields", "line", "keep"),
    [
        ((), b"GET / HTTP/1.1", True),
        ((b"Connection: close",), b"GET / HTTP/1.1", False),
        ((b"Connection: X, Close",), b"GET / HTTP/1.1", False),
        ((), b"GET / HTTP/1.0", False),
        ((b"Connection: Keep-Alive",), b"GET / HTTP/1.0", True),
    ],
)
def test_a_connection_is_kept_as_its_client_says(fields: tuple[bytes, ...], line: bytes, keep: bool) -> None:
    assert read_request(head(*fields, line=line)).keep_alive is keep


@pytest.mark.parametrize(
    ("told", "method", "length"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"GET", 5),
        (b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\n", b"HEAD", 0),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b"GET", 0),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"GET", 0),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nContent-Length: 5\r\n\r\n", b"GET", CHUNKED),
        (b"HTTP/1.0 200 OK\r\n\r\n", b"GET", UNTIL_CLOSE),
    ],
)
def test_an_answer_says_how_long_its_body_is(told: bytes, method: bytes, length: int) -> None:
    assert read_response(told, method=method).length == length


def read_chunks(*pieces: bytes) -> tuple[bytes, bool, bytes]:
    """The body of what comes in these pieces, whether it is at its end, and what is left."""

    async def read() -> tuple[bytes, bool, bytes]:
        wire = ByteStream(asyncio.get_running_loop())
        body = Body(wire, CHUNKED)
        got = b""
        for piece in pieces:
            wire.buffer += piece
            got += body.available()
        return got, body.done, bytes(wire.buffer)

    return asyncio.run(read())


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=5),
    st.lists(st.integers(min_value=1, max_value=400), max_size=10),
)
def test_chunks_come_out_as_they_went_in_however_they_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(map(chunk, parts)) + chunk(b"") + b"NEXT"
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[start:end] for start, end in pairwise(edges)]
    assert read_chunks(*pieces) == (b"".join(parts), True, b"NEXT")


def test_extensions_and_trailers_of_chunks_are_dropped() -> None:
    assert read_chunks(b"2;a=b\r\nok\r\n0\r\nX-Trailer: 1\r\n\r\nNEXT") == (b"ok", True, b"NEXT")


@pytest.mark.parametrize(
    "told",
    [
        b"2\nok\r\n0\r\n\r\n",
        b"2\r\nokay\r\n",
        b"-2\r\nok\r\n",
        b"0x2\r\nok\r\n",
        b"\r\n",
        b"g\r\n",
        b" 2\r\nok\r\n",
        b"2;\x00\r\nok\r\n",
        b"ffffffffffffffff\r\n",
        b"1" * 2000,
        b"2;" + b"a" * 2000 + b"\r\n",
        b"0\r\nno field\r\n\r\n",
        b"0\r\n" + b"A: " + b"b" * 40_000 + b"\r\n",
    ],
)
def test_chunks_that_are_none_are_refused(told: bytes) -> None:
    with pytest.raises(Malformed):
        read_chunks(told)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(told: bytes) -> None:
    for made in (told + b"\r\n\r\n", b"GET / HTTP/1.1\r\n" + HOST + told + b"\r\n\r\n"):
        try:
            request = read_request(made)
        except HttpError:
            continue
        assert all(re.fullmatch(rb"[^\r\n\x00]*", value) for _, _, value in request.fields)
