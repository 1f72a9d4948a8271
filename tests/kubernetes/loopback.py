"""Small servers on loopback for tests of the client: a list with a watch, and a proxy that misbehaves on demand."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import urllib3

from fairlead.cluster.kubernetes.api.client import Client, Limits
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import Anonymous

Object = dict[str, Any]
NESTED, DEPTH = "(nested)", 9_000


def client_of(url: str, **limits: Any) -> Client:
    """A client without credentials, that loses patience soon."""
    settings: dict[str, Any] = {"try_s": 1.0, "patience_s": 5.0, "per_second": 1000.0, **limits}
    return Client(ClusterAccess(context="loopback", server=url, credentials=Anonymous()), Limits(**settings))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what these tests are about."""


def _dumped(content: Object) -> str:
    """JSON of an object, with a list in the place of ``NESTED`` that is deeper than Python itself would write."""
    return json.dumps(content).replace(f'"{NESTED}"', "[" * DEPTH + "]" * DEPTH)


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server that answers with ``handler``."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


class Answering(BaseHTTPRequestHandler):
    """A handler with what an API server's answers have in common."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 (names that http.server looks for)

    def answer(self) -> None:
        """Answer the request."""
        raise NotImplementedError

    def reply(self, status: int, content: Object, headers: dict[str, str] | None = None) -> None:
        self.say(_dumped(content).encode(), "application/json", status=status, headers=headers)

    def say(self, body: bytes, kind: str, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, reason: str = "", headers: dict[str, str] | None = None) -> None:
        self.reply(status, {"kind": "Status", "reason": reason, "message": f"said {reason}", "code": status}, headers)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""


@dataclass
class Listing:
    """One list of objects as an API server has it: pages, watches, bookmarks, and an instant from which it remembers.

    Attributes:
        forgotten: A watch or a page from before this version gets 410.
        bookmark_s: Seconds between bookmarks.
        lists, watches: How often each was asked for.
    """

    objects: dict[str, Object] = field(default_factory=dict)
    version: int = 100
    forgotten: int = 0
    bookmark_s: float = 0.1
    is_silent: bool = False
    lists: int = 0
    watches: int = 0
    _log: list[tuple[int, str, Object]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _generation: int = 0

    def put(self, name: str, **labels: Any) -> None:
        with self._changed:
            self.version += 1
            kind = "MODIFIED" if name in self.objects else "ADDED"
            metadata = {"name": name, "resourceVersion": str(self.version), "labels": labels}
            self.objects[name] = {"metadata": metadata}
            self._log.append((self.version, kind, self.objects[name]))
            self._changed.notify_all()

    def put_spec(self, name: str, spec: Object) -> None:
        """Add an object of our first kind with a spec, or change it."""
        with self._changed:
            self.version += 1
            kind = "MODIFIED" if name in self.objects else "ADDED"
            metadata = {"name": name, "resourceVersion": str(self.version), "labels": {}}
            self.objects[name] = {"apiVersion": "a/v1", "kind": "Thing", "metadata": metadata, "spec": spec}
            self._log.append((self.version, kind, self.objects[name]))
            self._changed.notify_all()

    def remove(self, name: str) -> None:
        with self._changed:
            self.version += 1
            last = self.objects.pop(name)
            last = {"metadata": {**last["metadata"], "resourceVersion": str(self.version)}}
            self._log.append((self.version, "DELETED", last))
            self._changed.notify_all()

    def forget(self) -> None:
        """Compact: nothing before now is kept."""
        with self._changed:
            self.version += 1
            self.forgotten = self.version
            self._log.clear()

    def cut(self) -> None:
        """End all watches in the middle of a line."""
        with self._changed:
            self._generation += 1
            self._changed.notify_all()

    def handler(self) -> type[BaseHTTPRequestHandler]:
        listing = self

        class Handler(Answering):
            def answer(self) -> None:
                query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
                if self.path == "/version":
                    self.reply(200, {"major": "1", "minor": "31"})
                elif query.get("watch"):
                    listing.watches += 1
                    listing._watch(self, int(query["resourceVersion"]))
                else:
                    listing.lists += 1
                    listing._list(self, query)

        return Handler

    def _list(self, handler: Answering, query: dict[str, str]) -> None:
        with self._changed:
            at, offset = (int(part) for part in query.get("continue", f"{self.version}:0").split(":"))
            if at < self.forgotten:
                handler.refuse(410, "Expired")
                return
            size = int(query["limit"])
            names = sorted(self.objects)
            items = [self.objects[name] for name in names[offset : offset + size]]
            if "as=PartialObjectMetadataList" in handler.headers["Accept"]:
                items = [{"kind": "PartialObjectMetadata", "metadata": item["metadata"]} for item in items]
            metadata = {"resourceVersion": str(at)}
            if offset + size < len(names):
                metadata["continue"] = f"{at}:{offset + size}"
        handler.reply(200, {"metadata": metadata, "items": items})

    def _watch(self, handler: Answering, version: int) -> None:
        if version < self.forgotten:
            handler.refuse(410, "Expired")
            return
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        generation = self._generation

        def send(kind: str, content: Object, end: str = "\n") -> None:
            line = _dumped({"type": kind, "object": content}) + end
            handler.wfile.write(f"{len(line):x}\r\n{line}\r\n".encode())

        while True:
            with self._changed:
                if self._generation == generation and not any(entry[0] > version for entry in self._log):
                    self._changed.wait(self.bookmark_s)
                news = [entry for entry in self._log if entry[0] > version]
                cut, silent, gone = self._generation != generation, self.is_silent, version < self.forgotten
            if cut:
                send("ADDED", {"metadata": {}}, end="")
                handler.connection.shutdown(socket.SHUT_RDWR)
                return
            if silent:
                time.sleep(0.05)
                continue
            if gone and not news:
                send("ERROR", {"code": 410, "reason": "Expired", "message": "too old resource version"})
                return
            for at, kind, content in news:
                send(kind, content)
                version = at
            if not news:
                send("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})
                version = self.version


@dataclass(frozen=True)
class Refuse:
    """Answer in the server's place."""

    status: int
    reason: str = ""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class LoseAnswer:
    """Let the request through and hang up instead of answering."""


