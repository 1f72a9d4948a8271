"""Serves liveness, readiness and Prometheus metrics of an operator over HTTP."""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fairlead.gateway.scrape_authorization import REFUSALS

# A pass that takes this long is stuck; kubelet then restarts the operator.
STUCK_S = 120.0


@dataclass(slots=True)
class Health:
    """The health of the loop.

    Attributes:
        beat_at: ``time.monotonic`` at the start of the last iteration of the loop.
        numbers: Returns current values of metrics by name.
        trouble: Returns why the operator does not see the cluster as it is, as a clause; empty if it does.
        more: Returns further metrics in Prometheus' text format.
    """

    numbers: Callable[[], Mapping[str, float]]
    trouble: Callable[[], str]
    more: Callable[[], str] = str
    beat_at: float = field(default_factory=time.monotonic)

    @property
    def is_alive(self) -> bool:
        """Return whether the loop is iterating."""
        return time.monotonic() - self.beat_at < STUCK_S


METRICS = {
    "fairlead_leader": ("gauge", "1 while this operator acts."),
    "fairlead_pods": ("gauge", "Pods of all runs."),
    "fairlead_nodes": ("gauge", "Nodes of the cluster."),
    "fairlead_foreign_objects": (
        "gauge",
        "Pods and runs that name a run or a parent as their owner which is not theirs.",
    ),
    "fairlead_passes_total": ("counter", "Passes of the loop."),
    "fairlead_changes_total": ("counter", "Passes that changed something."),
    "fairlead_pass_seconds_total": ("counter", "Time spent in passes."),
    "fairlead_api_requests_total": ("counter", "Requests to the API server, every try counted."),
    "fairlead_log_requests_total": ("counter", "Requests that read the progress of a run."),
    "fairlead_api_waiting": ("gauge", "Requests that wait for their turn."),
    "fairlead_watch_lists_total": ("counter", "Lists that watches took, the first ones included."),
    "fairlead_watch_silent_seconds": ("gauge", "Time since the least active watch last received anything."),
    "fairlead_watch_stale_seconds": ("gauge", "Time for which the most outdated list could not be followed."),
    "fairlead_unreadable_objects": ("gauge", "Objects that cannot be read; they count as they last could be."),
    "fairlead_refused_objects": ("gauge", "Objects about which the latest request was refused; it is tried again."),
    "fairlead_nodes_taken_out": ("gauge", "Nodes that were taken out, and that nobody has given back."),
    "fairlead_nodes_faulty": ("gauge", "Nodes of which a detector reports a fault."),
    "fairlead_nodes_faulty_in_use": ("gauge", "Those that stay in use, as too many nodes of their kind are away."),
    "fairlead_internal_errors_total": ("counter", "Failures of the operator itself at one object."),
}


def exposition(numbers: Mapping[str, float]) -> str:
    """Format metrics in Prometheus' text format 0.0.4."""
    lines = []
    for name, value in numbers.items():
        kind, sentence = METRICS[name]
        lines += [f"# HELP {name} {sentence}", f"# TYPE {name} {kind}", f"{name} {value:g}"]
    return "\n".join(lines) + "\n"


PATIENCE_S = 5.0
"""Seconds without a byte after which a connection is closed."""
CONNECTIONS_MOST = 32
Judge = Callable[[str | None], HTTPStatus]


class _Server(ThreadingHTTPServer):
    """A server with a bounded number of connections: the oldest is closed for a new one, such as a probe of kubelet."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[Any, None] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own."""
        with self._lock:
            if len(self._open) >= CONNECTIONS_MOST:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):  # its own thread then ends, and closes it
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a connection that broke off, which is its client's affair."""
        logging.getLogger("fairlead.health").debug("a connection broke off", exc_info=True)


def serve(health: Health, host: str, port: int, may_scrape: Judge | None = None) -> ThreadingHTTPServer:
    """Serve ``/livez``, ``/readyz`` and ``/metrics`` in a thread; port 0 picks a free one.

    Args:
        may_scrape: Judges the header ``Authorization`` of a request for metrics; None lets everyone read them.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE_S

        def do_GET(self) -> None:
            if self.path == "/metrics":
                status = HTTPStatus.OK if may_scrape is None else may_scrape(self.headers.get("Authorization"))
                if status is not HTTPStatus.OK:
                    self._answer(status, REFUSALS[status])
                    return
                self._answer(200, exposition(health.numbers()) + health.more())
            elif self.path in ("/livez", "/healthz"):
                self._answer(200 if health.is_alive else 500, "ok\n" if health.is_alive else "the loop has stuck\n")
            elif self.path == "/readyz":
                trouble = health.trouble()
                self._answer(503 if trouble else 200, f"{trouble or 'ok'}\n")
            else:
                self._answer(404, "there are /livez, /readyz and /metrics\n")

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Discard the access log: probes arrive every few seconds."""

    server = _Server((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        content = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content)
