"""Serves metrics in Prometheus's format and health to operators, on a separate port, by default on loopback."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING

from fairlead.gateway import http_headers
from fairlead.gateway.byte_stream import ByteStream, HeadTooLong
from fairlead.gateway.messages import HttpError, RequestHead, read_request
from fairlead.gateway.request_metrics import LatencyHistogram
from fairlead.gateway.routes import Backend
from fairlead.gateway.scrape_authorization import REFUSALS
from fairlead.loopback import HOSTS

if TYPE_CHECKING:
    from prometheus_client.core import HistogramMetricFamily, Metric

    from fairlead.gateway.gateway_server import GatewayServer

_LIMIT_S = 10.0
_LONGEST_HEAD = 8 * 1024
_MOST_CONNECTIONS = 64
_METRICS = (b"/metrics", b"/-/metrics")


class ScrapeGuard:
    """Asks the API server beside the loop who may read metrics, for few at a time.

    Args:
        judge: Returns the status for the header ``Authorization`` of a request.
    """

    def __init__(self, judge: Callable[[str], HTTPStatus]) -> None:
        self._judge = judge
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="scrapes")

    async def status(self, header: str) -> HTTPStatus:
        """Return the status of a request with that header."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._judge, header)


class AdminStream(ByteStream):
    """A connection with one request and one response.

    Args:
        is_local: Only requests that name this machine are answered, as a browser may be made to send others.
        guard: Judges who may read metrics; None lets everyone who can connect read them.
    """

    __slots__ = ("_gateway", "_guard", "_is_local")

    def __init__(self, gateway: "GatewayServer", *, is_local: bool, guard: ScrapeGuard | None = None) -> None:
        super().__init__(gateway.loop)
        self._gateway = gateway
        self._is_local = is_local
        self._guard = guard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._gateway.admin_tasks) >= _MOST_CONNECTIONS:
            self.abort()
            return
        task = self._gateway.loop.create_task(self._answer())
        self._gateway.admin_tasks.add(task)
        task.add_done_callback(self._gateway.admin_tasks.discard)

    async def _answer(self) -> None:
        try:
            async with asyncio.timeout(_LIMIT_S):
                head = await self.head(_LONGEST_HEAD)
                if head is not None:
                    request = read_request(head)
                    status = await self._status(request)
            if head is not None:
                self.write(self._response(request, status))
        except HttpError as refused:
            self.write(http_headers.error_response(refused, request_id=b"-", keep_alive=False))
        except (TimeoutError, HeadTooLong):
            self.write(
                http_headers.error_response(HttpError(400, "no request came"), request_id=b"-", keep_alive=False)
            )
        except Exception as error:  # noqa: BLE001 (a defect here must not stop the gateway)
            self._gateway.report(error)
        finally:
            self.close()

    async def _status(self, request: RequestHead) -> HTTPStatus:
        """Return 200 if the client may read what it asks for."""
        if self._guard is None or request.path not in _METRICS:
            return HTTPStatus.OK
        return await self._guard.status(request.single.get(b"authorization", b"").decode("latin-1"))

    def _response(self, request: RequestHead, status: HTTPStatus) -> bytes:
        if self._is_local and request.host.decode() not in HOSTS:
            raise HttpError(403, "metrics are for this machine: ask for 127.0.0.1 or localhost")
        if request.path in (b"/healthz", b"/-/healthz"):
            return http_headers.short_response(200, b'{"status":"ok"}\n', request_id=b"-", keep_alive=False)
        if request.path not in _METRICS:
            raise HttpError(404, "there is /metrics and /healthz")
        if status is not HTTPStatus.OK:
            return http_headers.short_response(status, REFUSALS[status].encode(), request_id=b"-", keep_alive=False)
        body, kind = gateway_exposition(self._gateway)
        return http_headers.short_response(200, body, request_id=b"-", keep_alive=False, content_type=kind.encode())


