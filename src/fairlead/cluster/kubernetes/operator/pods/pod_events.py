"""Reads the Events of a pod: messages of kubelet or an autoscaler, which are recorded nowhere else.

Read on demand, not watched: a cluster has many Events, and few are of a pod that matters here.
"""

from collections.abc import Container, Iterator
from itertools import islice
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.names import segment

MOST_EVENTS = 1_000
"""Events that are read of a pod. Whoever may write Events in its namespace writes any number of them."""


def newest(client: Client, pod: PodObject, *, by: Container[str] | None = None) -> dict[str, Any] | None:
    """Return the latest Event; None if there is none, or the namespace is being deleted.

    Args:
        by: Consider only Events of these components; None for all.
    """
    events = of_pod(client, pod)
    return max((event for event in events if by is None or _component(event) in by), key=_version, default=None)


def of_pod(client: Client, pod: PodObject) -> Iterator[dict[str, Any]]:
    """Yield the Events of a pod, at most ``MOST_EVENTS``; none if the namespace is being deleted."""
    namespace, _, _ = pod.key.partition("/")
    query = {"fieldSelector": f"involvedObject.uid={pod.uid}"}
    try:
        yield from islice(client.items(f"/api/v1/namespaces/{segment(namespace)}/events", query), MOST_EVENTS)
    except ApiError as error:
        if error.status not in (403, 404):
            raise


def _component(event: dict[str, Any]) -> str:
    return str((event.get("source") or {}).get("component") or event.get("reportingComponent"))


def _version(event: dict[str, Any]) -> int:
    """Return the version of an Event; a repeated Event gets a newer one."""
    return int(event["metadata"]["resourceVersion"])
