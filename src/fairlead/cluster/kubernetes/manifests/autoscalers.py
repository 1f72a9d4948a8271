"""Objects by which a cluster's own autoscaler scales an endpoint. Pure.

The endpoint's kind has the subresource ``scale``, so every autoscaler of Deployments can scale it too.
"""

from collections.abc import Mapping
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.manifests.endpoints import endpoint_name
from fairlead.specs.keys import API_VERSION
from fairlead.specs.serving import AUTOSCALERS, Aggregation, Autoscaler, Serving
from fairlead.state.snapshot import Workload

Object = dict[str, Any]

APIS: Mapping[Autoscaler, tuple[str, str]] = {
    Autoscaler.HPA: ("autoscaling/v2", "horizontalpodautoscalers"),
    Autoscaler.KEDA: ("keda.sh/v1alpha1", "scaledobjects"),
}
"""API and plural of each autoscaler's object."""
# KEDA's polling interval in seconds; its default is 30.
POLL_S = 10


def render_autoscaler(endpoint: Workload[Serving]) -> Object:
    """Render the object by which a cluster's autoscaler scales an endpoint."""
    by = endpoint.spec.scale.by
    assert by is not None, "only such endpoints have one"
    return {
        "apiVersion": APIS[by][0],
        "kind": AUTOSCALERS[by],
        "metadata": {
            "name": endpoint_name(endpoint.spec),
            "namespace": endpoint.spec.team,
            "labels": {
                **names.recommended_labels(names.ENDPOINT_NAME, endpoint.spec.name, "endpoint"),
                names.RUN: endpoint.spec.name, names.ENDPOINT_UID: endpoint.uid,
            },
            "ownerReferences": [names.owner(endpoint)],
        },
        "spec": _hpa(endpoint.spec)
        if by is Autoscaler.HPA
        else {"scaleTargetRef": _target(endpoint.spec), **scaled_by_query(endpoint.spec)},
    }  # fmt: skip


def complaint(content: Mapping[str, Any]) -> str | None:
    """Return why an autoscaler cannot scale, as a clause; None if it can, or has not reported yet."""
    for condition in (content.get("status") or {}).get("conditions") or ():
        if condition.get("type") in ("AbleToScale", "ScalingActive", "Ready") and condition.get("status") == "False":
            message = " ".join(str(condition.get("message") or condition.get("reason") or "").split()).rstrip(".")[:400]
            return f"its {content['kind']} says {message}"
    return None


def _target(spec: Serving) -> Object:
    return {"apiVersion": API_VERSION, "kind": "Serving", "name": spec.name}


def _behavior(spec: Serving) -> Object:
    return {"scaleDown": {"stabilizationWindowSeconds": round(spec.scale.window_s)}}


def _hpa(spec: Serving) -> Object:
    metrics: list[Object] = []
    if spec.scale.cpu is not None:
        target = {"type": "Utilization", "averageUtilization": round(spec.scale.cpu * 100)}
        metrics.append({"type": "Resource", "resource": {"name": "cpu", "target": target}})
    wanted = spec.scale.external_metric
    if wanted is not None:
        metric: Object = {"name": wanted.name}
        if wanted.labels:
            metric["selector"] = {"matchLabels": dict(wanted.labels)}
        # A sum is divided among the replicas; a mean is compared directly.
        kind, field = ("AverageValue", "averageValue") if wanted.aggregation is Aggregation.SUM else ("Value", "value")
        quantity = f"{round(wanted.target * 1000)}m"
        metrics.append({"type": "External", "external": {"metric": metric, "target": {"type": kind, field: quantity}}})
    return {
        "scaleTargetRef": _target(spec),
        "minReplicas": max(1, spec.replicas),
        "maxReplicas": spec.most,
        "metrics": metrics,
        "behavior": _behavior(spec),
    }


def scaled_by_query(spec: Serving) -> Object:
    """Return the fields of a ScaledObject except its target."""
    query = spec.scale.prometheus
    assert query is not None, "KEDA goes by a query"
    trigger = {
        "type": "prometheus",
        "metricType": "AverageValue" if query.aggregation is Aggregation.SUM else "Value",
        "metadata": {
            "serverAddress": query.url,
            "query": query.query,
            "threshold": f"{query.target:g}",
            # A response without a series counts as missing, not as zero.
            "ignoreNullValues": "false",
        },
    }
    return {
        "pollingInterval": POLL_S,
        "cooldownPeriod": round(spec.scale.idle_s),
        "minReplicaCount": spec.replicas,
        "maxReplicaCount": spec.most,
        "triggers": [trigger],
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(spec)}},
    }
