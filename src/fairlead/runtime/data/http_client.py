"""A client of HTTP/1.1 for many small GET requests: one connection a thread, TLS, proxies, bounded answers.

It reads what stores send, 80 microseconds of CPU a request where the libraries need 260 to 2,800 (decision 211). What
it cannot do is refused: anything but GET and HEAD, and answers without a length or chunks.
"""

import base64
import os
import random
import socket
import ssl
import time
import urllib.request
from dataclasses import dataclass
from functools import cache
from urllib.parse import SplitResult, unquote, urlsplit

from fairlead.runtime.errors import StoreUnavailable

TIMEOUT_S = 30.0
TRIES = 5
MOST_HEAD = 65_536
MOST_BODY = 1 << 31
_LASTING = (ssl.SSLCertVerificationError, socket.gaierror, ConnectionRefusedError)
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(slots=True)
class Response:
    """An answer: its status, its headers by lower-case names, its body."""

    status: int
    headers: dict[str, str]
    body: bytes


class _Closed(ConnectionError):
    """The server ended a kept connection before it answered."""


class HttpConnection:
    """A kept connection to one server, for one thread."""

    def __init__(self, scheme: str, host: str, port: int) -> None:
        self._scheme = scheme
        self._host = host
        self._port = port
        self._proxy = _proxy(scheme, host)
        self._socket: socket.socket | None = None
        self.authority = host if port == _PORTS[scheme] else f"{host}:{port}"

    def request(self, method: str, target: str, headers: str) -> Response:
        """Return the answer to a request without a body, retried if the server is busy or gone.

        Args:
            target: Path and query, percent-encoded.
            headers: Further header lines, each ended by CR LF.

        Raises:
            StoreUnavailable: The server cannot be reached, or remains busy.
        """
        problem = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(min(5.0, 0.1 * 2**attempt) * (0.5 + random.random()))
            try:
                response = self._once(method, target, headers)
            except (OSError, ValueError) as error:
                self.close()
                problem = f"{self._scheme}://{self.authority} cannot be reached: {_message_of(error)}"
                if attempt and isinstance(error, _LASTING):
                    break
                continue
            if response.status not in RETRIED:
                return response
            problem = f"{self._scheme}://{self.authority} answers {response.status}"
        raise StoreUnavailable(problem)

    def rendered(self, method: str, target: str, headers: str) -> bytes:
        """Return a request without a body as it is sent."""
        path = target
        if self._proxy is not None and self._scheme == "http":
            path = f"http://{self.authority}{target}"
            if self._proxy.username:
                headers += f"Proxy-Authorization: {_basic(self._proxy)}\r\n"
        return f"{method} {path} HTTP/1.1\r\nHost: {self.authority}\r\n{headers}\r\n".encode("ascii")

    def open(self) -> socket.socket:
        """Return the open socket of a new connection.

        Raises:
            OSError: The server or the proxy cannot be reached.
        """
        self._socket = self._connect()
        return self._socket

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _once(self, method: str, target: str, headers: str) -> Response:
        data = self.rendered(method, target, headers)
        was_open = self._socket is not None
        try:
            return self._exchange(data, method)
        except (_Closed, BrokenPipeError, ConnectionResetError):
            self.close()
            if not was_open:
                raise
            return self._exchange(data, method)  # servers close idle connections at any time

    def _exchange(self, data: bytes, method: str) -> Response:
        if self._socket is None:
            self._socket = self._connect()
        link = self._socket
        link.sendall(data)
        head, rest = _read_head(link)
        response = read_head(head)
        headers = response.headers
        if method == "HEAD" or response.status in (204, 304):
            body = b""
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            body = _read_chunks(link, rest)
        elif "content-length" in headers:
            body = _read_exactly(link, rest, int(headers["content-length"]))
        else:
            raise ValueError("the answer has neither a length nor chunks")
        if headers.get("connection", "").lower() == "close":
            self.close()
        response.body = body
        return response

    def _connect(self) -> socket.socket:
        host, port = self._host, self._port
        if self._proxy is not None:
            host, port = self._proxy.hostname or "", self._proxy.port or 80
        link = socket.create_connection((host, port), TIMEOUT_S)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._scheme == "https":
                if self._proxy is not None:
                    self._tunnel(link)
                link = _context().wrap_socket(link, server_hostname=self._host)
        except BaseException:
            link.close()
            raise
        return link

    def _tunnel(self, link: socket.socket) -> None:
        assert self._proxy is not None
        goal = f"{self._host}:{self._port}"
        own = f"Proxy-Authorization: {_basic(self._proxy)}\r\n" if self._proxy.username else ""
        link.sendall(f"CONNECT {goal} HTTP/1.1\r\nHost: {goal}\r\n{own}\r\n".encode("ascii"))
        head, _ = _read_head(link)
        if head[9:12] != b"200":
            raise ConnectionError(f"the proxy answers {head[9:12].decode('latin-1')} to CONNECT")


