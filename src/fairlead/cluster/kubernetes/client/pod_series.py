"""Reads the metrics of a run over time from the logs of its pods' reporters."""

from collections.abc import Iterator
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.pod_owner import is_pod_of
from fairlead.cluster.kubernetes.manifests.pods import REPORTER
from fairlead.cluster.kubernetes.names import ATTEMPT, INDEX, RUN_UID, segment
from fairlead.runtime.reporting import FORM
from fairlead.state.series import Point
from fairlead.untrusted_json import items, parse_object

# A thousand points take about 150 KB, including the rest of the reports.
MOST_BYTES = 16 * 1024 * 1024
UNREADABLE = frozenset({400, 403, 404, 500, 502, 503})
"""Statuses of logs that are gone, not there yet, unreachable, or not readable by this user."""


def read_series(client: Client, namespace: str, uid: str) -> dict[str, tuple[Point, ...]]:
    """Return the points of each metric, by attempt and time; those of deleted pods are missing."""
    pods = f"/api/v1/namespaces/{segment(namespace)}/pods"
    try:
        members = [
            (int(pod["metadata"]["labels"][ATTEMPT]), str(pod["metadata"]["name"]))
            for pod in client.items(pods, {"labelSelector": f"{RUN_UID}={uid},{INDEX}=0"})
            if is_pod_of(pod["metadata"], uid)
        ]
    except ApiError as error:
        if error.status != 403:
            raise
        return {}
    series: dict[str, list[Point]] = {}
    for attempt, name in sorted(members):
        try:
            text = client.text(f"{pods}/{segment(name)}/log", {"container": REPORTER, "limitBytes": str(MOST_BYTES)})
        except ApiError as error:
            if error.status not in UNREADABLE:
                raise
            continue
        for metric, point in _points(text, attempt):
            series.setdefault(metric, []).append(point)
    return {metric: tuple(points) for metric, points in series.items()}


def _points(text: str, attempt: int) -> Iterator[tuple[str, Point]]:
    """Yield the points in a reporter's log; damaged or foreign lines are skipped."""
    for line in text.splitlines():
        for point in items(_object(line).get("points")):
            try:
                at, step, values = point
                at, step = float(at), None if step is None else int(step)
                metrics = [(str(name), float(value)) for name, value in values.items()]
            except (ValueError, TypeError, AttributeError, OverflowError):
                continue
            for name, value in metrics:
                yield name, Point(at=at, step=step, value=value, attempt=attempt)


def _object(line: str) -> dict[str, Any]:
    try:
        content = parse_object(line, max_bytes=MOST_BYTES)
    except ValueError:
        return {}
    return content if content.get("form") == FORM else {}
