"""KServe in Standard mode: an InferenceService with a custom container, from which it creates a Deployment."""

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.engines.endpoint_port import Handover, environment, falsity, labels, metadata
from fairlead.cluster.kubernetes.engines.port import Object, condition
from fairlead.cluster.kubernetes.engines.server_pod import PORT, rolled, server_pod
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.state.engine_endpoints import EngineEndpoint

CONTAINER = "kserve-container"
"""The name that KServe requires for the server's container."""
MODEL_DIR = "/mnt/models"
"""Directory into which KServe's own init container downloads ``STORAGE_URI``."""


class KServe:
    """The port to KServe, 0.16 and later; earlier versions have another name for the mode."""

    engine = EndpointEngine.KSERVE
    api, kind, plural = "serving.kserve.io/v1beta1", "InferenceService", "inferenceservices"
    made = ("apps/v1", "deployments")

    def render(self, handover: Handover) -> Object:
        """Render one InferenceService; KEDA scales it by a query, or nothing does if its size is fixed."""
        spec = handover.target.spec
        about = metadata(handover, self.engine)
        about["annotations"] = {
            "serving.kserve.io/deploymentMode": "Standard",
            "serving.kserve.io/autoscalerClass": "none" if spec.most_replicas is None else "keda",
        }
        surge = spec.rollout.max_surge
        pod = server_pod(handover, _variables(handover), container=CONTAINER, port="http1")
        predictor: Object = {
            "minReplicas": spec.replicas,
            "maxReplicas": spec.most,
            **pod["metadata"],
            "labels": {**pod["metadata"].get("labels", {}), **labels(handover.workload, handover.target, self.engine)},
            "deploymentStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 0 if surge else 1},
            },
            **pod["spec"],
        }
        if spec.scale.prometheus is not None and spec.most_replicas is not None:
            query = spec.scale.prometheus
            metric = {"backend": "prometheus", "serverAddress": query.url, "query": query.query}
            target = {"type": "Value", "value": f"{query.target:g}"}
            external = {"metric": metric, "target": target}
            predictor["autoScaling"] = {"metrics": [{"type": "External", "external": external}]}
        return {"apiVersion": self.api, "kind": self.kind, "metadata": about, "spec": {"predictor": predictor}}

    def observe(self, content: Mapping[str, Any], made: Iterable[Mapping[str, Any]]) -> EngineEndpoint:
        """Read its condition and its Deployment's roll-out, because the condition also holds for an old revision."""
        revision = content["metadata"].get("labels", {}).get(names.REVISION, "")
        roll = rolled(made, revision)
        is_ready = condition(content, "Ready") is not None
        has_rolled = is_ready and roll.is_over
        message = falsity(content, "Ready") or (roll.message if is_ready or roll.is_told else "")
        address = (content.get("status") or {}).get("address") or {}
        return EngineEndpoint(
            kind=self.kind, is_there=True, applied_revision=revision, ready=has_rolled,
            url=address.get("url") or (content.get("status") or {}).get("url"),
            replicas=roll.ready, message="" if has_rolled else message,
        )  # fmt: skip


def _variables(handover: Handover) -> dict[str, str]:
    """Return the server's variables; KServe downloads a model that is a URL."""
    model = handover.target.spec.model or ""
    is_url = "://" in model
    variables = environment(handover.target, model=MODEL_DIR if is_url else model)
    return {**variables, "PORT": str(PORT), **({"STORAGE_URI": model} if is_url else {})}


DRIVER = KServe()
