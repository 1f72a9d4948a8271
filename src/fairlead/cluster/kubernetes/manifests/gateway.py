"""The gateways of endpoints: a Deployment for tenants' requests, in a namespace of its own.

Its account may watch the routes and write ConfigMaps in that namespace, and ask the API server who may read metrics.
The operator's account may read and write ConfigMaps there too, through which the two communicate.
"""

from typing import Any

from fairlead.cluster.kubernetes.manifests.deployments import container_security, http_get, nodes_apart, pod_security
from fairlead.cluster.kubernetes.manifests.pod_environment import MASTER_PORT
from fairlead.cluster.kubernetes.manifests.roles import (
    EVERYBODY,
    GATEWAY_RULES,
    GATEWAY_SEEN,
    GATEWAY_SEEN_RULES,
    OPERATOR,
    OPERATOR_AT_GATEWAY,
    OPERATOR_AT_GATEWAY_RULES,
    render_reviewer,
    render_role,
    render_role_binding,
)
from fairlead.cluster.kubernetes.names import GATEWAY, GATEWAY_NAMESPACE, MANAGED_BY, MANAGER
from fairlead.gateway.proxying.programs import PYTHON

GATEWAY_PORT, METRICS_PORT = 8700, 8701
PORT = 80
REPLICAS = 2
LEAVE_S = 5
"""Seconds for which a stopping gateway continues to answer, until no client routes to it any more."""
GRACE_S = 60
_SELECTOR = {"app.kubernetes.io/name": GATEWAY}


def render_gateway(
    image: str, operator_namespace: str, user: int, replicas: int = REPLICAS, proxy: str = PYTHON
) -> list[dict[str, Any]]:
    """Render all objects of the gateways, their namespace first.

    Args:
        operator_namespace: Namespace of the operator's account.
        user: Numeric user and group that they run as.
        proxy: Program that takes requests to replicas; the image has it.
    """
    operator = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": operator_namespace}
    account = {"kind": "ServiceAccount", "name": GATEWAY, "namespace": GATEWAY_NAMESPACE}
    return [
        _namespace(),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata()},
        render_role(GATEWAY, GATEWAY_NAMESPACE, GATEWAY_RULES),
        render_role_binding(GATEWAY, GATEWAY_NAMESPACE, account),
        render_reviewer(account),
        render_role(OPERATOR_AT_GATEWAY, GATEWAY_NAMESPACE, OPERATOR_AT_GATEWAY_RULES),
        render_role_binding(OPERATOR_AT_GATEWAY, GATEWAY_NAMESPACE, operator),
        render_role(GATEWAY_SEEN, GATEWAY_NAMESPACE, GATEWAY_SEEN_RULES),
        render_role_binding(GATEWAY_SEEN, GATEWAY_NAMESPACE, EVERYBODY),
        _network_policy(),
        _disruption_budget(),
        _service(),
        _deployment(image, user, replicas, proxy),
    ]


def _metadata() -> dict[str, Any]:
    return {"name": GATEWAY, "namespace": GATEWAY_NAMESPACE, "labels": {**_SELECTOR, MANAGED_BY: MANAGER}}


def _namespace() -> dict[str, Any]:
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": GATEWAY_NAMESPACE, "labels": {MANAGED_BY: MANAGER, **levels}},
    }


def _service() -> dict[str, Any]:
    """Render the Service of all endpoints by path, as used by an Ingress: /NAMESPACE/NAME/."""
    ports = [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}]
    spec = {"selector": _SELECTOR, "ports": ports, "type": "ClusterIP"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(), "spec": spec}


def _disruption_budget() -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _SELECTOR}},
    }


def _network_policy() -> dict[str, Any]:
    """Allow ingress for requests, and egress to replicas, DNS and API server, whose address no policy can name."""
    dns = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(),
        "spec": {
            "podSelector": {"matchLabels": _SELECTOR},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": [{"port": port, "protocol": "TCP"} for port in (GATEWAY_PORT, METRICS_PORT)]}],
            "egress": [
                {"ports": dns},
                {"ports": [{"port": port, "protocol": "TCP"} for port in (443, 6443)]},
                {"to": [{"namespaceSelector": {}}], "ports": [{"port": MASTER_PORT, "protocol": "TCP"}]},
            ],
        },
    }


def _deployment(image: str, user: int, replicas: int, proxy: str) -> dict[str, Any]:
    paths = {
        "POD_NAME": "metadata.name", "POD_UID": "metadata.uid", "POD_NAMESPACE": "metadata.namespace",
        "POD_IP": "status.podIP",
    }  # fmt: skip
    gateway = {
        "name": "gateway",
        "image": image,
        "command": ["python3", "-m", "fairlead.gateway.in_cluster"],
        "args": [
            "--directory", "/tmp/gateway", "--port", str(GATEWAY_PORT), "--grace", str(GRACE_S - LEAVE_S - 5),
            "--metrics-port", str(METRICS_PORT),
            *(() if proxy == PYTHON else ("--proxy", proxy)),
        ],
        "env": [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()],
        "ports": [
            {"name": "http", "containerPort": GATEWAY_PORT}, {"name": "metrics", "containerPort": METRICS_PORT}
        ],
        "livenessProbe": {**http_get("/-/healthz", "http"), "periodSeconds": 10, "failureThreshold": 6},
        # It does not listen before it has routes.
        "startupProbe": {**http_get("/-/healthz", "http"), "periodSeconds": 1, "failureThreshold": 86_400},
        "readinessProbe": {**http_get("/-/healthz", "http"), "periodSeconds": 1, "failureThreshold": 3},
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "lifecycle": {"preStop": {"exec": {"command": ["python3", "-c", f"import time; time.sleep({LEAVE_S})"]}}},
        "securityContext": container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }  # fmt: skip
    pod = {
        "serviceAccountName": GATEWAY,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": pod_security(user),
        "affinity": nodes_apart(_SELECTOR),
        "containers": [gateway],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    metadata = _metadata()
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": _SELECTOR},
            # A new pod starts before an old one stops, so that there are never fewer.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": metadata["labels"]}, "spec": pod},
        },
    }