_PORTS = {"http": 80, "https": 443}


def parts_of_url(url: str) -> tuple[str, str, int, str]:
    """Return scheme, host, port, and path with query, of an HTTP URL.

    Raises:
        ValueError: It has no host, or a port that is not a number.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is not an HTTP URL")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme], target


def read_head(head: bytes) -> Response:
    """Return an answer without its body.

    Raises:
        ValueError: It is no answer of HTTP/1.1.
    """
    lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Response(int(lines[0][9:12]), headers, b"")


def _proxy(scheme: str, host: str) -> SplitResult | None:
    address = urllib.request.getproxies_environment().get(scheme)
    if not address or urllib.request.proxy_bypass(host):
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


def _basic(proxy: SplitResult) -> str:
    pair = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


@cache
def _context() -> ssl.SSLContext:
    """Return the TLS settings: certificates of the system, and of ``AWS_CA_BUNDLE`` where it is set."""
    context = ssl.create_default_context()
    bundle = os.environ.get("AWS_CA_BUNDLE")
    if bundle:
        context.load_verify_locations(bundle)
    return context


def _read_head(link: socket.socket) -> tuple[bytes, bytes]:
    data = link.recv(65_536)
    if not data:
        raise _Closed("the connection was closed")
    while (end := data.find(b"\r\n\r\n")) < 0:
        if len(data) > MOST_HEAD:
            raise ValueError("the answer's headers are too long")
        more = link.recv(65_536)
        if not more:
            raise ConnectionError("the connection was closed within an answer")
        data += more
    return data[:end], data[end + 4 :]


def _read_exactly(link: socket.socket, begun: bytes, size: int) -> bytes:
    if not 0 <= size <= MOST_BODY:
        raise ValueError(f"the answer has {size} bytes")
    if len(begun) >= size:
        return begun[:size]
    body = bytearray(size)
    body[: len(begun)] = begun
    view, at = memoryview(body), len(begun)
    while at < size:
        count = link.recv_into(view[at:])
        if not count:
            raise ConnectionError("the connection was closed within an answer")
        at += count
    return bytes(body)


def _read_chunks(link: socket.socket, begun: bytes) -> bytes:
    buffer, body = begun, bytearray()

    def fill() -> None:
        nonlocal buffer
        more = link.recv(65_536)
        if not more:
            raise ConnectionError("the connection was closed within an answer")
        buffer += more

    while True:
        while (end := buffer.find(b"\r\n")) < 0:
            fill()
        size = int(buffer[:end].split(b";")[0], 16)
        buffer = buffer[end + 2 :]
        while len(buffer) < size + 2:
            fill()
        body += buffer[:size]
        buffer = buffer[size + 2 :]
        if len(body) > MOST_BODY:
            raise ValueError("the answer is too long")
        if size == 0:
            return bytes(body)


def _message_of(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__
