"""The server pod of engines that create a Deployment from it, KServe and Seldon, and its roll-out's progress."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.cluster.contract import secret_paths
from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.engines.endpoint_port import Handover, falsity
from fairlead.cluster.kubernetes.engines.port import Object
from fairlead.cluster.kubernetes.manifests.affinities import among
from fairlead.cluster.kubernetes.manifests.overlays import lay_over
from fairlead.cluster.kubernetes.manifests.pod_environment import SECRETS_DIR
from fairlead.cluster.kubernetes.manifests.pods import SERVER_SECURITY, contain, literal, server_resources
from fairlead.cluster.kubernetes.manifests.secret_volumes import OF_ALL, env_from, secret_mounts, secret_volumes
from fairlead.policy.placement.node_eligibility import tolerations
from fairlead.specs.overlay import RANKS
from fairlead.specs.secret_reference import SecretReference
from fairlead.specs.serving import Serving

PORT = 8080


def server_pod(handover: Handover, env: Mapping[str, str], *, container: str, port: str) -> Object:
    """Render the metadata and the spec of a pod, with the overlay applied.

    Args:
        env: The variables of the server.
        container: The name that the engine requires for the server's container.
        port: The name of the server's port.
    """
    spec = handover.target.spec
    variables = {**env, **secret_paths(spec.secrets, SECRETS_DIR)}
    server: Object = {
        "name": RANKS,
        "image": spec.image,
        "command": shell_command(spec),
        "env": [{"name": name, "value": literal(value)} for name, value in variables.items()],
        "ports": [{"name": port, "containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": spec.probe_path, "port": PORT}},
        "resources": server_resources(spec.replica(), handover.device),
        "securityContext": SERVER_SECURITY,
        **secret_fields(spec.secrets),
    }
    pod: Object = {
        "terminationGracePeriodSeconds": math.ceil(spec.grace_s),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [server],
        **({"volumes": volumes} if (volumes := secret_volumes(spec.secrets, {}, OF_ALL)) else {}),
    }
    if tolerated := tolerations(spec.replica()):
        pod["tolerations"] = tolerated
    overlaid = lay_over({"metadata": {}, "spec": pod}, spec.kubernetes)
    laid: Object = overlaid["spec"]
    contain(laid, SERVER_SECURITY)
    if handover.models:
        affinity = laid.get("affinity") or {}
        laid["affinity"] = {**affinity, "nodeAffinity": among(affinity.get("nodeAffinity") or {}, handover.models)}
    for container_ in laid["containers"]:
        if container_["name"] == RANKS:
            container_["name"] = container
    return overlaid


def secret_fields(secrets: Sequence[SecretReference]) -> Object:
    """Return the fields of a server's container by which it gets its Secrets; empty without any."""
    fields = {"envFrom": env_from(secrets), "volumeMounts": secret_mounts(secrets, {})}
    return {name: items for name, items in fields.items() if items}


def shell_command(spec: Serving) -> list[str]:
    """Return the server's command in a shell, which execs a single command so that it receives signals."""
    run = spec.replica().run
    is_single = not any(mark in run for mark in "\n;&|=")
    return ["sh", "-c", f"exec {run}" if is_single else run]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """Progress of a revision's roll-out by the Deployment that an engine created.

    Attributes:
        is_over: All of its pods are of the revision, and some of them are available.
        ready: Number of ready pods, of any revision.
        message: The progress, as a clause, or the reason why it has stalled.
        is_told: The message is the Deployment's own.
    """

    is_over: bool
    ready: int
    message: str
    is_told: bool


def rolled(made: Iterable[Mapping[str, Any]], revision: str) -> Rolled:
    """Return the progress of the Deployment's roll-out to a revision."""
    deployment: Mapping[str, Any] = next(iter(made), {})
    about, status = deployment.get("metadata") or {}, deployment.get("status") or {}
    of = (about.get("labels") or {}).get(names.REVISION)
    replicas, updated = status.get("replicas") or 0, status.get("updatedReplicas") or 0
    is_seen = status.get("observedGeneration") == about.get("generation")
    available = status.get("availableReplicas") or 0
    problem = falsity(deployment, "Progressing") or falsity(deployment, "Available")
    counted = f"{updated} of its pods {'is' if updated == 1 else 'are'} of {revision}, {available} available"
    if of is not None and of != revision:
        counted = f"its Deployment is of {of} still"
    return Rolled(
        is_over=of == revision and is_seen and replicas == updated and available > 0,
        ready=status.get("readyReplicas") or 0,
        message=problem or counted,
        is_told=bool(problem),
    )
