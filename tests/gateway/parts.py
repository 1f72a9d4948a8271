"""What tests of the gateway are made of: a door to ask, replicas behind it, and routes between them."""

import http.client
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fairlead.gateway.routes import VERSION
from tests.waiting import until

LIMIT_S = 60.0
"""Nothing in a test waits longer."""


def service(
    *replicas: "Replica | RawReplica | tuple[str, int]", revisions: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    """A service of routes.json with one revision, r1, of these replicas, unless revisions are given."""
    told = revisions if revisions is not None else [revision("r1", *replicas)]
    return {
        "path": "/m", "hosts": ["m.localhost"], "keys": None, "timeout_s": LIMIT_S, "idempotent": False,
        "max_concurrency": None, "max_queue": 100, "revisions": told, "failure": None, **more,
    }  # fmt: skip


def revision(
    name: str, *replicas: "Replica | RawReplica | tuple[str, int]", weight: int = 1, shadow: bool = False
) -> dict[str, Any]:
    """A revision of a service."""
    told = [each if isinstance(each, tuple) else (each.name, each.port) for each in replicas]
    return {
        "name": name,
        "weight": weight,
        "shadow": shadow,
        "replicas": [{"id": id_, "url": f"http://127.0.0.1:{port}"} for id_, port in told],
    }


def document(services: dict[str, Any]) -> dict[str, Any]:
    """A routes.json of these services, of which each may have the keys of its teams in itself."""
    keys: dict[str, dict[str, float | None]] = {}
    told = {}
    for name, each in services.items():
        own = each["keys"]
        for key in own or ():
            keys.setdefault(key["team"], {})[key["sha256"]] = key.get("expires_at")
        told[name] = {**each, "keys": None if own is None else sorted({key["team"] for key in own})}
    return {"version": VERSION, "services": told, "keys": keys}


@dataclass
class Answer:
    """What a client got."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Door:
    """A gateway as its directory and its port show it."""

    directory: Path
    end: Callable[[], None] = field(default=lambda: None)

    def write_routes(self, routes: dict[str, Any], *, wake: Path | None = None) -> None:
        draft = self.directory / "routes.draft"
        draft.write_text(json.dumps({"wake": wake and str(wake), **document(routes)}))
        draft.replace(self.directory / "routes.json")

    def wait_until_open(self) -> None:
        until((self.directory / "demand.json").exists, "demand.json", timeout_s=LIMIT_S, every_s=0.005)

    def wait_until_told(self) -> None:
        """Wait until haproxy runs and knows all that it may pass on."""
        until(lambda: not self.waits_for_haproxy(), "haproxy", timeout_s=LIMIT_S, every_s=0.005)

    def waits_for_haproxy(self) -> bool:
        told = self.directory / "proxy.json"
        return not told.exists() or "haproxy " in told.read_text().replace("haproxy-", "")

    def demand(self) -> Any:
        return json.loads((self.directory / "demand.json").read_text())

    def counted(self, service: str, revision: str) -> int:
        """Requests of a revision, by demand.json."""
        told = self.demand()["services"].get(service, {"revisions": {}})
        return int(told["revisions"].get(revision, {"requests": 0})["requests"])

    def log(self) -> list[Any]:
        path = self.directory / "access.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def port(self) -> int:
        return int(self.demand()["port"])

    def ask(
        self, path: str = "/m/echo", *, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None,
        admin: bool = False, chunked: bool = False,
    ) -> Answer:  # fmt: skip
        """One request on a connection of its own."""
        port = self.demand()["admin_port"] if admin else self.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        try:
            connection.request(method, path, body=body, headers=headers or {}, encode_chunked=chunked)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def ask_beside(self, *args: Any, **more: Any) -> "Beside":
        """The same in a thread."""
        return Beside(lambda: self.ask(*args, **more))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)

    def raw(self, data: bytes) -> bytes:
        """All that is answered to some bytes, until the gateway ends the connection."""
        with self.connect() as client:
            client.sendall(data)
            return received(client)


class Beside:
    """Something that is done in a thread."""

    def __init__(self, do: Callable[[], Answer]) -> None:
        self._answer: Answer | None = None
        self._error: Exception | None = None
        self._do = do
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def answer(self) -> Answer:
        self._thread.join(timeout=LIMIT_S)
        assert not self._thread.is_alive(), "no answer"
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer

    def waits(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._answer = self._do()
        except Exception as error:  # noqa: BLE001 (told where the answer is asked for)
            self._error = error


def received(client: socket.socket) -> bytes:
    """All bytes until the other side ends."""
    pieces = []
    try:
        while piece := client.recv(65536):
            pieces.append(piece)
    except ConnectionResetError:
        return b"".join(pieces)
    return b"".join(pieces)


class Replica:
    """A server whose answers say what it was asked.

    Paths: /echo says the request back; /slow waits for `go`; /stream sends a piece for each `go`; /status/N; /fail ends
    the connection without an answer; /tokens/N answers as a text generator that used so many.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.go = threading.Semaphore(0)
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                outer._connections.append(self.connection)

            def do_GET(self) -> None:
                body = self._body()
                outer.asked.append(self.path)
                outer.headers.append({key.lower(): value for key, value in self.headers.items()})
                word = self.path.split("?")[0].strip("/").split("/")
                if word[0] == "slow":
                    outer.go.acquire(timeout=LIMIT_S)
                if word[0] == "fail":
                    self.close_connection = True
                    return
                if word[0] == "stream":
                    self._stream()
                    return
                told: dict[str, Any] = {
                    "replica": outer.name, "method": self.command, "path": self.path, "body": body.decode("latin-1"),
                    "headers": {key.lower(): value for key, value in self.headers.items()},
                }  # fmt: skip
                if word[0] == "tokens":
                    told = {"choices": [{"text": '{"total_tokens": 0}'}], "usage": {"total_tokens": int(word[1])}}
                data = json.dumps(told).encode()
                self.send_response(int(word[1]) if word[0] == "status" else 200)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Keep-Alive", "timeout=5")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_GET  # noqa: N815

            def _stream(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for number in range(3):
                    outer.go.acquire(timeout=LIMIT_S)
                    piece = f"data: {number}\n\n".encode()
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") == "chunked":
                    pieces = []
                    while size := int(self.rfile.readline(), 16):
                        pieces.append(self.rfile.read(size))
                        self.rfile.readline()
                    self.rfile.readline()
                    return b"".join(pieces)
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Clients may go as they please."""

        self._connections: list[socket.socket] = []
        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self._ended = False

    def end(self) -> None:
        """End it as a kill does: nothing is answered any more, and its port refuses."""
        if self._ended:
            return
        self._ended = True
        self._server.shutdown()
        self._server.server_close()
        self.go.release(1000)
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # ended already
        self._thread.join(timeout=LIMIT_S)


class RawReplica:
    """A server that answers each connection's first bytes with the same ones, then ends it, or stays silent."""

    def __init__(self, answer: bytes, *, name: str = "raw", stays: bool = False) -> None:
        self.name = name
        self.read: list[bytes] = []
        self._answer = answer
        self._stays = stays
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(connection)
            connection.settimeout(LIMIT_S)
            self.read.append(connection.recv(65536))
            connection.sendall(self._answer)
            if not self._stays:
                connection.close()

    def __enter__(self) -> "RawReplica":
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(timeout=LIMIT_S)
        for connection in self._open:
            connection.close()
