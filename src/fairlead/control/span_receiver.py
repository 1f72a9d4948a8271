"""Sends spans to an OpenTelemetry receiver, by OTLP over HTTP in JSON, as OpenTelemetry's variables configure it."""

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from urllib.parse import unquote, urlsplit

from fairlead import __version__
from fairlead.control.spans import Span, otlp
from fairlead.frozen import dataclass
from fairlead.state.snapshot import Workload

log = logging.getLogger(__name__)

ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
HEADERS, SERVICE = "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME"
ANSWER_S = 10.0
# Waits before a receiver that does not answer is tried again, with exponential backoff.
RETRY_S, MOST_RETRY_S = 5.0, 300.0
# Runs that ended earlier than this are not sent.
MOST_AGE_S = 24 * 3600.0

Post = Callable[[str, Mapping[str, str], bytes], None]


def post(url: str, headers: Mapping[str, str], body: bytes) -> None:
    """Send a body.

    Raises:
        OSError: It was not accepted.
    """
    request = urllib.request.Request(url, body, {**headers, "Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"it answers {error.code} {error.reason}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanReceiver:
    """A receiver, with the headers of requests to it and the name of the service that spans are of.

    Attributes:
        post: Sends a body to a URL; raises OSError if it was not accepted.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    service: str = "fairlead"
    post: Post = post

    def send(self, run: Workload, spans: Iterable[Span]) -> None:
        """Send the spans of a run.

        Raises:
            OSError: They were not accepted.
        """
        body = otlp(run, spans, service=self.service, version=__version__)
        self.post(self.url, self.headers, json.dumps(body).encode())


def receiver_of(environ: Mapping[str, str]) -> SpanReceiver | None:
    """Return the configured receiver; None if there is none, or none that can be used, which is logged."""
    url = endpoint_of(environ)
    if url is None:
        return None
    if urlsplit(url).scheme not in ("http", "https"):
        log.error("%s is %s; spans go to http or https only, and none are sent", ENDPOINT, url)
        return None
    return SpanReceiver(url=url, headers=headers_of(environ), service=environ.get(SERVICE) or "fairlead")


def endpoint_of(environ: Mapping[str, str]) -> str | None:
    """Return the URL of the receiver; None if none is configured."""
    if environ.get(TRACES_ENDPOINT):
        return environ[TRACES_ENDPOINT]
    return environ[ENDPOINT].rstrip("/") + "/v1/traces" if environ.get(ENDPOINT) else None


def headers_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Parse the request headers from comma-separated ``name=value`` pairs."""
    pairs = (part.split("=", 1) for part in environ.get(HEADERS, "").split(",") if "=" in part)
    return {unquote(name.strip()): unquote(value.strip()) for name, value in pairs}
