"""Reads the recommendations of Kubernetes' vertical autoscaler for runs whose requests are not set yet.

A VerticalPodAutoscaler watches pods of some controller, such as a Deployment that serves the same program. Its label
``fairlead.dev/sizes`` names the runs that it applies to. It is read when such a run exists, not watched.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import quantity
from fairlead.cluster.kubernetes.names import SIZES
from fairlead.policy.kinds.right_sizing import is_unsized
from fairlead.state.snapshot import Recommendation, Workload

API = "/apis/autoscaling.k8s.io/v1"
RESOURCE = "verticalpodautoscalers"


def recommended_for(client: Client, runs: Iterable[Workload], namespace: str | None) -> tuple[Recommendation, ...]:
    """Return the recommendations of a namespace, or of all, if a run needs any.

    Raises:
        ClusterError: The API server does not answer.
    """
    return read_recommendations(client, namespace) if any(is_unsized(run) for run in runs) else ()


def read_recommendations(client: Client, namespace: str | None) -> tuple[Recommendation, ...]:
    """Return all recommendations.

    Raises:
        ClusterError: The API server does not answer.
    """
    path = f"{API}/{RESOURCE}" if namespace is None else f"{API}/namespaces/{namespace}/{RESOURCE}"
    try:
        return tuple(_read(client.items(path, {"labelSelector": SIZES})))
    except ApiError as error:
        # A cluster without that autoscaler recommends nothing, nor does one where it may not be read.
        if error.status in (403, 404):
            return ()
        raise


def _read(found: Iterable[Mapping[str, Any]]) -> Iterator[Recommendation]:
    for content in found:
        about = content["metadata"]
        told = ((content.get("status") or {}).get("recommendation") or {}).get("containerRecommendations") or ()
        # A pod of ours has one container, which does what all of theirs do.
        memory = sum(quantity((each.get("target") or {}).get("memory", 0)) for each in told)
        cpu = sum(quantity((each.get("target") or {}).get("cpu", 0)) for each in told)
        yield Recommendation(
            team=about["namespace"],
            name=about["labels"][SIZES],
            by=f"VerticalPodAutoscaler {about['name']}",
            memory_bytes=int(memory) or None,
            cpu_milli=int(1000 * cpu) or None,
        )
