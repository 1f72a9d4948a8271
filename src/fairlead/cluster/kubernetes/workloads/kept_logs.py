"""Reads the last lines of pods' logs that the operator kept: one ConfigMap for each run."""

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.names import segment
from fairlead.text.quantities import describe_memory

Place = tuple[int, int]  # attempt, index


def kept_why(text: str) -> str:
    """Return why lines are missing before those that were kept of a pod."""
    return f"the pod is gone, and of its output the last {describe_memory(len(text.encode()))} were kept"


def kept_lines(client: Client, namespace: str, uid: str) -> dict[Place, str]:
    """Read the kept logs of a run's pods, by attempt and index; none if the user may not read them."""
    try:
        content = client.get(f"/api/v1/namespaces/{segment(namespace)}/configmaps/{segment(map_name(uid))}")
    except ApiError as error:
        if error.status in (403, 404):
            return {}
        raise
    texts = {}
    for key, text in (content.get("data") or {}).items():
        attempt, _, index = key.partition("-")
        if attempt.isdigit() and index.isdigit():
            texts[int(attempt), int(index)] = str(text)
    return texts


def map_name(uid: str) -> str:
    """Return the name of the ConfigMap of a run."""
    return f"fairlead-log-{uid}"
