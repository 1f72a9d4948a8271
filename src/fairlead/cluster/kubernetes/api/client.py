"""Sends requests to an API server: retried if that is safe, limited in rate and time, with typed errors.

An object is the ``dict`` parsed from its JSON; this module does not interpret it. Thread-safe. Every error is a
``ClusterError`` that names the request.

See decision 8.
"""

import json
import logging
import math
import re
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.pacing import RateLimiter, jittered
from fairlead.cluster.kubernetes.api.paging import JSON, TooLong, read_pages, too_long
from fairlead.cluster.kubernetes.api.shallow import loads, problem_of
from fairlead.cluster.kubernetes.api.transport import identity_headers, proxy_of_environment, tls_context
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.untrusted_json import parse_object, text

log = logging.getLogger(__name__)

Object = dict[str, Any]

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
MANAGER = "fairlead"
FIRST_BACKOFF_S, MOST_BACKOFF_S = 0.1, 5.0
MOST_REFUSAL_BYTES = 1 << 20
# Of a line of a log; a program may write without line breaks for as long as it runs.
MOST_LINE_BYTES = 64 << 10
RETRIED = frozenset({429, 500, 502, 503, 504})
BUSY = frozenset({429})
"""Statuses after which a request is sent again for a loop over many objects, which comes back to others itself."""
_SEGMENT = r"(?!\.\.?(?:/|$))[A-Za-z0-9._:~@-]+"
_PATH = re.compile(rf"(?:/{_SEGMENT})+|/")
_RESOURCES = re.compile(r"/(?:api|apis)/")
_SUBRESOURCES = "status|log|eviction|binding|exec|portforward|token|scale|finalize|proxy(?:/.+)?"
_RESOURCE = re.compile(
    rf"/(?:api/v1|apis/{_SEGMENT}(?:/{_SEGMENT})?)"
    rf"(?:/namespaces/{_SEGMENT})?(?:/{_SEGMENT}(?:/{_SEGMENT}(?:/(?:{_SUBRESOURCES}))?)?)?"
)
# The kernel detects dead peers after 15 + 3 x 5 s, even if no response is awaited.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]


class Unreachable(ClusterError):
    """No response arrived; a write may or may not have been executed."""


