"""Parts that the Deployments of an installation share: no privileges, replicas on nodes apart, probes over HTTP."""

from collections.abc import Mapping
from typing import Any


def container_security() -> dict[str, Any]:
    """The security context of a container that needs no privileges and writes to its volumes alone."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def pod_security(user: int) -> dict[str, Any]:
    """The security context of a pod that runs as a numeric user and the group of that number."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def nodes_apart(selector: Mapping[str, str]) -> dict[str, Any]:
    """The affinity of pods with these labels that are on a node each, where there are enough."""
    apart = {"labelSelector": {"matchLabels": selector}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]
        }
    }


def http_get(path: str, port: str) -> dict[str, Any]:
    """The action of a probe that asks a named port for a path."""
    return {"httpGet": {"path": path, "port": port}}
