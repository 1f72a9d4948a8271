"""Serves ``/metrics`` over HTTP, one request at a time, since a cluster client belongs to one thread."""

import logging
import socket
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from prometheus_client.core import Metric

from fairlead.control.metrics.exposition import CONTENT_TYPE, exposition
from fairlead.control.metrics.readings import Readings
from fairlead.errors import ClusterError
from fairlead.loopback import is_known_host, is_loopback

log = logging.getLogger("fairlead.metrics")

# Timeout of a silent client, which blocks the next one.
PATIENCE_S = 5.0


def metrics_server(
    read: Callable[[], Readings], host: str, port: int, further: Callable[[], Iterable[Metric]] = tuple
) -> HTTPServer:
    """Return a server that takes readings per scrape, in the thread of its ``serve_forever``; port 0 picks a free one.

    Args:
        further: Returns further metrics.

    Raises:
        OSError: The address cannot be bound.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE_S

        def do_GET(self) -> None:
            if is_loopback(host) and not is_known_host(self.headers.get("Host", "localhost")):
                self._answer(421, "text/plain; charset=utf-8", b"ask for 127.0.0.1 or localhost\n")
                return
            if self.path.partition("?")[0] != "/metrics":
                self._answer(404, "text/plain; charset=utf-8", b"there is /metrics\n")
                return
            try:
                body = exposition(read(), further=further())
            except ClusterError as error:
                log.error("%s", error)
                self._answer(503, "text/plain; charset=utf-8", f"{error}\n".encode())
                return
            self._answer(200, CONTENT_TYPE, body)

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Discard the access log: scrapes arrive every few seconds."""

    class Server(HTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    return Server((host, port), Handler)