class ApiError(ClusterError):
    """The API server refused the request.

    Attributes:
        status: The HTTP status.
        reason: The server's reason code, such as ``AlreadyExists``.
        server_message: The server's own message.
        unsure: An earlier try of the same request got no response and may have been executed.
    """

    def __init__(self, what: str, status: int, reason: str, message: str, *, unsure: bool = False) -> None:
        super().__init__(f"{what}: {message} (HTTP {status} {reason})".rstrip())
        self.status = status
        self.reason = reason
        self.server_message = message
        self.unsure = unsure

    @property
    def concerns_all(self) -> bool:
        """Return whether other requests would be refused too: the account is unknown, or the server has no time."""
        return self.status in (401, 429)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a client.

    Attributes:
        per_second: Requests per second in the long run.
        burst: Requests at once after a pause.
        in_flight: Requests that may await a response at once.
        try_s: Seconds without a byte after which a try is abandoned.
        patience_s: Seconds after which a request is no longer retried.
    """

    per_second: float = 200.0
    burst: int = 2000
    in_flight: int = 150
    try_s: float = 15.0
    patience_s: float = 30.0


_LIMITS = Limits()


class Client:
    """A connection pool to one API server."""

    def __init__(self, access: ClusterAccess, limits: Limits = _LIMITS) -> None:
        self.access = access
        self.limits = limits
        self.num_requests = 0
        self._pace = RateLimiter(per_second=limits.per_second, burst=limits.burst)
        self._in_flight = threading.BoundedSemaphore(limits.in_flight)
        self._lock = threading.Lock()
        self._pool: tuple[object, str, urllib3.HTTPConnectionPool] | None = None

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            if self._pool is not None:
                self._pool[2].close()
                self._pool = None

    def get(self, path: str, query: Mapping[str, str] | None = None, *, patience_s: float | None = None) -> Object:
        """Return one object."""
        return self.request("GET", path, query=query, patience_s=patience_s)

    def text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        """Return a response that is not an object, such as a log; it is not retried."""
        deadline = time.monotonic() + self.limits.try_s
        self._pace.wait()
        try:
            with self._in_flight:
                answer, content = self._send("GET", path, query, None, "", deadline)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable("GET", path, error) from error
        if answer.status >= 300:
            raise _refusal(f"GET {path}", answer.status, content)
        return content.decode(errors="replace")

    def pages(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[Object]:
        """Yield the pages of a list, each with its ``items`` and ``metadata``, as ``paging.read_pages`` does."""
        return read_pages(self, path, query or {})

    def page(self, path: str, query: Mapping[str, str], *, most_bytes: int, accept: str = JSON) -> tuple[Object, int]:
        """Return a page of a list, and its length in bytes.

        Raises:
            TooLong: It is longer than ``most_bytes``, and was not read to its end.
        """
        content = self._request("GET", path, query=query, most_bytes=most_bytes, accept=accept)
        return _decoded(content, "GET", path), len(content)

    def items(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[Object]:
        """Yield the objects of a list, fetched in pages, without those that are too long."""
        for page in self.pages(path, query):
            for content in page.pop("items", None) or ():
                if problem_of(content) == too_long():
                    about = content["metadata"]
                    log.warning(
                        "%s: %s/%s is left out: %s", path, about.get("namespace"), about.get("name"), too_long()
                    )
                    continue
                yield content

    def create(
        self, path: str, body: Object, query: Mapping[str, str] | None = None, *, patience_s: float | None = None
    ) -> Object:
        """Create an object; ``path`` is that of its list."""
        return self.request("POST", path, body, query={"fieldManager": MANAGER, **(query or {})}, patience_s=patience_s)

    def replace(self, path: str, body: Object) -> Object:
        """Replace an object, guarded by the resourceVersion in it."""
        return self.request("PUT", path, body, query={"fieldManager": MANAGER})

    def apply(
        self, path: str, body: Object, *, force: bool = True, manager: str = MANAGER, retried: Collection[int] = RETRIED
    ) -> Object:
        """Apply server-side: the manager owns the fields in the body and sets them."""
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        return self.request("PATCH", path, body, query=query, content_type=APPLY, retried=retried)

    def merge(self, path: str, body: Object) -> Object:
        """Send a JSON merge patch."""
        return self.request("PATCH", path, body, query={"fieldManager": MANAGER}, content_type=MERGE)

    def delete(self, path: str, body: Object | None = None) -> Object:
        """Delete an object; ``body`` are DeleteOptions."""
        return self.request("DELETE", path, body)

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        patience_s: float | None = None,
        retried: Collection[int] = RETRIED,
    ) -> Object:
        """Send a request, and retry while the server is busy or unreachable.

        Every request that is sent here may be repeated: creations have a name, other writes are guarded or idempotent.
        If a try got no response, a later 409 or 404 has ``unsure`` set.

        Args:
            retried: The statuses after which it is sent again.

        Raises:
            ApiError: The server refused the request.
            Unreachable: No response arrived in time.
        """
        content = self._request(
            method, path, body, query=query, content_type=content_type, patience_s=patience_s, retried=retried
        )
        return _decoded(content, method, path)

    def _request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        patience_s: float | None = None,
        retried: Collection[int] = RETRIED,
        most_bytes: int | None = None,
        accept: str = JSON,
    ) -> bytes:
        """Send a request as ``request`` does, and return the body of the answer.

        Args:
            most_bytes: The longest body that is read; None for any.
        """
        deadline = time.monotonic() + (self.limits.patience_s if patience_s is None else patience_s)
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        backoff_s, unsure, rejected = FIRST_BACKOFF_S, False, False
        while True:
            self._pace.wait()
            asked_to_wait_s: float | None = None
            try:
                with self._in_flight:
                    answer, content = self._send(
                        method, path, query, data, content_type, deadline, most_bytes=most_bytes, accept=accept
                    )
            except (urllib3.exceptions.HTTPError, OSError) as error:
                trouble: ClusterError = self._unreachable(method, path, error)
                unsure = unsure or not _never_sent(error)
            else:
                if answer.status < 300:
                    return content
                trouble = refusal = _refusal(f"{method} {path}", answer.status, content, unsure=unsure)
                if answer.status == 401 and not rejected:
                    rejected = True
                    if self.access.credentials.reject():
                        continue
                if answer.status not in retried or refusal.reason == "AlreadyExists":
                    raise trouble
                unsure = unsure or answer.status not in (429, 503)
                asked_to_wait_s = _seconds(answer.headers.get("Retry-After"))
            wait_s = jittered(backoff_s) if asked_to_wait_s is None else asked_to_wait_s
            if time.monotonic() + wait_s > deadline:
                raise trouble
            time.sleep(wait_s)
            backoff_s = min(2 * backoff_s, MOST_BACKOFF_S)

    @contextmanager
    def stream(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        idle_s: float,
        most_line_bytes: int = MOST_LINE_BYTES,
        most_bytes: float = math.inf,
    ) -> Iterator["ResponseStream"]:
        """Open an endless response, read line by line; it breaks if no byte arrives for ``idle_s`` seconds.

        Args:
            most_line_bytes: The bytes of a line that are kept; the line says how many were cut.
            most_bytes: The bytes after which the response is not read any further.

        Raises:
            ApiError, Unreachable: The stream could not be opened.
        """
        self._pace.wait()
        timeout = urllib3.Timeout(connect=self.limits.try_s, read=idle_s)
        try:
            answer = self._open("GET", path, query, None, "", timeout, preload=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable("GET", path, error) from error
        stream = ResponseStream(answer, path, most_line_bytes, most_bytes)
        try:
            if answer.status >= 300:
                raise _refusal(f"GET {path}", answer.status, stream.rest())
            yield stream
        finally:
            stream.close()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        deadline: float,
        *,
        most_bytes: int | None = None,
        accept: str = JSON,
    ) -> tuple[urllib3.BaseHTTPResponse, bytes]:
        left_s = max(0.1, deadline - time.monotonic())
        timeout = urllib3.Timeout(connect=min(self.limits.try_s, left_s), read=min(self.limits.try_s, left_s))
        if most_bytes is None:
            answer = self._open(method, path, query, data, content_type, timeout, preload=True, accept=accept)
            return answer, answer.data
        answer = self._open(method, path, query, data, content_type, timeout, preload=False, accept=accept)
        content = answer.read(most_bytes + 1)
        if len(content) > most_bytes:
            answer.close()
            raise TooLong(f"the answer to {method} {path} has more than {most_bytes} bytes")
        answer.release_conn()
        return answer, content

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        timeout: urllib3.Timeout,
        *,
        preload: bool,
        accept: str = JSON,
    ) -> urllib3.BaseHTTPResponse:
        check_path(method, path)
        self.num_requests += 1
        headers = urllib3.HTTPHeaderDict({"Accept": accept, "User-Agent": "fairlead"})
        if data is not None:
            headers["Content-Type"] = content_type
        for name, value in identity_headers(self.access):
            headers.add(name, value)
        place, connections = self._connections()
        target = f"{place}{path}" + (f"?{urlencode(query)}" if query else "")
        return connections.urlopen(
            method, target, body=data, headers=headers, timeout=timeout, retries=False, redirect=False,
            assert_same_host=False, preload_content=preload,
        )  # fmt: skip

    def _connections(self) -> tuple[str, urllib3.HTTPConnectionPool]:
        """Return the prefix of paths and the pool, which is new if the client's certificate was renewed.

        Finding the pool of a URL takes a quarter of a request's total CPU time, so it is done once.
        """
        certificate, server = self.access.certificate or self.access.credentials.certificate(), self.access.server
        with self._lock:
            if self._pool is None or self._pool[0] != (server, certificate):
                manager = _pool(self.access, certificate, self.limits.in_flight)
                # A proxy for unencrypted requests needs the server in each request.
                is_told = isinstance(manager, urllib3.ProxyManager) and server.startswith("http:")
                place = server if is_told else urlsplit(server).path.rstrip("/")
                self._pool = ((server, certificate), place, manager.connection_from_url(server))
            return self._pool[1:]

    def _unreachable(self, method: str, path: str, error: Exception) -> Unreachable:
        reason = getattr(error, "reason", None) or error
        return Unreachable(
            f"{self.access.server} does not answer ({method} {path}: {_plain(reason)}). Is the cluster up, is context "
            f"{self.access.context!r} the right one, and does a VPN or proxy stand between?"
        )


class ResponseStream:
    """Lines of an endless response; ``close`` from another thread ends it.

    Attributes:
        is_cut: It was not read to its end, as it is longer than is read.
    """

    def __init__(
        self,
        answer: urllib3.BaseHTTPResponse,
        path: str,
        most_line_bytes: int = MOST_LINE_BYTES,
        most_bytes: float = math.inf,
    ) -> None:
        self.is_cut = False
        self._most_bytes = most_bytes
        self._answer = answer
        self._path = path
        self._most_line_bytes = most_line_bytes

    def __iter__(self) -> Iterator[bytes]:
        """Yield complete lines until the server ends the response.

        Raises:
            Unreachable: The connection broke, or was silent for too long.
        """
        line, num_bytes = _Line(self._most_line_bytes), 0
        try:
            for chunk in self._answer.stream(65_536):
                *ended, rest = chunk.split(b"\n")
                for part in ended:
                    line.add(part)
                    whole = line.take()
                    if whole:
                        yield whole
                line.add(rest)
                num_bytes += len(chunk)
                if num_bytes > self._most_bytes:
                    self.is_cut = True
                    if whole := line.take():
                        yield whole
                    return
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            # AttributeError and ValueError: the connection was closed under a reader, by ``close``.
            raise Unreachable(f"the stream of {self._path} broke: {_plain(error)}") from error

    def rest(self) -> bytes:
        """Return the rest of a short response."""
        try:
            return bytes(self._answer.read() or b"")
        except (urllib3.exceptions.HTTPError, OSError):
            return b""

    def close(self) -> None:
        """Close the stream; a reader that waits in another thread is woken."""
        connection = getattr(self._answer, "connection", None)
        raw = getattr(connection, "sock", None)
        if raw is not None:
            with suppress(OSError):  # it was already closed
                raw.shutdown(socket.SHUT_RDWR)
        with suppress(ValueError, AttributeError):  # the woken reader closes it at the same moment
            self._answer.close()


class _Line:
    """A line that arrives in parts, of which no more is kept than so many bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._parts: list[bytes] = []
        self._size = self._num_cut = 0

    def add(self, part: bytes) -> None:
        piece = part[: self._most_bytes - self._size]
        self._num_cut += len(part) - len(piece)
        if piece:
            self._parts.append(piece)
            self._size += len(piece)

    def take(self) -> bytes:
        """Return the line, and begin the next one."""
        line = b"".join(self._parts)
        if self._num_cut:
            line += f" ... ({self._num_cut} more bytes of this line were cut)".encode()
        self._parts.clear()
        self._size = self._num_cut = 0
        return line


