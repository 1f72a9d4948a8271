"""Parses heads and bodies of HTTP/1.1 (RFC 9112) strictly: what two servers could interpret differently is refused."""

import re
from dataclasses import dataclass
from http import HTTPStatus

from fairlead.gateway.byte_stream import ByteStream, ConnectionLost

LONGEST_HEAD = 32 * 1024
LONGEST_RESPONSE_HEAD = 64 * 1024
LONGEST_TARGET = 8 * 1024
MOST_FIELDS = 128
CHUNKED = -1
UNTIL_CLOSE = -2
"""Lengths of bodies that are not known in advance."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_VALUE = rb"[^\x00-\x08\x0a-\x1f\x7f]"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])\r\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: (" + _VALUE + rb"*))?\r\n")
_FIELDS = re.compile(rb"(?:" + _TOKEN + rb"++:" + _VALUE + rb"*+\r\n)*+\r\n")
_FIELD = re.compile(rb"(" + _TOKEN + rb"+):(" + _VALUE + rb"*)\r\n")
_HOST = re.compile(rb"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,13})[ \t]*(?:;" + _VALUE + rb"*)?\r\n")
_LONGEST_CHUNK_LINE = 1024
_ESCAPED = re.compile(rb"%(2[eEfF]|5[cC])")
_UNESCAPED = {b"%2e": b".", b"%2f": b"/", b"%5c": b"/"}

HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
"""Hop-by-hop fields (RFC 9110, 7.6.1)."""

_NONE: frozenset[bytes] = frozenset()

Field = tuple[bytes, bytes, bytes]
"""Name in lower case, name as received, value."""


class HttpError(Exception):
    """A request that the gateway itself answers with this status and text.

    Attributes:
        retry_after_s: Whole seconds after which the client may retry, or None.
    """

    def __init__(self, status: int, text: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after_s = retry_after_s


class Malformed(Exception):
    """A message that is not valid HTTP/1.1."""


@dataclass(slots=True)
class RequestHead:
    """The head of a request.

    Attributes:
        path: Target without its query, beginning with a slash; `query` begins with its question mark or is empty.
        host: Requested host name, in lower case without port; empty for HTTP/1.0 without one.
        length: Bytes of the body, or CHUNKED.
        upgrade: `websocket`, if the connection is to become one; else empty. RFC 9110, 7.8, has a server ignore all
            that it does not know, `Upgrade` without its name in `Connection`, and that of HTTP/1.0; a body would have
            two readers.
    """

    method: bytes
    path: bytes
    query: bytes
    minor: int
    host: bytes
    fields: list[Field]
    single: dict[bytes, bytes]
    hops: frozenset[bytes]
    length: int
    keep_alive: bool
    upgrade: bytes


@dataclass(slots=True)
class ResponseHead:
    """The head of a replica's response; `length` is the bytes of the body, CHUNKED or UNTIL_CLOSE."""

    status: int
    reason: bytes
    fields: list[Field]
    hops: frozenset[bytes]
    length: int
    keep_alive: bool


def read_request(head: bytes) -> RequestHead:
    """Parse the head of a request, up to and including its empty line.

    Raises:
        HttpError: The head is malformed or ambiguous; the connection cannot be used any further.
    """
    line = _REQUEST_LINE.match(head)
    if line is None:
        raise HttpError(400, "the request line is not METHOD TARGET HTTP/1.1")
    method, target, minor = line[1], line[2], int(line[3])
    if len(target) > LONGEST_TARGET:
        raise HttpError(414, f"the target is longer than {LONGEST_TARGET} bytes")
    if _FIELDS.fullmatch(head, line.end()) is None:
        raise HttpError(400, "a header field is not NAME: VALUE, with a line end of CR LF")
    fields: list[Field] = []
    single: dict[bytes, bytes] = {}
    for name, value in _FIELD.findall(head, line.end()):
        low = name.lower()
        if b"_" in low:
            continue  # some servers treat it as the same name with a dash, which the gateway sets or checks
        value = value.strip(b" \t")
        if low in single:
            if low in (b"host", b"content-length", b"transfer-encoding"):
                raise HttpError(400, f"the header {name.decode()} is given twice")
        else:
            single[low] = value
        fields.append((low, name, value))
    if len(fields) > MOST_FIELDS:
        raise HttpError(431, f"there are {len(fields)} header fields; at most {MOST_FIELDS} are taken")
    host = _host(single.get(b"host"), minor)
    path, query = _path_of(method, target, single.get(b"host", b""))
    named, keep_alive = _connection(fields, single, minor)
    length = _request_length(single, minor)
    upgrade = single.get(b"upgrade", b"").lower() if b"upgrade" in named and minor == 1 and length == 0 else b""
    if upgrade != b"websocket":
        upgrade = b""
    hops = HOP_BY_HOP | named if named else HOP_BY_HOP
    return RequestHead(method, path, query, minor, host, fields, single, hops, length, keep_alive, upgrade)


