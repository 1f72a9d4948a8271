"""Serves metrics in Prometheus's format and health to operators, on a separate port, by default on loopback."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairlead.gateway import heads
from fairlead.gateway.messages import Refused, Request, read_request
from fairlead.gateway.routes import Backend
from fairlead.gateway.tallies import Latencies
from fairlead.gateway.wire import TooMuch, Wire

if TYPE_CHECKING:
    from prometheus_client.core import HistogramMetricFamily, Metric

    from fairlead.gateway.door import Door

_LIMIT_S = 10.0
_LONGEST_HEAD = 8 * 1024
_NAMES = (b"127.0.0.1", b"localhost", b"[::1]")


class AdminWire(Wire):
    """A connection with one request and one response.

    Args:
        is_local: Only requests that name this machine are answered, as a browser may be made to send others.
    """

    __slots__ = ("_door", "_is_local", "_task")

    def __init__(self, door: "Door", *, is_local: bool) -> None:
        super().__init__(door.loop)
        self._door = door
        self._is_local = is_local

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._task = self._door.loop.create_task(self._answer())

    async def _answer(self) -> None:
        try:
            async with asyncio.timeout(_LIMIT_S):
                head = await self.head(_LONGEST_HEAD)
            if head is not None:
                self.write(self._response(read_request(head)))
        except Refused as refused:
            self.write(heads.refusal(refused, request_id=b"-", keep_alive=False))
        except (TimeoutError, TooMuch):
            self.write(heads.refusal(Refused(400, "no request came"), request_id=b"-", keep_alive=False))
        except Exception as error:  # noqa: BLE001 (a defect here must not stop the gateway)
            self._door.report(error)
        finally:
            self.close()

    def _response(self, request: Request) -> bytes:
        if self._is_local and request.host not in _NAMES:
            raise Refused(403, "metrics are for this machine: ask for 127.0.0.1 or localhost")
        if request.path in (b"/healthz", b"/-/healthz"):
            return heads.plain(200, b'{"status":"ok"}\n', request_id=b"-", keep_alive=False)
        if request.path not in (b"/metrics", b"/-/metrics"):
            raise Refused(404, "there is /metrics and /healthz")
        try:
            body, kind = metrics(self._door)
        except ImportError as error:
            raise Refused(501, "metrics need `pip install 'fairlead[serve]'`") from error
        return heads.plain(200, body, request_id=b"-", keep_alive=False, content_type=kind.encode())


def metrics(door: "Door") -> tuple[bytes, str]:
    """Return all metrics in Prometheus's text format, with their content type."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    class Figures:
        def collect(self) -> "Iterator[Metric]":
            return _figures(door)

    return generate_latest(Figures()), CONTENT_TYPE_LATEST


def _figures(door: "Door") -> "Iterator[Metric]":
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
    for code, count in door.unread.items():
        requests.add_metric(("", "", str(code)), count)
    for name, service in door.table.services.items():
        tally = service.tally
        for (revision, code), count in tally.codes.items():
            requests.add_metric((name, revision, str(code)), count)
        for revision, counted in tally.revisions.items():
            _add_histogram(took, (name, revision), counted.latency)
        if tally.queue.count:
            _add_histogram(queued_s, (name,), tally.queue)
        in_flight.add_metric((name,), tally.present)
        queued.add_metric((name,), service.queued())
        retries.add_metric((name,), tally.retries)
        _add_histogram(cold, (name,), tally.cold_starts)
        there: dict[str, set[Backend]] = {}
        shares = Counter[str]()
        for each in service.revisions:
            shares[each.name] += 0 if each.shadow else each.weight
            there.setdefault(each.name, set()).update(replica.backend for replica in each.replicas)
        for revision, backends in there.items():
            replicas.add_metric((name, revision), len(backends))
            weights.add_metric((name, revision), shares[revision])
        for outcome, count in tally.shadows.items():
            shadows.add_metric((name, outcome), count)
    yield from (requests, took, queued_s, cold, in_flight, queued, replicas, weights, retries, shadows)
    yield GaugeMetricFamily(
        "fairlead_gateway_connections", "Clients' connections now.", value=len(door.conversations)
    )  # fmt: skip
    yield CounterMetricFamily("fairlead_gateway_turned_away", "Connections beyond the most.", value=door.turned_away)
    yield CounterMetricFamily("fairlead_gateway_defects", "Errors of the gateway itself.", value=door.defects)
    yield CounterMetricFamily(
        "fairlead_gateway_log_lines_lost", "Lines of the access log that could not be written.",
        value=door.log_lines_lost,
    )  # fmt: skip
    yield GaugeMetricFamily(
        "fairlead_gateway_routes_valid", "1 while the latest routes.json is in use.", value=door.routes_problem is None
    )


def _add_histogram(family: "HistogramMetricFamily", labels: tuple[str, ...], latencies: Latencies) -> None:
    buckets = [(str(bound / 1e3), float(count)) for bound, count in latencies.cumulative()]
    buckets.append(("+Inf", float(latencies.count)))
    family.add_metric(labels, buckets, latencies.sum_ms / 1e3)
