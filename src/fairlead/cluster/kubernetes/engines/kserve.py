"""KServe in Standard mode: an InferenceService with a container of ours, of which it makes a Deployment."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.engines.endpoint_port import (
    Handover,
    environment,
    falsity,
    labels,
    metadata,
)
from fairlead.cluster.kubernetes.engines.port import Object, condition
from fairlead.cluster.kubernetes.manifests.affinities import among
from fairlead.cluster.kubernetes.manifests.overlays import lay_over
from fairlead.cluster.kubernetes.manifests.pods import SERVER_SECURITY, literal, server_resources
from fairlead.policy.placement.node_eligibility import tolerations
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.overlay import RANKS
from fairlead.specs.serving import Serving
from fairlead.state.engine_endpoints import EngineEndpoint

CONTAINER = "kserve-container"
"""The name by which KServe looks for the server's container."""
PORT = 8080
MODEL_DIR = "/mnt/models"
"""The place to which KServe's own init container brings what ``STORAGE_URI`` names."""


class KServe:
    """The port to KServe, 0.16 and later: those before have another word for the mode."""

    engine = EndpointEngine.KSERVE
    api, kind, plural = "serving.kserve.io/v1beta1", "InferenceService", "inferenceservices"
    made = ("apps/v1", "deployments")

    def render(self, handover: Handover) -> Object:
        """One InferenceService; KEDA scales it where it goes by a query, and nobody where it does not vary."""
        spec = handover.target.spec
        about = metadata(handover, self.engine)
        about["annotations"] = {
            "serving.kserve.io/deploymentMode": "Standard",
            "serving.kserve.io/autoscalerClass": "none" if spec.most_replicas is None else "keda",
        }
        surge = spec.rollout.max_surge
        predictor: Object = {
            "minReplicas": spec.replicas,
            "maxReplicas": spec.most,
            "labels": labels(handover.workload, handover.target, self.engine),
            "deploymentStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 0 if surge else 1},
            },
            **_pod(handover),
        }
        if spec.scale.prometheus is not None and spec.most_replicas is not None:
            query = spec.scale.prometheus
            metric = {"backend": "prometheus", "serverAddress": query.url, "query": query.query}
            target = {"type": "Value", "value": f"{query.target:g}"}
            external = {"metric": metric, "target": target}
            predictor["autoScaling"] = {"metrics": [{"type": "External", "external": external}]}
        return {"apiVersion": self.api, "kind": self.kind, "metadata": about, "spec": {"predictor": predictor}}

    def observe(self, content: Mapping[str, Any], made: Iterable[Mapping[str, Any]]) -> EngineEndpoint:
        """By its condition, and by the Deployment that rolls: the condition is true of an old revision as of a new."""
        given = content["metadata"].get("labels", {}).get(names.REVISION, "")
        deployment: Mapping[str, Any] = next(iter(made), {})
        status = deployment.get("status") or {}
        of = (deployment.get("metadata") or {}).get("labels", {}).get(names.REVISION)
        replicas, updated = status.get("replicas") or 0, status.get("updatedReplicas") or 0
        is_seen = status.get("observedGeneration") == (deployment.get("metadata") or {}).get("generation")
        available = status.get("availableReplicas") or 0
        has_rolled = of == given and is_seen and replicas == updated and available > 0
        is_ready = condition(content, "Ready") is not None
        message = falsity(content, "Ready") or falsity(deployment, "Progressing") or falsity(deployment, "Available")
        if not message and is_ready and not has_rolled:
            message = f"{updated} of its pods {'is' if updated == 1 else 'are'} of {given}, {available} available"
        address = (content.get("status") or {}).get("address") or {}
        return EngineEndpoint(
            kind=self.kind, is_there=True, given=given, ready=is_ready and has_rolled,
            url=address.get("url") or (content.get("status") or {}).get("url"),
            replicas=status.get("readyReplicas") or 0, message="" if is_ready and has_rolled else message,
        )  # fmt: skip


def _pod(handover: Handover) -> Object:
    """The fields of a pod in a predictor, with the overlay over them."""
    spec = handover.target.spec
    container: Object = {
        "name": RANKS,
        "image": spec.image,
        "command": shell_command(spec),
        "env": [{"name": name, "value": literal(value)} for name, value in _variables(handover).items()],
        "ports": [{"name": "http1", "containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": spec.probe_path, "port": PORT}},
        "resources": server_resources(spec.replica(), handover.device),
        "securityContext": SERVER_SECURITY,
    }
    pod: Object = {
        "terminationGracePeriodSeconds": math.ceil(spec.grace_s),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
    }
    if tolerated := tolerations(spec.replica()):
        pod["tolerations"] = tolerated
    laid: Object = lay_over({"metadata": {}, "spec": pod}, spec.kubernetes)["spec"]
    if handover.models:
        affinity = laid.get("affinity") or {}
        laid["affinity"] = {**affinity, "nodeAffinity": among(affinity.get("nodeAffinity") or {}, handover.models)}
    for each in laid["containers"]:
        if each["name"] == RANKS:
            each["name"] = CONTAINER
    return laid


def _variables(handover: Handover) -> dict[str, str]:
    """With a model that is a URL brought by KServe."""
    model = handover.target.spec.model or ""
    is_url = "://" in model
    found = environment(handover.target, model=MODEL_DIR if is_url else model)
    return {**found, "PORT": str(PORT), **({"STORAGE_URI": model} if is_url else {})}


def shell_command(spec: Serving) -> list[str]:
    """The server's command under a shell, which gives way to a single one so that it hears of its end."""
    run = spec.replica().run
    is_single = not any(mark in run for mark in "\n;&|=")
    return ["sh", "-c", f"exec {run}" if is_single else run]


DRIVER = KServe()