def _pool(access: ClusterAccess, certificate: tuple[bytes, bytes] | None, size: int) -> urllib3.PoolManager:
    context = tls_context(access, certificate) if access.server.startswith("https:") else None
    more: dict[str, Any] = {"maxsize": size + 8, "block": False, "socket_options": _KEEPALIVE}
    if context is not None:
        more |= {"ssl_context": context}
        if access.tls_server_name:
            more |= {"server_hostname": access.tls_server_name, "assert_hostname": access.tls_server_name}
        if not access.verify:
            more |= {"cert_reqs": "CERT_NONE", "assert_hostname": False}
    proxy = access.proxy or proxy_of_environment(access.server)
    if proxy is None:
        return urllib3.PoolManager(**more)
    if proxy.startswith("socks"):
        raise ClusterError(
            f"Context {access.context!r} goes through {proxy}; SOCKS proxies are not supported. "
            "Give an HTTP proxy in `proxy-url`, or open a tunnel and point `server` at it."
        )
    return urllib3.ProxyManager(proxy, **more)


def check_path(method: str, path: str) -> None:
    """Refuse a path that leads elsewhere than it was built for, since a name in it is none of an object.

    Names come from other objects too, such as owners, which the API server does not check.

    Raises:
        ApiError: As of an API server that has no such object.
    """
    if _PATH.fullmatch(path) is None or (_RESOURCES.match(path) and not _RESOURCE.fullmatch(path)):
        raise ApiError(f"{method} {path[:200]}", 404, "NotFound", "there can be no object of that name")


def _never_sent(error: Exception) -> bool:
    """Return whether the request cannot have reached the server."""
    return isinstance(error, (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError))


def _decoded(content: bytes, method: str, path: str) -> Object:
    try:
        parsed: Object = loads(content) if content else {}
    except ValueError as error:
        raise Unreachable(f"the answer to {method} {path} is not JSON; is a proxy or portal in between?") from error
    return parsed


def _refusal(what: str, status: int, content: bytes, *, unsure: bool = False) -> ApiError:
    try:
        refusal = parse_object(content, max_bytes=MOST_REFUSAL_BYTES)
        reason, message = text(refusal.get("reason")) or "", text(refusal.get("message")) or ""
        return ApiError(what, status, reason, message, unsure=unsure)
    except ValueError:
        return ApiError(what, status, "", content[:300].decode(errors="replace").strip(), unsure=unsure)


def _seconds(value: str | None) -> float | None:
    """Return the seconds of a ``Retry-After`` header; API servers do not send dates in it."""
    return float(value) if value is not None and value.strip().isdigit() else None


def _plain(error: object) -> str:
    text = str(error)
    return text.partition("): ")[2] or text or type(error).__name__
