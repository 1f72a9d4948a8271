"""Queries Prometheus servers for the metrics by which endpoints scale, in threads, so that the loop never blocks.

``look`` runs at every pass: it returns the known measurements and starts the queries that are due. Nothing is stored: a
new process queries anew, and a policy that sees the start of a measurement keeps the current replicas until it has
enough samples.
"""

import http.client
import ipaddress
import logging
import math
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fairlead.policy.serving.routes import endpoints
from fairlead.specs.serving import PrometheusQuery
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.measurements import Measurement, Sample
from fairlead.state.snapshot import Snapshot
from fairlead.untrusted_json import parse_object

log = logging.getLogger(__name__)

EVERY_S = 5.0
KEPT_S = 120.0
ANSWER_S, MOST_BYTES = 3.0, 1 << 20
AT_ONCE, AT_ONCE_A_TEAM = 16, 4
PATH = "/api/v1/query"
# Limit on quoted text of a server within our own message.
MOST_WORDS = 200


class QueryFailed(Exception):
    """A query without exactly one number as its answer; the message gives the reason as a clause."""


@dataclass(slots=True)
class _RepeatedQuery:
    """A query that is repeated periodically, with its samples."""

    query: PrometheusQuery
    known: Measurement
    due_at: float
    under_way: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class PrometheusReader:
    """Measurements for the queries of all endpoints of a cluster.

    Args:
        ask: Sends one query and waits for its answer; raises ``QueryFailed``.
    """

    def __init__(self, ask: "Callable[[PrometheusQuery], float] | None" = None) -> None:
        self._ask = ask or ask_prometheus
        self._queries: dict[str, _RepeatedQuery] = {}
        self._places = threading.Semaphore(AT_ONCE)
        # A server that does not answer keeps a place for seconds; see decision 199.
        self._team_places: dict[str, threading.Semaphore] = {}

    def look(self, seen: Snapshot, now: float) -> Mapping[str, Measurement]:
        """Return the known measurements by uid of endpoint, and start the queries that are due."""
        measurements: dict[str, Measurement] = {}
        for parent in endpoints(seen):
            query = parent.spec.scale.prometheus
            if query is None or parent.spec.scale.by is not None:
                continue
            state = self._queries.get(parent.uid)
            if state is None or state.query != query:
                state = _RepeatedQuery(query=query, known=Measurement(since=now), due_at=now)
                self._queries[parent.uid] = state
            with state.lock:
                measurements[parent.uid] = state.known
                is_due = now >= state.due_at and not state.under_way
            if is_due and (places := self._take_place(parent.spec.team)):
                state.under_way, state.due_at = True, now + EVERY_S
                question = (state, detail_of(parent).ready, now, places)
                threading.Thread(target=self._answer, args=question, daemon=True, name="prometheus").start()
        self._queries = {uid: state for uid, state in self._queries.items() if uid in measurements}
        return measurements

    def _take_place(self, team: str) -> tuple[threading.Semaphore, ...]:
        """Return what to release after a query; empty if its team, or all, have as many under way as they may."""
        own = self._team_places.setdefault(team, threading.Semaphore(AT_ONCE_A_TEAM))
        if not own.acquire(blocking=False):
            return ()
        if not self._places.acquire(blocking=False):
            own.release()
            return ()
        return own, self._places

    def _answer(self, state: _RepeatedQuery, replicas: int, at: float, places: tuple[threading.Semaphore, ...]) -> None:
        problem: str | None = None
        value = 0.0
        try:
            value = self._ask(state.query)
        except QueryFailed as error:
            problem = str(error)
        except Exception as error:
            # A thread that died silently would leave its query pending for ever.
            log.exception("asking %s failed", state.query.url)
            problem = f"{type(error).__name__} at {state.query.url}"
        finally:
            for place in places:
                place.release()
        with state.lock:
            samples = tuple(sample for sample in state.known.samples if at - sample.at <= KEPT_S)
            new = () if problem is not None else (Sample(at=at, value=value, replicas=replicas),)
            state.known = replace(state.known, samples=(*samples, *new), problem=problem)
            state.under_way = False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: only the address in the spec is queried."""

    def redirect_request(self, *_: Any) -> None:
        """Return None: there is no request to follow."""


def _connect(address: tuple[str, int], *more: Any) -> socket.socket:
    """Connect to an address of a host that is no part of this machine or its link, unless the host is that address.

    The name is resolved once, and the address that was checked is the one that is connected to. A name may lead
    anywhere, as `metadata` does to a cloud's credentials by the search domains of its nodes.

    Raises:
        OSError: There is no connection, or it may not be made.
    """
    host, port = address
    problem: OSError | None = None
    for _, _, _, _, (place, *_) in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        number = ipaddress.ip_address(str(place).partition("%")[0])
        number = getattr(number, "ipv4_mapped", None) or number
        is_near = number.is_loopback or number.is_link_local or number.is_multicast or number.is_unspecified
        if is_near and host != str(number):
            problem = OSError(f"{host} has the address {number}, which is no Prometheus server's")
            continue
        try:
            return socket.create_connection((str(place), port), *more)
        except OSError as error:
            problem = error
    raise problem or OSError(f"{host} has no address")


class _CheckedConnection(http.client.HTTPConnection):
    """A connection to an address that was checked."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._create_connection = _connect


