"""The web page in the cluster: `fairlead ui --sign-in` behind a Service, without rights or credentials of its own.

It uses each reader's own token on the API server, so that RBAC decides. The pod gets the API server's certificate and
its namespace at the usual path, without the account's token.

See decision 41.
"""

from typing import Any

from fairlead.cluster.kubernetes.manifests.deployments import container_security, http_get, nodes_apart, pod_security
from fairlead.cluster.kubernetes.names import MANAGED_BY, MANAGER

PAGE = "fairlead-page"
PAGE_PORT = 8080
PORT = 80
REPLICAS = 2
PLACE = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Directory in which clients in a pod look for the certificate and the namespace."""
_SELECTOR = {"app.kubernetes.io/name": PAGE}


def render_page(image: str, namespace: str, user: int) -> list[dict[str, Any]]:
    """Render account, NetworkPolicy, Service and Deployment of the page.

    Args:
        user: Numeric user and group that it runs as.
    """
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(namespace), **_NO_TOKEN},
        _network_policy(namespace),
        _service(namespace),
        _deployment(image, namespace, user),
    ]


_NO_TOKEN = {"automountServiceAccountToken": False}


def _metadata(namespace: str) -> dict[str, Any]:
    return {"name": PAGE, "namespace": namespace, "labels": {**_SELECTOR, MANAGED_BY: MANAGER}}


def _service(namespace: str) -> dict[str, Any]:
    ports = [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}]
    spec = {"selector": _SELECTOR, "ports": ports, "type": "ClusterIP"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(namespace), "spec": spec}


def _network_policy(namespace: str) -> dict[str, Any]:
    """Allow ingress for the page, and egress to DNS and the API server, whose address no policy can name."""
    dns = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    api = [{"port": port, "protocol": "TCP"} for port in (443, 6443)]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(namespace),
        "spec": {
            "podSelector": {"matchLabels": _SELECTOR},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": [{"port": PAGE_PORT, "protocol": "TCP"}]}],
            "egress": [{"ports": dns}, {"ports": api}],
        },
    }


def _deployment(image: str, namespace: str, user: int) -> dict[str, Any]:
    place = {
        "name": "cluster",
        "projected": {
            "sources": [
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ]
        },
    }
    page = {
        "name": "page",
        "image": image,
        "command": ["fairlead"],
        "args": ["ui", "--cluster", "kubernetes", "--sign-in", "--listen", f"0.0.0.0:{PAGE_PORT}"],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "ports": [{"name": "http", "containerPort": PAGE_PORT}],
        "livenessProbe": {**http_get("/livez", "http"), "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**http_get("/readyz", "http"), "periodSeconds": 5},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "cluster", "mountPath": PLACE, "readOnly": True},
        ],
    }
    pod = {
        "serviceAccountName": PAGE,
        **_NO_TOKEN,
        "enableServiceLinks": False,
        "securityContext": pod_security(user),
        "affinity": nodes_apart(_SELECTOR),
        "containers": [page],
        "volumes": [{"name": "tmp", "emptyDir": {}}, place],
    }
    metadata = _metadata(namespace)
    spec = {
        "replicas": REPLICAS,
        "selector": {"matchLabels": _SELECTOR},
        "template": {"metadata": {"labels": metadata["labels"]}, "spec": pod},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
