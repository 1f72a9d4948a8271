"""Serializes heads: a request for a replica, a response for the client, an error response."""

import json
import random
import re
from dataclasses import replace

from fairlead.gateway.access import KEY_FIELDS
from fairlead.gateway.messages import CHUNKED, HttpError, RequestHead, ResponseHead, phrase

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_NAMES = re.compile(rb"[A-Za-z0-9-]+(?:[ \t]*,[ \t]*[A-Za-z0-9-]+){0,63}")
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_OURS = frozenset(
    (b"content-length", b"expect", b"x-request-id", b"traceparent", b"x-forwarded-for", b"x-forwarded-host",
     b"x-forwarded-proto", b"x-forwarded-prefix", b"x-fairlead-shadow")
)  # fmt: skip
_OURS_AND_KEYS = _OURS | frozenset(KEY_FIELDS)
_CODING = frozenset((b"accept-encoding",))
_OF_RESPONSE = frozenset((b"content-length", b"x-request-id"))


def request_id_of(request: RequestHead) -> bytes:
    """Return the client's X-Request-Id if it is valid, else a new one."""
    client_id = request.single.get(b"x-request-id", b"")
    return client_id if _REQUEST_ID.fullmatch(client_id) else b"%032x" % random.getrandbits(128)


def undo_proxy(request: RequestHead) -> RequestHead:
    """Undo a proxy's rewriting of a request: restore the path, and list the client's address only once."""
    prefix = request.single.get(b"x-forwarded-prefix", b"")
    before, _, _ = _forwarded_for(request).rpartition(b", ")
    fields = [field for field in request.fields if field[0] != b"x-forwarded-for"]
    if before:
        fields.append((b"x-forwarded-for", b"X-Forwarded-For", before))
    return replace(request, path=prefix + request.path, fields=fields)


def _forwarded_for(request: RequestHead) -> bytes:
    """Return the addresses of all lines of X-Forwarded-For, of which a proxy may have added one; empty without any."""
    if b"x-forwarded-for" not in request.single:
        return b""
    return b", ".join(value for low, _, value in request.fields if low == b"x-forwarded-for" and value)


def request_head(
    request: RequestHead,
    *,
    path: bytes,
    prefix: bytes,
    remote: bytes,
    request_id: bytes,
    keyed: bool,
    backend: bytes,
    trusted: bool,
    metered: bool = False,
) -> bytes:
    """Return the head for a replica without its last fields, those of the body, and the empty line.

    Args:
        path: Path as the replica expects it, without `prefix`.
        remote: The client's address.
        keyed: The gateway consumes the fields that carry keys and does not forward them.
        backend: Host and port, for an HTTP/1.0 client that names no host.
        trusted: The client is a proxy whose X-Forwarded-Host and -Proto are those of its own client.
        metered: The tokens of the response are counted, so it must not be compressed.
    """
    single, hops = request.single, request.hops
    ours = _OURS_AND_KEYS if keyed else _OURS
    if metered:
        ours |= _CODING
    lines = [b"%b %b%b HTTP/1.1\r\n" % (request.method, path, request.query)]
    traced = _TRACEPARENT.fullmatch(single.get(b"traceparent", b"")) is not None
    for low, name, value in request.fields:
        if low in ours or (low in hops and low != b"host") or (low == b"tracestate" and not traced):
            continue
        lines.append(b"%b: %b\r\n" % (name, value))
    host = single.get(b"host")
    if host is None:
        host = backend
        lines.append(b"Host: %b\r\n" % backend)
    if traced:
        lines.append(b"traceparent: %b\r\n" % single[b"traceparent"])
    else:
        lines.append(b"traceparent: 00-%032x-%016x-01\r\n" % (random.getrandbits(128) | 1, random.getrandbits(64) | 1))
    via = _forwarded_for(request)
    lines.append(
        b"X-Request-Id: %b\r\nX-Forwarded-For: %b\r\nX-Forwarded-Host: %b\r\nX-Forwarded-Proto: %b\r\n"
        % (
            request_id,
            b"%b, %b" % (via, remote) if via else remote,
            single.get(b"x-forwarded-host", host) if trusted else host,
            single.get(b"x-forwarded-proto", b"http") if trusted else b"http",
        )
    )
    if prefix:
        lines.append(b"X-Forwarded-Prefix: %b\r\n" % prefix)
    if request.upgrade:
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
    return b"".join(lines)


