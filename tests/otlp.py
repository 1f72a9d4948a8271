"""A receiver of OpenTelemetry traces by OTLP over HTTP, for tests."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """Keeps what it is sent, and refuses it while it is told to.

    Attributes:
        refused: Requests that it kept and did not accept, as when an answer is lost.
        bodies: Those that it accepted.
        key: The value of the header ``x-key`` without which it accepts nothing; None for any.
    """

    def __init__(self, *, num_refused: int, key: str | None = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        self.num_refused = num_refused
        self.key = key
        self.url = ""

    def take(self, path: str, key: str | None, body: dict[str, Any]) -> int:
        """The status of the answer."""
        if path != "/v1/traces" or self.key not in (None, key):
            return 404
        if len(self.refused) < self.num_refused:
            self.refused.append(body)
            return 503
        self.bodies.append(body)
        return 200


def spans_in(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The spans of a request."""
    return [each for resource in body["resourceSpans"] for scope in resource["scopeSpans"] for each in scope["spans"]]


@contextmanager
def receiving(*, num_refused: int = 0, key: str | None = None) -> Iterator[Receiver]:
    found = Receiver(num_refused=num_refused, key=key)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(found.take(self.path, self.headers["x-key"], body))
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
