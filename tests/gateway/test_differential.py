"""Heads and bodies that h11 or llhttp reads too are read alike, and what neither would take is not taken.

Two readers of one request that disagree on where it ends let one request hide in another. h11 is strict by the RFC;
llhttp, by way of httptools, is what Node and many servers use.
"""

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st

from fairlead.gateway.byte_stream import ByteStream
from fairlead.gateway.messages import CHUNKED, Body, HttpError, Malformed, read_request
from tests.rounds import rounds

h11 = pytest.importorskip("h11")
httptools = pytest.importorskip("httptools")


class Message(NamedTuple):
    """A request as a reader understands it; the rest is what follows it, where the reader tells."""

    method: bytes
    target: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes
    is_whole: bool
    rest: bytes | None = None


def ours(data: bytes) -> Message | None:
    end = data.find(b"\r\n\r\n") + 4
    if end < 4:
        return None
    try:
        request = read_request(data[:end])
    except HttpError:
        return None

    async def read() -> tuple[bytes, bool, bytes]:
        wire = ByteStream(asyncio.get_running_loop())
        wire.buffer += data[end:]
        body = Body(wire, request.length)
        got = b"" if body.done else body.available()
        return got, body.done, bytes(wire.buffer)

    try:
        body, is_whole, rest = asyncio.run(read())
    except Malformed:
        return None
    fields = [(low, value) for low, _, value in request.fields]
    assert request.length == CHUNKED or len(body) <= request.length
    return Message(request.method, request.path + request.query, fields, body, is_whole, rest)


def by_h11(data: bytes) -> Message | None:
    connection = h11.Connection(h11.SERVER)
    head, body, is_whole = None, b"", False
    try:
        connection.receive_data(data)
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                is_whole = True
                break
            else:
                break
    except h11.RemoteProtocolError:
        return None
    if head is None:
        return None
    fields = [(name, value) for name, value in head.headers if b"_" not in name]
    return Message(head.method, head.target, fields, body, is_whole, connection.trailing_data[0])


class Callbacks:
    """Collects what httptools tells of the first message."""

    def __init__(self) -> None:
        self.method = self.target = self.body = b""
        self.parser = httptools.HttpRequestParser(self)
        self.fields: list[tuple[bytes, bytes]] = []
        self.has_head = self.is_whole = False

    def on_url(self, url: bytes) -> None:
        self.target += b"" if self.is_whole else url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head and b"_" not in name:
            self.fields.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if not self.has_head:
            self.method = self.parser.get_method()
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self.body += b"" if self.is_whole else body

    def on_message_complete(self) -> None:
        self.is_whole = True


def by_llhttp(data: bytes) -> Message | None:
    told = Callbacks()
    try:
        told.parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        return None
    except httptools.HttpParserError:
        if not told.is_whole:  # else it is of what follows
            return None
    if not told.has_head:
        return None
    return Message(told.method, told.target, told.fields, told.body, told.is_whole)


NAMES = st.sampled_from(
    b"Host Content-Length Transfer-Encoding content-length Connection X-A X_A Content_Length".split()
) | st.binary(min_size=1, max_size=3)
VALUES = st.sampled_from(
    [
        b"x",
        b"0",
        b"3",
        b"5",
        b"+3",
        b"3, 3",
        b"0x3",
        b"03",
        b"chunked",
        b"Chunked",
        b"identity",
        b"gzip, chunked",
        b"close",
        b"chunked, chunked",
        b"chunked\x0b",
        b'"chunked"',
        b"",
        b"a\tb",
        b"\xe9",
    ]
) | st.binary(max_size=4)
ENDS = st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r", b"\r\r\n", b" \r\n", b"\r\n ", b"\r\n\t"])
COLONS = st.sampled_from([b": "] * 8 + [b":", b" :", b":\t", b"\t: ", b": \x00", b"::"])
FIELD = st.tuples(NAMES, COLONS, VALUES, ENDS).map(b"".join)
LINES = st.sampled_from(
    [b"POST /m HTTP/1.1\r\n"] * 6
    + [b"GET /m?q HTTP/1.1\r\n", b"POST /m HTTP/1.0\r\n", b"POST /m HTTP/1.1\n", b"POST  /m HTTP/1.1\r\n"]
    + [b"POST /m HTTP/1.2\r\n", b"post /m HTTP/1.1\r\n", b"POST /m\t HTTP/1.1\r\n", b"POST /\xe9 HTTP/1.1\r\n"]
    + [b"POST http://x/m HTTP/1.1\r\n", b"\r\nPOST /m HTTP/1.1\r\n"]
)
FIELDS = st.lists(FIELD, max_size=4).map(b"".join)
HEAD = st.tuples(LINES, st.just(b"Host: x\r\n"), FIELDS, st.just(b"\r\n")).map(b"".join)

