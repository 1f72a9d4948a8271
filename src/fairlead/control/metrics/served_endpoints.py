"""Collects the metrics of this machine's gateway and replicas, so that one address has all of them.

A replica's series get its name in the label ``replica``. What does not answer at once is left out, and so is a server
whose text is not in Prometheus' format.
"""

import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from fairlead.errors import InvalidSpec
from fairlead.gateway.routes import read_routes
from fairlead.runtime.podfiles import MOST_JSON_BYTES
from fairlead.untrusted_json import parse_object

ANSWER_S = 1.0
MOST_BYTES = 4_000_000
MOST_REPLICAS = 100
NUM_THREADS = 16


def served_metrics(directory: Path) -> tuple[Metric, ...]:
    """Return the current metrics of the gateway and its replicas; none without a gateway.

    Args:
        directory: The directory of the gateway's files.
    """
    try:
        demand = parse_object((directory / "demand.json").read_bytes(), max_bytes=MOST_JSON_BYTES)
        routes = read_routes((directory / "routes.json").read_bytes())
    except (OSError, ValueError, InvalidSpec):
        return ()
    backends = {
        replica.id: f"http://{replica.host}:{replica.port}/metrics"
        for service in routes.services.values()
        for revision in service.revisions
        for replica in revision.replicas
    }
    urls = [("", f"http://127.0.0.1:{demand['admin_port']}/metrics"), *sorted(backends.items())[:MOST_REPLICAS]]
    with ThreadPoolExecutor(min(NUM_THREADS, len(urls))) as threads:
        texts = threads.map(_text, (url for _, url in urls))
    families: dict[str, Metric] = {}
    for (replica, _), text in zip(urls, texts, strict=True):
        for family in _families(text):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = {**sample.labels, "replica": replica} if replica else sample.labels
                merged.add_sample(sample.name, labels, sample.value)
    return tuple(families.values())


def _text(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            text: str = answer.read(MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError):  # it is gone, starts, or has no metrics
        return ""
    return text


def _families(text: str) -> Iterable[Metric]:
    """Yield the metrics in a text, without the times at which counters were created."""
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError:
        return
    yield from (family for family in families if not family.name.endswith("_created"))
