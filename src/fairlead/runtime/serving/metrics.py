"""Prometheus metrics of a replica, named like vLLM's with `fairlead:` for `vllm:`, so that rules and dashboards fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServerMetrics:
    """Counters and histograms of one server, in a separate registry.

    Args:
        model: Value of the label `model_name`.
        running: Returns the number of requests that are being computed.
        waiting: Returns the number of waiting requests.
    """

    def __init__(self, model: str, *, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def histogram(name: str, text: str, buckets: Any = _SECONDS) -> Histogram:
            metric = Histogram(f"fairlead:{name}", text, ["model_name"], buckets=buckets, registry=registry)
            return metric.labels(model)

        for name, text, value in (
            ("num_requests_running", "Requests that are computed now.", running),
            ("num_requests_waiting", "Requests that wait for the predictor.", waiting),
        ):
            gauge = Gauge(f"fairlead:{name}", text, ["model_name"], registry=registry)
            gauge.labels(model).set_function(value)
        self._requests = Counter(
            "fairlead:requests", "Requests that were answered.", ["model_name", "route", "status"], registry=registry
        )
        tokens = Counter("fairlead:generation_tokens", "Pieces of text made.", ["model_name"], registry=registry)
        self.generation_tokens = tokens.labels(model)
        self.latency = histogram("e2e_request_latency_seconds", "From a request's header to its answer's end.")
        self.queue_time = histogram("request_queue_time_seconds", "From arrival to the start of the batch.")
        self.inference_time = histogram("request_inference_time_seconds", "Of a batch in the predictor.")
        self.first_token = histogram("time_to_first_token_seconds", "From arrival to the first piece of text.")
        self.per_token = histogram("time_per_output_token_seconds", "From each piece of text to the next.")
        self.batch_size = histogram("batch_size", "Rows of a batch.", _ROWS)
        self._model = model

    def count(self, route: str, status: int) -> None:
        """Count a response."""
        self._requests.labels(self._model, route, str(status)).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