SIZES = st.sampled_from(
    [
        b"3",
        b"03",
        b"3;a=b",
        b"3 ",
        b"3 ;a",
        b" 3",
        b"+3",
        b"-3",
        b"0x3",
        b'3;"a"="\r"',
        b"A",
        b"a",
        b"3\t",
        b"3_",
        b"",
        b"0000000000000003",
        b"10000000000000003",
        b"3;a\x00",
        b"3;a\xff",
    ]
)
DATA = st.sampled_from([b"abc", b"abc", b"abcdefghij", b"ab", b""])
CHUNK = st.tuples(SIZES, ENDS, DATA, ENDS).map(b"".join)
ZEROS = st.sampled_from([b"0", b"0", b"00", b"0;a", b"-0", b"0 "])
TRAILERS = st.sampled_from([b"", b"", b"X-T: 1\r\n", b"bad\r\n"])
LAST = st.tuples(ZEROS, ENDS, TRAILERS, ENDS).map(b"".join)
NEXT = st.sampled_from([b"", b"GET / HTTP/1.1\r\n\r\n"])
BODY = st.tuples(st.lists(CHUNK, max_size=3).map(b"".join), LAST | st.just(b""), NEXT).map(b"".join)
CHUNKED_HEAD = b"POST /m HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
EXAMPLES = rounds(1, 20)
NUM_EXAMPLES = 300


def compare(data: bytes) -> None:
    """Fail if what we read is read otherwise by h11 or llhttp."""
    read = ours(data)
    if read is None:
        return
    for name, other in (("h11", by_h11(data)), ("llhttp", by_llhttp(data))):
        if other is None:
            continue
        target = (
            other.target
            if other.target.startswith(b"/")
            else b"/" + other.target.partition(b"://")[2].partition(b"/")[2]
        )
        assert (name, read.method, read.target, read.body, read.is_whole) == (
            name, other.method, target, other.body, other.is_whole,
        )  # fmt: skip
        assert (name, sorted(read.fields)) == (name, sorted(other.fields))
        if read.is_whole and other.rest is not None:
            assert (name, read.rest) == (name, other.rest)


@pytest.mark.parametrize("round_", EXAMPLES)
def test_heads_are_read_as_others_read_them(round_: int) -> None:
    @seed(round_)
    @settings(max_examples=NUM_EXAMPLES, deadline=None, database=None)
    @given(HEAD, st.sampled_from([b"", b"abc", b"abcde", b"3\r\nabc\r\n0\r\n\r\n"]), NEXT)
    def check(head: bytes, body: bytes, more: bytes) -> None:
        compare(head + body + more)

    check()


@pytest.mark.parametrize("round_", EXAMPLES)
def test_chunks_are_read_as_others_read_them(round_: int) -> None:
    @seed(round_)
    @settings(max_examples=NUM_EXAMPLES, deadline=None, database=None)
    @given(BODY)
    @example(b"3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n")
    @example(b"3\r\nabcGE0\r\n\r\n")
    def check(body: bytes) -> None:
        compare(CHUNKED_HEAD + body)

    check()


@pytest.mark.parametrize("round_", EXAMPLES)
def test_what_h11_refuses_is_refused(round_: int) -> None:
    """Ours may be stricter than h11, and is nowhere laxer."""

    @seed(round_)
    @settings(max_examples=NUM_EXAMPLES, deadline=None, database=None)
    @given(HEAD, BODY)
    def check(head: bytes, body: bytes) -> None:
        if ours(head + body) is not None:
            assert by_h11(head + body) is not None

    check()


def test_the_readers_differ_where_they_should() -> None:
    """So that a mistake in this file does not make all of them say nothing."""
    usual = CHUNKED_HEAD + b"3\r\nabc\r\n0\r\n\r\n"
    for reader in (ours, by_h11, by_llhttp):
        read = reader(usual)
        assert read is not None, reader
        assert (read.method, read.target, read.body, read.is_whole) == (b"POST", b"/m", b"abc", True)
    with pytest.raises(AssertionError):
        compare_with_a_mutant(usual)


def compare_with_a_mutant(data: bytes) -> None:
    read, other = ours(data), by_h11(data.replace(b"abc", b"abd"))
    assert read is not None
    assert other is not None
    assert read.body == other.body
