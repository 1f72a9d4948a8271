"""Parts that an installation's Deployments share: no privileges, replicas on separate nodes, HTTP probes."""

from collections.abc import Mapping
from typing import Any

from fairlead.cluster.kubernetes.names import MANAGED_BY, MANAGER, recommended_labels


def with_recommended_labels(content: dict[str, Any], component: str) -> dict[str, Any]:
    """Return an object of the installation, and a Deployment's pods, with the labels that Kubernetes recommends.

    Those that an object has stay. Kinds get no ``managed-by``, by which what belongs to a release is selected.
    """
    more = recommended_labels(f"{MANAGER}-{component}", MANAGER, component)
    if content["kind"] == "CustomResourceDefinition":
        del more[MANAGED_BY]
    content = _labelled(content, more)
    if content["kind"] != "Deployment":
        return content
    spec = content["spec"]
    return {**content, "spec": {**spec, "template": _labelled(spec["template"], more)}}


def _labelled(content: dict[str, Any], more: Mapping[str, str]) -> dict[str, Any]:
    metadata = content["metadata"]
    return {**content, "metadata": {**metadata, "labels": {**more, **metadata.get("labels", {})}}}


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