def read_response(head: bytes, *, method: bytes) -> ResponseHead:
    """Parse the head of a replica's response to a request of this method.

    Raises:
        Malformed: The head is invalid.
    """
    line = _STATUS_LINE.match(head)
    if line is None or _FIELDS.fullmatch(head, line.end()) is None:
        raise Malformed("the replica's answer does not begin as HTTP/1.1 does")
    minor, status = int(line[1]), int(line[2])
    fields: list[Field] = []
    single: dict[bytes, bytes] = {}
    for name, value in _FIELD.findall(head, line.end()):
        low = name.lower()
        value = value.strip(b" \t")
        if low in (b"content-length", b"transfer-encoding") and single.get(low, value) != value:
            raise Malformed(f"the replica gives {name.decode()} twice, with different values")
        single[low] = value
        fields.append((low, name, value))
    named, keep_alive = _connection(fields, single, minor)
    hops = HOP_BY_HOP | named if named else HOP_BY_HOP
    if method == b"HEAD" or status in (204, 304) or status < 200:
        length = 0
    elif (coding := single.get(b"transfer-encoding")) is not None:
        if coding.lower() != b"chunked":
            raise Malformed(f"the replica answers with Transfer-Encoding {coding.decode('latin-1')}; chunked is known")
        length = CHUNKED
    elif (content_length := single.get(b"content-length")) is not None:
        if _LENGTH.fullmatch(content_length) is None:
            raise Malformed(f"the replica answers with Content-Length {content_length.decode('latin-1')}")
        length = int(content_length)
    else:
        length = UNTIL_CLOSE
        keep_alive = False
    return ResponseHead(status, line[3] or b"", fields, hops, length, keep_alive)


class Body:
    """The body after a head, read in pieces as they arrive; extensions and trailers of chunks are dropped."""

    __slots__ = ("_in_chunk", "_left", "_stream", "_trailer", "done", "length", "read")

    def __init__(self, stream: ByteStream, length: int) -> None:
        self._stream = stream
        self.length = length
        self._left = length if length >= 0 else 0
        self._in_chunk = False  # of a chunked body: the line end of the current chunk has not been read
        self._trailer: int | None = None  # bytes of trailer lines so far, once the trailer has begun
        self.done = length == 0
        self.read = 0

    def available(self) -> bytes:
        """Take the available bytes without waiting; may be empty before the end.

        Raises:
            Malformed: The chunks are invalid.
        """
        if self.length == CHUNKED:
            return self._chunks()
        if self.length == UNTIL_CLOSE:
            piece = self._stream.take(len(self._stream.buffer))
        else:
            piece = self._stream.take(self._left)
            self._left -= len(piece)
            self.done = self._left == 0
        self.read += len(piece)
        return piece

    async def piece(self) -> bytes:
        """Return the next bytes; empty at the end.

        Raises:
            ConnectionLost: The connection ended before the body did.
            Malformed: The chunks are invalid.
        """
        while not self.done:
            piece = self.available()
            if piece or self.done:
                return piece
            if not await self._stream.more():
                if self.length == UNTIL_CLOSE and not self._stream.lost:
                    self.done = True
                    return b""
                raise ConnectionLost
        return b""

    def _chunks(self) -> bytes:
        buffer = self._stream.buffer
        pieces: list[bytes] = []
        while not self.done:
            if self._left:
                piece = self._stream.take(self._left)
                if not piece:
                    break
                self._left -= len(piece)
                self.read += len(piece)
                pieces.append(piece)
                self._in_chunk = True
                continue
            if self._in_chunk:
                if len(buffer) < 2:
                    break
                if self._stream.take(2) != b"\r\n":
                    raise Malformed("a chunk does not end where it says")
                self._in_chunk = False
                continue
            end = buffer.find(b"\n")
            if end < 0:
                if len(buffer) > _LONGEST_CHUNK_LINE:
                    raise Malformed("a chunk's first line is too long")
                break
            line = self._stream.take(end + 1)
            if self._trailer is None:
                size_line = _CHUNK.fullmatch(line)
                if size_line is None or len(line) > _LONGEST_CHUNK_LINE:
                    raise Malformed("a chunk does not begin with its size in hexadecimal digits and CR LF")
                self._left = int(size_line[1], 16)
                if self._left == 0:
                    self._trailer = 0
            elif line == b"\r\n":
                self.done = True
            else:
                self._trailer += len(line)
                if self._trailer > LONGEST_HEAD or _FIELD.fullmatch(line) is None:
                    raise Malformed("what follows the last chunk is not a header field, or too much")
        return b"".join(pieces)