def framing(request: RequestHead, length: int) -> bytes:
    """Return the last fields of a forwarded head, which give the length of the body; chunks of one read whole are gone.

    Args:
        length: Bytes of the body, or CHUNKED.
    """
    if length == CHUNKED:
        return b"Transfer-Encoding: chunked\r\n\r\n"
    if length or request.length == CHUNKED or b"content-length" in request.single:
        return b"Content-Length: %d\r\n\r\n" % length
    return b"\r\n"


def is_preflight(request: RequestHead) -> bool:
    """Return whether a browser asks here whether a page of another origin may send a request (Fetch standard, CORS)."""
    return (
        request.method == b"OPTIONS"
        and b"origin" in request.single
        and b"access-control-request-method" in request.single
    )


def preflight(request: RequestHead, *, request_id: bytes, keep_alive: bool) -> bytes:
    """Return the answer that allows a request of an allowed origin, with the fields that its page wants to send."""
    fields = request.single.get(b"access-control-request-headers", b"")
    return b"HTTP/1.1 204 No Content\r\n%b%b%bAccess-Control-Max-Age: 600\r\nX-Request-Id: %b\r\n%b\r\n" % (
        cors_fields(request),
        b"Access-Control-Allow-Methods: GET, HEAD, POST, PUT, PATCH, DELETE\r\n",
        b"Access-Control-Allow-Headers: %b\r\n" % fields if _NAMES.fullmatch(fields) else b"",
        request_id,
        b"" if keep_alive else b"Connection: close\r\n",
    )


def cors_fields(request: RequestHead) -> bytes:
    """Return the fields by which a browser lets a page of the request's origin read the answer."""
    return (
        b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Expose-Headers: X-Request-Id, Retry-After\r\n"
        b"Vary: Origin\r\n" % request.single[b"origin"]
    )


def response_head(
    request: RequestHead,
    response: ResponseHead,
    *,
    request_id: bytes,
    keep_alive: bool,
    as_chunks: bool,
    cors: bytes = b"",
) -> bytes:
    """Return the head for the client. With `as_chunks` the body follows in chunks.

    Args:
        shared: Fields of the gateway for the origin of the request, which take the place of the replica's.
    """
    lines = [b"HTTP/1.1 %d %b\r\n" % (response.status, response.reason)]
    hops = response.hops
    length = None
    for low, name, value in response.fields:
        if low == b"content-length":
            length = value
        elif low not in hops and low not in _OF_RESPONSE and not (cors and low == b"access-control-allow-origin"):
            lines.append(b"%b: %b\r\n" % (name, value))
    lines.append(b"%bX-Request-Id: %b\r\n" % (cors, request_id))
    if response.status == 101:
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        return b"".join(lines)
    if as_chunks:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    elif response.length >= 0 and length is not None and response.status != 204:
        lines.append(b"Content-Length: %b\r\n" % length)
    if not keep_alive:
        lines.append(b"Connection: close\r\n")
    elif request.minor == 0:
        lines.append(b"Connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def error_response(
    refused: HttpError, *, request_id: bytes, keep_alive: bool, bodiless: bool = False, cors: bytes = b""
) -> bytes:
    """Return a complete error response of the gateway itself."""
    fields = {"error": refused.text, "request_id": request_id.decode()}
    return short_response(
        refused.status,
        json.dumps(fields).encode() + b"\n",
        request_id=request_id,
        keep_alive=keep_alive,
        bodiless=bodiless,
        more=(b"Retry-After: %d\r\n" % refused.retry_after_s if refused.retry_after_s is not None else b"")
        + (b"WWW-Authenticate: Bearer\r\n" if refused.status == 401 else b"")
        + cors,
    )


def short_response(
    status: int, body: bytes, *, request_id: bytes, keep_alive: bool, bodiless: bool = False, more: bytes = b"",
    content_type: bytes = b"application/json",
) -> bytes:  # fmt: skip
    """Return a complete response with a short body."""
    return b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%bX-Request-Id: %b\r\n%b\r\n%b" % (
        status,
        phrase(status),
        content_type,
        len(body),
        more,
        request_id,
        b"" if keep_alive else b"Connection: close\r\n",
        b"" if bodiless else body,
    )
