"""Knative Serving: a Service whose revisions have Fairlead's names, so that traffic can be split among them.

See decision 83.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.cluster.contract import secret_paths
from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.engines.endpoint_port import (
    Handover,
    Version,
    digest,
    environment,
    falsity,
    labels,
    metadata,
)
from fairlead.cluster.kubernetes.engines.port import Object, condition
from fairlead.cluster.kubernetes.engines.server_pod import PORT, secret_fields, shell_command
from fairlead.cluster.kubernetes.manifests.endpoints import endpoint_name
from fairlead.cluster.kubernetes.manifests.pod_environment import SECRETS_DIR
from fairlead.cluster.kubernetes.manifests.pods import SERVER_SECURITY, literal, server_resources
from fairlead.cluster.kubernetes.manifests.secret_volumes import OF_ALL, secret_volumes
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.state.engine_endpoints import EngineEndpoint

SCALING = "autoscaling.knative.dev"


class Knative:
    """The port to Knative Serving."""

    engine = EndpointEngine.KNATIVE
    api, kind, plural = "serving.knative.dev/v1", "Service", "services"
    made = ("serving.knative.dev/v1", "revisions")

    def render(self, handover: Handover) -> Object:
        """Render one Service with the target's template; the revision beside it already exists."""
        template = _template(handover, handover.target)
        traffic = [{"revisionName": template["metadata"]["name"], "percent": handover.percent}]
        if handover.beside is not None:
            other = _template(handover, handover.beside)["metadata"]["name"]
            traffic.append({"revisionName": other, "percent": 100 - handover.percent})
        return {
            "apiVersion": self.api,
            "kind": self.kind,
            "metadata": metadata(handover, self.engine),
            "spec": {"template": template, "traffic": traffic},
        }

    def observe(self, content: Mapping[str, Any], made: Iterable[Mapping[str, Any]]) -> EngineEndpoint:
        """Read its condition, if that is of the current generation; replicas are those of all revisions."""
        status = content.get("status") or {}
        is_current = status.get("observedGeneration") == content["metadata"].get("generation")
        is_ready = is_current and condition(content, "Ready") is not None
        message = "" if is_ready or not is_current else falsity(content)
        running = sum(((item.get("status") or {}).get("actualReplicas") or 0) for item in made)
        return EngineEndpoint(
            kind=f"Knative {self.kind}", is_there=True,
            applied_revision=content["metadata"].get("labels", {}).get(names.REVISION, ""), ready=is_ready,
            url=(status.get("address") or {}).get("url") or status.get("url"), replicas=running, message=message,
        )  # fmt: skip


def _template(handover: Handover, version: Version) -> Object:
    """Return a revision's template. Knative revisions are immutable, so the name contains a hash of the content."""
    spec = version.spec
    annotations = {
        f"{SCALING}/class": f"kpa.{SCALING}",
        f"{SCALING}/metric": "concurrency",
        f"{SCALING}/min-scale": str(spec.replicas),
        f"{SCALING}/max-scale": str(spec.most),
        f"{SCALING}/target": f"{spec.scale.concurrency:g}",
        # 100 % of the target, rather than Knative's default share of it.
        f"{SCALING}/target-utilization-percentage": "100",
        f"{SCALING}/window": f"{spec.scale.window_s:g}s",
        f"{SCALING}/scale-to-zero-pod-retention-period": f"{spec.scale.idle_s:g}s",
        "serving.knative.dev/progress-deadline": f"{spec.ready_within_s:g}s",
    }
    env = {**environment(version, model=spec.model or ""), **secret_paths(spec.secrets, SECRETS_DIR)}
    container: Object = {
        "name": "user-container",
        "image": spec.image,
        "command": shell_command(spec),
        "env": [{"name": name, "value": literal(value)} for name, value in env.items()],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": spec.probe_path}, "successThreshold": 1},
        "resources": server_resources(spec.replica(), handover.device),
        "securityContext": SERVER_SECURITY,
        **secret_fields(spec.secrets),
    }
    pod: Object = {
        "timeoutSeconds": max(1, round(spec.timeout_s)),
        "containerConcurrency": spec.max_concurrency or 0,
        "containers": [container],
        **({"volumes": volumes} if (volumes := secret_volumes(spec.secrets, {}, OF_ALL)) else {}),
    }
    template: Object = {
        "metadata": {"labels": labels(handover.workload, version, EndpointEngine.KNATIVE), "annotations": annotations},
        "spec": pod,
    }
    template["metadata"]["name"] = f"{endpoint_name(handover.workload.spec)}-{version.name}-{digest(template)[:5]}"
    return template


DRIVER = Knative()
