"""Parts that an installation's Deployments share: no privileges, replicas on separate nodes, HTTP probes."""

from collections.abc import Mapping
from typing import Any


def container_security() -> dict[str, Any]:
    """Return the security context of a container without privileges that writes only to its volumes."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def pod_security(user: int) -> dict[str, Any]:
    """Return the security context of a pod that runs as a numeric user and the group of the same number."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def nodes_apart(selector: Mapping[str, str]) -> dict[str, Any]:
    """Return an affinity that puts pods with these labels on separate nodes if there are enough."""
    apart = {"labelSelector": {"matchLabels": selector}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]
        }
    }


def http_get(path: str, port: str) -> dict[str, Any]:
    """Return a probe's action that requests a path from a named port."""
    return {"httpGet": {"path": path, "port": port}}
