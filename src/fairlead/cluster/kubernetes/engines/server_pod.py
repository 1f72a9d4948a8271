"""The pod of a server for engines that make a Deployment of it, KServe and Seldon; and how far that has rolled."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.engines.endpoint_port import Handover, falsity
from fairlead.cluster.kubernetes.engines.port import Object
from fairlead.cluster.kubernetes.manifests.affinities import among
from fairlead.cluster.kubernetes.manifests.overlays import lay_over
from fairlead.cluster.kubernetes.manifests.pods import SERVER_SECURITY, literal, server_resources
from fairlead.policy.placement.node_eligibility import tolerations
from fairlead.specs.overlay import RANKS
from fairlead.specs.serving import Serving

PORT = 8080


def server_pod(handover: Handover, env: Mapping[str, str], *, container: str, port: str) -> Object:
    """The metadata and the spec of a pod, with the overlay over them.

    Args:
        env: The variables of the server.
        container: The name by which the engine looks for the server's container.
        port: The name of its port there.
    """
    spec = handover.target.spec
    server: Object = {
        "name": RANKS,
        "image": spec.image,
        "command": shell_command(spec),
        "env": [{"name": name, "value": literal(value)} for name, value in env.items()],
        "ports": [{"name": port, "containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": spec.probe_path, "port": PORT}},
        "resources": server_resources(spec.replica(), handover.device),
        "securityContext": SERVER_SECURITY,
    }
    pod: Object = {
        "terminationGracePeriodSeconds": math.ceil(spec.grace_s),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [server],
    }
    if tolerated := tolerations(spec.replica()):
        pod["tolerations"] = tolerated
    found = lay_over({"metadata": {}, "spec": pod}, spec.kubernetes)
    laid: Object = found["spec"]
    if handover.models:
        affinity = laid.get("affinity") or {}
        laid["affinity"] = {**affinity, "nodeAffinity": among(affinity.get("nodeAffinity") or {}, handover.models)}
    for each in laid["containers"]:
        if each["name"] == RANKS:
            each["name"] = container
    return found


def shell_command(spec: Serving) -> list[str]:
    """The server's command under a shell, which gives way to a single one so that it hears of its end."""
    run = spec.replica().run
    is_single = not any(mark in run for mark in "\n;&|=")
    return ["sh", "-c", f"exec {run}" if is_single else run]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """Progress of the roll-out of a revision by the Deployment that an engine made.

    Attributes:
        is_over: All of its pods are of the revision, and some of them serve.
        ready: Pods that serve, of whichever revision.
        message: How far it is, as a clause, or why it does not go on.
        is_told: The message is the Deployment's own.
    """

    is_over: bool
    ready: int
    message: str
    is_told: bool


def rolled(made: Iterable[Mapping[str, Any]], revision: str) -> Rolled:
    """Tell how far what was made has rolled to a revision."""
    deployment: Mapping[str, Any] = next(iter(made), {})
    about, status = deployment.get("metadata") or {}, deployment.get("status") or {}
    of = (about.get("labels") or {}).get(names.REVISION)
    replicas, updated = status.get("replicas") or 0, status.get("updatedReplicas") or 0
    is_seen = status.get("observedGeneration") == about.get("generation")
    available = status.get("availableReplicas") or 0
    told = falsity(deployment, "Progressing") or falsity(deployment, "Available")
    counted = f"{updated} of its pods {'is' if updated == 1 else 'are'} of {revision}, {available} available"
    if of is not None and of != revision:
        counted = f"its Deployment is of {of} still"
    return Rolled(
        is_over=of == revision and is_seen and replicas == updated and available > 0,
        ready=status.get("readyReplicas") or 0,
        message=told or counted,
        is_told=bool(told),
    )
