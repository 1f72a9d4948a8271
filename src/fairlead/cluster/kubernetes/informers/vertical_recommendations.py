"""Reads the recommendations of Kubernetes' vertical autoscaler for runs whose requests are not set yet.

A VerticalPodAutoscaler watches pods of some controller, such as a Deployment that serves the same program. Its label
``fairlead.dev/sizes`` names the runs that it applies to. It is read when such a run exists, not watched.

See decision 87.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from fairlead.cluster.isolation import describe
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import quantity
from fairlead.cluster.kubernetes.names import SIZES, segment
from fairlead.policy.kinds.right_sizing import is_unsized
from fairlead.state.snapshot import Recommendation, Workload

API = "/apis/autoscaling.k8s.io/v1"
RESOURCE = "verticalpodautoscalers"

log = logging.getLogger(__name__)


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
    path = f"{API}/{RESOURCE}" if namespace is None else f"{API}/namespaces/{segment(namespace)}/{RESOURCE}"
    try:
        return tuple(_read(client.items(path, {"labelSelector": SIZES})))
    except ApiError as error:
        # A cluster without that autoscaler recommends nothing, nor does one where it may not be read.
        if error.status in (403, 404):
            return ()
        raise


def _read(objects: Iterable[Mapping[str, Any]]) -> Iterator[Recommendation]:
    for content in objects:
        about = content["metadata"]
        try:
            memory, cpu = _amounts(content)
        except (AttributeError, TypeError, ValueError) as error:
            # Tenants may write such objects; one that is malformed recommends nothing, and hides no other.
            log.warning("VerticalPodAutoscaler %s/%s: %s", about["namespace"], about["name"], describe(error))
            continue
        yield Recommendation(
            team=about["namespace"],
            name=about["labels"][SIZES],
            by=f"VerticalPodAutoscaler {about['name']}",
            memory_bytes=int(memory) or None,
            cpu_milli=int(1000 * cpu) or None,
        )


def _amounts(content: Mapping[str, Any]) -> tuple[Decimal, Decimal]:
    """Return memory and CPU of all containers: a pod of ours has one, which does what all of theirs do."""
    recommendations = ((content.get("status") or {}).get("recommendation") or {}).get("containerRecommendations") or ()
    targets = [recommendation.get("target") or {} for recommendation in recommendations]
    memory, cpu = (sum((quantity(target.get(name, 0)) for target in targets), Decimal(0)) for name in ("memory", "cpu"))
    return memory, cpu
