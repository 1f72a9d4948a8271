"""Seldon Core 1: a SeldonDeployment with a custom container, which becomes a Deployment without an orchestrator.

See decision 110.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.engines.endpoint_port import Handover, environment, falsity, labels, metadata
from fairlead.cluster.kubernetes.engines.port import Object
from fairlead.cluster.kubernetes.engines.server_pod import PORT, rolled, server_pod
from fairlead.cluster.kubernetes.manifests.autoscalers import scaled_by_query
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.serving import Serving
from fairlead.state.engine_endpoints import EngineEndpoint

CONTAINER = "server"
PREDICTOR = "default"
MOST_DRAIN_S = 10.0
"""Most seconds for which a stopping server still answers, until clients notice; at most half of its grace period."""


class Seldon:
    """The port to Seldon Core 1, 1.15 and later."""

    engine = EndpointEngine.SELDON
    api, kind, plural = "machinelearning.seldon.io/v1", "SeldonDeployment", "seldondeployments"
    made = ("apps/v1", "deployments")

    def render(self, handover: Handover) -> Object:
        """Render one SeldonDeployment with one predictor; KEDA scales it if it has a query."""
        spec = handover.target.spec
        own = labels(handover.workload, handover.target, self.engine)
        pod = server_pod(handover, _variables(handover), container=CONTAINER, port="http")
        for container in pod["spec"]["containers"]:
            if container["name"] == CONTAINER:
                container |= _life(spec)
        component: Object = {
            "metadata": {**pod["metadata"], "labels": {**pod["metadata"].get("labels", {}), **own}},
            "spec": pod["spec"],
        }
        if spec.scale.prometheus is not None and spec.most_replicas is not None:
            component["kedaSpec"] = scaled_by_query(spec)
        predictor = {
            "name": PREDICTOR,
            "annotations": {"seldon.io/no-engine": "true"},
            "labels": own,
            "replicas": spec.replicas,
            "progressDeadlineSeconds": math.ceil(spec.ready_within_s),
            "graph": {
                "name": CONTAINER,
                "type": "MODEL",
                "endpoint": {"type": "REST", "httpPort": PORT},
                "children": [],
            },
            "componentSpecs": [component],
        }
        about = metadata(handover, self.engine)
        return {"apiVersion": self.api, "kind": self.kind, "metadata": about, "spec": {"predictors": [predictor]}}

    def observe(self, content: Mapping[str, Any], made: Iterable[Mapping[str, Any]]) -> EngineEndpoint:
        """Read its state and its Deployment's roll-out, because the state may still be that of an old revision."""
        status = content.get("status") or {}
        revision = content["metadata"].get("labels", {}).get(names.REVISION, "")
        roll, state = rolled(made, revision), status.get("state")
        is_ready = state == "Available" and roll.is_over
        refused = " ".join(str(status.get("description") or "").split()).rstrip(".")[:400]
        problem = refused if state == "Failed" else ""
        message = problem or (roll.message if roll.is_told else "") or falsity(content)
        if not message and state == "Available":
            message = roll.message
        return EngineEndpoint(
            kind=self.kind, is_there=True, applied_revision=revision, ready=is_ready, url=_url(status),
            replicas=roll.ready, message="" if is_ready else message,
        )  # fmt: skip


def _variables(handover: Handover) -> dict[str, str]:
    return {**environment(handover.target, model=handover.target.spec.model or ""), "PORT": str(PORT)}


def _life(spec: Serving) -> Object:
    """Render a server's liveness probe and preStop hook, for which Seldon's defaults are a minute and ten seconds."""
    drain_s = math.floor(min(MOST_DRAIN_S, spec.grace_s / 2))
    return {
        "livenessProbe": {
            "tcpSocket": {"port": PORT},
            "initialDelaySeconds": math.ceil(spec.ready_within_s),
            "periodSeconds": 10,
        },
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", f"sleep {drain_s}"]}}},
    }


def _url(status: Mapping[str, Any]) -> str | None:
    """Return the address of its Service without Seldon's own path, whose protocol Fairlead's servers do not use."""
    url = (status.get("address") or {}).get("url")
    if not url:
        return None
    parts = urlsplit(str(url))
    return f"{parts.scheme}://{parts.netloc}"


DRIVER = Seldon()