class _CheckedTlsConnection(http.client.HTTPSConnection):
    """A connection by TLS to an address that was checked; the certificate is that of the name."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._create_connection = _connect


class _Checked(urllib.request.HTTPHandler):
    """Connects to addresses that were checked."""

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_CheckedConnection, request)


class _CheckedTls(urllib.request.HTTPSHandler):
    """Connects by TLS to addresses that were checked."""

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_CheckedTlsConnection, request)


def ask_if_allowed(problem_of: Callable[[str], str | None], query: PrometheusQuery) -> float:
    """Return the current number that Prometheus answers to a query, if it may be asked there.

    Raises:
        QueryFailed: It may not be asked, there is no answer, or it is not one number.
    """
    if (problem := problem_of(query.url)) is not None:
        raise QueryFailed(problem)
    return ask_prometheus(query, _Checked(), _CheckedTls())


def ask_prometheus(query: PrometheusQuery, *handlers: urllib.request.BaseHandler) -> float:
    """Return the current number that Prometheus answers to a query.

    Args:
        handlers: Connect to its server instead of urllib's own.

    Raises:
        QueryFailed: There is no answer, or it is not one number.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect(), *handlers)
    url = query.url.rstrip("/") + PATH
    body = urllib.parse.urlencode({"query": query.query, "timeout": f"{ANSWER_S:g}s"}).encode()
    until = time.monotonic() + 2 * ANSWER_S
    try:
        with opener.open(urllib.request.Request(url, data=body), timeout=ANSWER_S) as answer:
            content = _read(answer, until)
    except urllib.error.HTTPError as error:
        with error:
            try:
                content = _read(error, until)
            except OSError:
                content = b""
        message = _error_message(content)
        raise QueryFailed(
            f"{query.url} answers with status {error.code}" + (f": {message}" if message else "")
        ) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise QueryFailed(f"{query.url} does not answer: {why}") from error
    return _number(query, content)


def _read(answer: Any, until: float) -> bytes:
    """Read an answer, however slowly it arrives, within limits of time and size."""
    body = b""
    while part := answer.read1(65_536):
        body += part
        if len(body) > MOST_BYTES:
            raise OSError(f"the answer has more than {MOST_BYTES} bytes")
        if time.monotonic() > until:
            raise TimeoutError("the answer takes too long")
    return body


def _error_message(content: bytes) -> str:
    """Return a Prometheus' own error message; empty where the content is none."""
    try:
        reply = parse_object(content, max_bytes=MOST_BYTES)
    except ValueError:
        return ""
    text = reply.get("error") if reply.get("status") == "error" else None
    return " ".join(text.split())[:MOST_WORDS].rstrip(".") if isinstance(text, str) else ""


def _number(query: PrometheusQuery, content: bytes) -> float:
    try:
        data = parse_object(content, max_bytes=MOST_BYTES)["data"]
        kind, result = data["resultType"], data["result"]
        if kind == "vector":
            values = [series["value"][1] for series in result]
        elif kind == "scalar":
            values = [result[1]]
        else:
            raise QueryFailed(f"the query answers a {str(kind)[:20]}, and one number is needed; ask for an instant one")
        numbers = [float(value) for value in values]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise QueryFailed(f"what {query.url} answers is no answer of a Prometheus") from error
    if not numbers:
        raise QueryFailed("the query finds no series; where none means 0, end it with `or vector(0)`")
    if len(numbers) > 1:
        raise QueryFailed(f"the query finds {len(numbers)} series, and one number is needed; put `sum()` around it")
    if not math.isfinite(numbers[0]):
        raise QueryFailed(f"the query answers {values[0]}, which is not a number")
    return numbers[0]