def gateway_exposition(gateway: "GatewayServer") -> tuple[bytes, str]:
    """Return all metrics in Prometheus's text format, with their content type."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    class Figures:
        def collect(self) -> "Iterator[Metric]":
            return _figures(gateway)

    return generate_latest(Figures()), CONTENT_TYPE_LATEST


def _figures(gateway: "GatewayServer") -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    requests = CounterMetricFamily(
        "fairlead_gateway_requests", "Requests answered, by revision (empty: by the gateway itself) and status.",
        labels=("service", "revision", "code"),
    )  # fmt: skip
    took = HistogramMetricFamily(
        "fairlead_gateway_request_duration_seconds", "From the choice of a replica to the last byte of its answer.",
        labels=("service", "revision"),
    )  # fmt: skip
    queued_s = HistogramMetricFamily(
        "fairlead_gateway_queue_duration_seconds", "How long requests waited that had to.", labels=("service",)
    )
    in_flight = GaugeMetricFamily("fairlead_gateway_in_flight", "Requests here now.", labels=("service",))
    queued = GaugeMetricFamily("fairlead_gateway_queued", "Requests waiting now.", labels=("service",))
    replicas = GaugeMetricFamily("fairlead_gateway_replicas", "Ready replicas.", labels=("service", "revision"))
    weights = GaugeMetricFamily(
        "fairlead_gateway_revision_weight", "Weight by which requests are divided; 0 for a revision that gets none.",
        labels=("service", "revision"),
    )  # fmt: skip
    cold = HistogramMetricFamily(
        "fairlead_gateway_cold_start_seconds", "From the first request that found no replica to the first replica.",
        labels=("service",),
    )  # fmt: skip
    retries = CounterMetricFamily("fairlead_gateway_retries", "Requests given to another replica.", labels=("service",))
    shadows = CounterMetricFamily("fairlead_gateway_shadows", "Copies made.", labels=("service", "outcome"))
    for code, count in gateway.unrouted.items():
        requests.add_metric(("", "", str(code)), count)
    for name, service in gateway.table.services.items():
        metrics = service.metrics
        for (revision, code), count in metrics.codes.items():
            requests.add_metric((name, revision, str(code)), count)
        for revision, counted in metrics.revisions.items():
            _add_histogram(took, (name, revision), counted.latency)
        if metrics.queue.count:
            _add_histogram(queued_s, (name,), metrics.queue)
        in_flight.add_metric((name,), metrics.present)
        queued.add_metric((name,), service.queued())
        retries.add_metric((name,), metrics.retries)
        _add_histogram(cold, (name,), metrics.cold_starts)
        backends: dict[str, set[Backend]] = {}
        shares = Counter[str]()
        for routed in service.revisions:
            shares[routed.name] += 0 if routed.shadow else routed.weight
            backends.setdefault(routed.name, set()).update(replica.backend for replica in routed.replicas)
        for revision, share in shares.items():
            replicas.add_metric((name, revision), len(backends[revision]))
            weights.add_metric((name, revision), share)
        for outcome, count in metrics.shadows.items():
            shadows.add_metric((name, outcome), count)
    yield from (requests, took, queued_s, cold, in_flight, queued, replicas, weights, retries, shadows)
    yield GaugeMetricFamily(
        "fairlead_gateway_connections", "Clients' connections now.", value=len(gateway.connections)
    )  # fmt: skip
    yield CounterMetricFamily(
        "fairlead_gateway_turned_away", "Connections beyond the most.", value=gateway.refused_connections
    )
    yield CounterMetricFamily("fairlead_gateway_defects", "Errors of the gateway itself.", value=gateway.defects)
    yield CounterMetricFamily(
        "fairlead_gateway_log_lines_lost", "Lines of the access log that could not be written.",
        value=gateway.log_lines_lost,
    )  # fmt: skip
    yield GaugeMetricFamily(
        "fairlead_gateway_routes_valid",
        "1 while the latest routes.json is in use.",
        value=gateway.routes_problem is None,
    )


def _add_histogram(family: "HistogramMetricFamily", labels: tuple[str, ...], latencies: LatencyHistogram) -> None:
    buckets = [(str(bound / 1e3), float(count)) for bound, count in latencies.cumulative()]
    buckets.append(("+Inf", float(latencies.count)))
    family.add_metric(labels, buckets, latencies.sum_ms / 1e3)
