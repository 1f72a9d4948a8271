"""Serves liveness, readiness and Prometheus metrics of an operator over HTTP."""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# A pass that takes this long is stuck; kubelet then restarts the operator.
STUCK_S = 120.0


@dataclass(slots=True)
class Health:
    """The health of the loop.

    Attributes:
        beat_at: ``time.monotonic`` at the start of the last iteration of the loop.
        numbers: Returns current values of metrics by name.
        more: Returns further metrics in Prometheus' text format.
    """

    numbers: Callable[[], Mapping[str, float]]
    is_ready: Callable[[], bool]
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
    "fairlead_passes_total": ("counter", "Passes of the loop."),
    "fairlead_changes_total": ("counter", "Passes that changed something."),
    "fairlead_pass_seconds_total": ("counter", "Time spent in passes."),
    "fairlead_api_requests_total": ("counter", "Requests to the API server, every try counted."),
    "fairlead_log_requests_total": ("counter", "Requests that read the progress of a run."),
    "fairlead_api_waiting": ("gauge", "Requests that wait for their turn."),
    "fairlead_watch_lists_total": ("counter", "Lists that watches took, the first ones included."),
    "fairlead_watch_silent_seconds": ("gauge", "Time since the least active watch last received anything."),
}


def exposition(numbers: Mapping[str, float]) -> str:
    """Format metrics in Prometheus' text format 0.0.4."""
    lines = []
    for name, value in numbers.items():
        kind, sentence = METRICS[name]
        lines += [f"# HELP {name} {sentence}", f"# TYPE {name} {kind}", f"{name} {value:g}"]
    return "\n".join(lines) + "\n"


def serve(health: Health, host: str, port: int) -> ThreadingHTTPServer:
    """Serve ``/livez``, ``/readyz`` and ``/metrics`` in a thread; port 0 picks a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, exposition(health.numbers()) + health.more())
            elif self.path in ("/livez", "/healthz"):
                self._answer(200 if health.is_alive else 500, "ok\n" if health.is_alive else "the loop has stuck\n")
            elif self.path == "/readyz":
                ready = health.is_ready()
                self._answer(200 if ready else 503, "ok\n" if ready else "the watches are not there yet\n")
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

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
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
