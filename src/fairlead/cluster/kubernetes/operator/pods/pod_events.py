"""The newest Event of a pod: what kubelet or an autoscaler said of it last, which nothing else tells.

Asked for, not watched: Events of a whole cluster are many, and few are of a pod that somebody waits for.
"""

from collections.abc import Container
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import PodObject


def newest(client: Client, pod: PodObject, *, by: Container[str] | None = None) -> dict[str, Any] | None:
    """The Event that was told last; None where there is none, or the namespace is on its way out.

    Args:
        by: Only what these components say; None for all.
    """
    namespace, _, _ = pod.key.partition("/")
    query = {"fieldSelector": f"involvedObject.uid={pod.uid}"}
    try:
        events = list(client.items(f"/api/v1/namespaces/{namespace}/events", query))
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise
    return max((event for event in events if by is None or _component(event) in by), key=_version, default=None)


def _component(event: dict[str, Any]) -> str:
    return str((event.get("source") or {}).get("component") or event.get("reportingComponent"))


def _version(event: dict[str, Any]) -> int:
    """An Event that is told again is younger for it."""
    return int(event["metadata"]["resourceVersion"])