def chunk(piece: bytes) -> bytes:
    """Encode bytes as a chunk; empty bytes become the last chunk."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def phrase(status: int) -> bytes:
    """Return the reason phrase of a status."""
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Status"


def _host(header: bytes | None, minor: int) -> bytes:
    if header is None:
        if minor == 1:
            raise HttpError(400, "the header Host is missing")
        return b""
    match = _HOST.fullmatch(header)
    if match is None:
        raise HttpError(400, "the header Host is not NAME or NAME:PORT")
    return match[1].lower().rstrip(b".")


def _path_of(method: bytes, target: bytes, host: bytes) -> tuple[bytes, bytes]:
    """Return path and query of a target in origin-form, or in absolute-form if it names the host of the header."""
    if method == b"CONNECT":
        raise HttpError(405, "CONNECT is not served: this is no forward proxy")
    if not target.startswith(b"/"):
        scheme, separator, rest = target.partition(b"://")
        authority, slash, path = rest.partition(b"/")
        if not separator or scheme.lower() not in (b"http", b"https") or authority.lower() != host.lower():
            raise HttpError(400, "the target has to be a path, or the address of the host that the header Host names")
        target = slash + path or b"/"
    path, mark, query = target.partition(b"?")
    if b"#" in target:
        raise HttpError(400, "the target has a fragment, which is never sent")
    plain = path
    if b"%" in path or b"\\" in path:
        plain = _ESCAPED.sub(lambda escape: _UNESCAPED[escape[0].lower()], path).replace(b"\\", b"/")
    if b"." in plain and any(part in (b".", b"..") for part in plain.split(b"/")):
        raise HttpError(400, "the path has a segment . or ..")
    return path, mark + query


def _connection(fields: list[Field], single: dict[bytes, bytes], minor: int) -> tuple[frozenset[bytes], bool]:
    """Return the names that `Connection` lists, and whether the connection may be used again."""
    if b"connection" not in single:
        return _NONE, minor == 1
    named = frozenset(
        word.strip(b" \t").lower() for low, _, value in fields if low == b"connection" for word in value.split(b",")
    )
    keep_alive = b"close" not in named and (minor == 1 or b"keep-alive" in named)
    return named, keep_alive


def _request_length(single: dict[bytes, bytes], minor: int) -> int:
    content_length, coding = single.get(b"content-length"), single.get(b"transfer-encoding")
    if coding is not None:
        if content_length is not None:
            raise HttpError(400, "Content-Length and Transfer-Encoding are both given")
        if minor == 0 or coding.lower() != b"chunked":
            raise HttpError(400, "Transfer-Encoding has to be chunked, and HTTP/1.1")
        return CHUNKED
    if content_length is None:
        return 0
    if _LENGTH.fullmatch(content_length) is None:
        raise HttpError(400, "Content-Length is not a whole number of bytes")
    return int(content_length)
