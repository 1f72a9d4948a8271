"""Exports the spans of finished runs to an OpenTelemetry receiver, by OTLP over HTTP in JSON.

OpenTelemetry's own variables in the environment of the command that started the supervisor configure the receiver. A
run is marked after its spans are accepted; a run that ended without a supervisor, or while the receiver did not answer,
is sent later. Delivery is at least once, and always of the same spans.
"""

import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fairlead import __version__
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.home import Home
from fairlead.cluster.selection import FINISHED, Selection
from fairlead.control.spans import Span, otlp, spans_of
from fairlead.errors import ClusterError
from fairlead.policy.kinds.table import leaf
from fairlead.state.snapshot import Workload, is_leaf

log = logging.getLogger(__name__)

LOOK_S, ANSWER_S = 2.0, 10.0
# Retries of a receiver that does not answer, with exponential backoff.
RETRY_S, MOST_RETRY_S = 5.0, 300.0
# Runs that ended earlier than this are not sent.
MOST_AGE_S = 24 * 3600.0
MOST_AT_ONCE = 100
SENT = "spans.sent"
ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
HEADERS, SERVICE = "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME"

Post = Callable[[str, Mapping[str, str], bytes], None]


def endpoint_of(environ: Mapping[str, str]) -> str | None:
    """Return the URL of the receiver; None if none is configured."""
    if environ.get(TRACES_ENDPOINT):
        return environ[TRACES_ENDPOINT]
    return environ[ENDPOINT].rstrip("/") + "/v1/traces" if environ.get(ENDPOINT) else None


def headers_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Parse the request headers from comma-separated ``name=value`` pairs."""
    pairs = (part.split("=", 1) for part in environ.get(HEADERS, "").split(",") if "=" in part)
    return {unquote(name.strip()): unquote(value.strip()) for name, value in pairs}


class SpanExporter:
    """Sends spans of finished runs in a thread beside the loop.

    Args:
        post: Sends a body to a URL; raises OSError if it was not accepted.
    """

    def __init__(self, home: Home, environ: Mapping[str, str], *, post: Post | None = None) -> None:
        self._home = home
        self._url = endpoint_of(environ)
        self._headers = headers_of(environ)
        self._service = environ.get(SERVICE) or "fairlead"
        self._post = post or _post
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if self._url is not None and urlsplit(self._url).scheme not in ("http", "https"):
            log.error("%s is %s; spans go to http or https only, and none are sent", ENDPOINT, self._url)
            self._url = None
        if self._url is not None:
            self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread after a last search for spans to send."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(ANSWER_S)

    def _run(self) -> None:
        cluster, wait_s = LocalCluster(self._home), LOOK_S
        try:
            while True:
                is_last = self._stopping.is_set()
                try:
                    self.send(cluster, time.time())
                    wait_s = LOOK_S
                except (OSError, ClusterError) as error:
                    if wait_s == LOOK_S:
                        log.warning("spans cannot be sent to %s: %s", self._url, error)
                    wait_s = min(MOST_RETRY_S, max(RETRY_S, 2 * wait_s))
                if is_last:
                    return
                self._stopping.wait(wait_s)
        finally:
            cluster.close()

    def send(self, cluster: LocalCluster, now: float) -> int:
        """Send the unsent spans of recently ended runs; return the number of runs.

        Raises:
            OSError: The receiver did not accept them.
        """
        assert self._url is not None, "somebody wants them"
        found = cluster.select(Selection(phases=FINISHED), limit=MOST_AT_ONCE)
        sent = 0
        for run in found:
            mark = self._home.run(run.uid) / SENT
            if not is_leaf(run) or now - (run.status.finished_at or 0.0) > MOST_AGE_S or _is_marked(mark, run):
                continue
            body = otlp(leaf(run), self._spans(cluster, run), service=self._service, version=__version__)
            self._post(self._url, self._headers, json.dumps(body).encode())
            with suppress(OSError):  # the run was deleted, or the disk is full: it is sent again
                mark.write_text(str(run.status.attempt))
            sent += 1
        return sent

    def _spans(self, cluster: LocalCluster, run: Workload) -> tuple[Span, ...]:
        first: dict[int, float] = {}
        for name, points in cluster.series(run.uid).items():
            for point in points if not name.startswith("system/") else ():
                first[point.attempt] = min(point.at, first.get(point.attempt, point.at))
        return spans_of(run, cluster.events(run.uid), cluster.pods(run.uid), first)


def _is_marked(mark: Path, run: Workload) -> bool:
    """Return whether the spans of a run were sent after its last attempt; a resumed run is sent again."""
    try:
        return mark.read_text() == str(run.status.attempt)
    except OSError:
        return False


def _post(url: str, headers: Mapping[str, str], body: bytes) -> None:
    request = urllib.request.Request(url, body, {**headers, "Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"it answers {error.code} {error.reason}") from error
