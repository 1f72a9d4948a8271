"""Endpoints that are used: a real gateway, replicas of the product's server behind it, and what is scraped of them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from fairlead.control.metrics.served_endpoints import served_metrics
from tests.gateway.parts import Door, revision, service
from tests.serving.replica import Replica
from tests.waiting import until


@contextmanager
def gateway(place: Path, routes: dict[str, Any]) -> Iterator[Door]:
    """A gateway in a process of its own."""
    door = Door(place)
    door.write_routes(routes)
    argv = [sys.executable, "-m", "fairlead.gateway", "--directory", str(place), "--port", "0"]
    process = subprocess.Popen(argv)
    try:
        door.wait_until_open()
        yield door
    finally:
        process.terminate()
        process.wait(60)


def routes_to(replica: Replica, numbers: Replica, *, is_awake: bool) -> dict[str, Any]:
    """Two revisions that share their requests, a predictor, a service that sleeps or not, and one that is full."""
    revisions = [revision(name, (f"{name}-1", replica.port), weight=weight) for name, weight in (("r1", 9), ("r2", 1))]
    there = [("woken-1", replica.port)] if is_awake else []
    return {
        "team/words": service(revisions=revisions, hosts=[]),
        "team/numbers": service(("numbers-1", numbers.port), path="/numbers", hosts=[]),
        "team/sleepy": service(*there, path="/sleepy", hosts=[]),
        "team/full": service(path="/full", hosts=[], max_queue=0),
    }


def scrapes(place: Path, rounds: int) -> list[tuple[Metric, ...]]:
    """Scrape an endpoint after each of some rounds of requests, in each of which a service is woken."""
    found: list[tuple[Metric, ...]] = []
    with (
        Replica("Words") as replica,
        Replica("Doubler") as numbers,
        gateway(place, routes_to(replica, numbers, is_awake=False)) as door,
    ):
        for number in range(rounds):
            for prompt, status in (("one two three", 200), ("four", 200), ("fail", 500)):
                for _ in range(12):
                    asked = {"model": "model", "prompt": prompt}
                    answer = door.ask("/m/v1/completions", method="POST", body=json.dumps(asked).encode())
                    assert answer.status == status, answer.body
            row = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}
            inference = json.dumps({"inputs": [row]}).encode()
            assert door.ask("/numbers/v2/models/model/infer", method="POST", body=inference).status == 200
            assert door.ask("/full/x").status == 429
            beside = door.ask_beside("/sleepy/v2/health/ready")
            until(lambda: door.demand()["services"].get("team/sleepy", {}).get("wake"), "a wake-up")
            door.write_routes(routes_to(replica, numbers, is_awake=True))
            assert beside.answer().status == 200
            until(lambda: cold_starts(place) > len(found), "the cold start in the metrics")
            found.append(served_metrics(place))
            assert cold_starts(place) == number + 1
            door.write_routes(routes_to(replica, numbers, is_awake=False))
            until(lambda: not value(served_metrics(place), "fairlead_gateway_replicas", "team/sleepy"), "sleep")
    return found


def cold_starts(place: Path) -> float:
    """Return how often the service that sleeps was started."""
    return value(served_metrics(place), "fairlead_gateway_cold_start_seconds_count", "team/sleepy")


def value(metrics: tuple[Metric, ...], name: str, service: str) -> float:
    """The sum of a metric of a service."""
    samples = [sample for family in metrics for sample in family.samples if sample.name == name]
    return float(sum(each.value for each in samples if each.labels.get("service") == service))