@dataclass(frozen=True)
class Stall:
    """Answer after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Say:
    """Answer in the server's place with a text, such as a log that no kubelet has."""

    text: str


Fault = Refuse | LoseAnswer | Stall | Say | None


class FaultyProxy:
    """Stands in front of an API server and asks ``choose`` what to do with each request.

    Args:
        upstream: URL of the API server.
        headers: Put on every request, such as the token.
        ca: PEM of the authority of the API server's certificate.
    """

    def __init__(
        self,
        upstream: str,
        choose: Callable[[str, str], Fault],
        *,
        headers: dict[str, str] | None = None,
        ca: bytes | None = None,
    ) -> None:
        self.choose = choose
        self.seen: list[tuple[str, str]] = []
        self._upstream = upstream
        self._headers = headers or {}
        self._pool = urllib3.PoolManager(
            ssl_context=ssl.create_default_context(cadata=ca.decode()) if ca else None, maxsize=64, retries=False
        )
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def cut(self) -> None:
        """Hang up on everybody, in the middle of whatever they read."""
        with self._lock:
            for each in self._open:
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(Answering):
            def setup(self) -> None:
                super().setup()
                with proxy._lock:
                    proxy._open.add(self.connection)

            def finish(self) -> None:
                with proxy._lock:
                    proxy._open.discard(self.connection)
                super().finish()

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else None
                proxy.seen.append((self.command, self.path))
                fault = proxy.choose(self.command, self.path)
                if isinstance(fault, Refuse):
                    self.refuse(fault.status, fault.reason, dict(fault.headers))
                    return
                if isinstance(fault, Say):
                    self.say(fault.text.encode(), "text/plain")
                    return
                if isinstance(fault, Stall):
                    time.sleep(fault.seconds)
                kept = {
                    name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")
                }
                answer = proxy._pool.request(
                    self.command, proxy._upstream + self.path, body=body, headers={**kept, **proxy._headers},
                    preload_content=False, timeout=urllib3.Timeout(connect=5, read=600),
                )  # fmt: skip
                if isinstance(fault, LoseAnswer):
                    answer.read()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self._pass_on(answer)

            def _pass_on(self, answer: urllib3.BaseHTTPResponse) -> None:
                self.send_response(answer.status)
                for name in ("Content-Type", "Retry-After"):
                    if name in answer.headers:
                        self.send_header(name, answer.headers[name])
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    for chunk in answer.stream(65_536):
                        self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                    self.wfile.write(b"0\r\n\r\n")
                finally:
                    answer.close()

        return Handler
