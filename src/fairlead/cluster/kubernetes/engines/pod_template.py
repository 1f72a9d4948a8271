"""The pods of a run as one template for an engine, which creates the pods and numbers them by a label.

They are the pods that Fairlead would create, with the same runtime, environment and volumes, except for the fields of a
single pod: name, node and index in the gang. The runtime reads the index from the engine's label when it starts.
"""

import json
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.engines.port import Object, Submission
from fairlead.cluster.kubernetes.manifests.affinities import among
from fairlead.cluster.kubernetes.manifests.pods import REPORTER, render_pod
from fairlead.runtime import run_key
from fairlead.specs.engines import Engine
from fairlead.specs.overlay import RANKS
from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import Grant


def pod_template(start: Submission, engine: Engine, *, label: str, base: int = 0, reports: bool = True) -> Object:
    """Return the template of the pods that a label numbers from ``base`` on.

    Args:
        label: The engine's label with the number of each pod within the template.
        reports: The template's first pod is the gang's first pod, which reports progress.
    """
    pod = _member(start, engine)
    pod["metadata"]["labels"][names.INDEX_BASE] = str(base)
    ranks = _container(pod["spec"], engine)
    # The runtime reads its index from these variables and does not pass them to the program.
    ranks["env"] = [
        {"name": "FAIRLEAD_INDEX", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}},
        {"name": "FAIRLEAD_INDEX_BASE", "value": str(base)},
        *ranks["env"],
    ]
    if not reports:
        _without_reporter(pod["spec"])
    return pod


def bare_template(start: Submission, engine: Engine, *, index: int, reports: bool) -> Object:
    """Return the template of one pod that the engine starts with its own command.

    Args:
        reports: The program later runs in this pod and needs the runtime's instructions.
    """
    pod = _member(start, engine)
    pod["metadata"]["labels"][names.INDEX] = str(index)
    ranks = _container(pod["spec"], engine)
    for own in ("command", "startupProbe"):
        ranks.pop(own)
    if reports:
        ranks["env"] = [
            _hosted(variable) if variable["name"] == "FAIRLEAD_INSTRUCTIONS" else variable for variable in ranks["env"]
        ]
    else:
        unneeded = ("FAIRLEAD_INSTRUCTIONS", "FAIRLEAD_COMMAND", "FAIRLEAD_SETUP", run_key.SECRET)
        ranks["env"] = [variable for variable in ranks["env"] if variable["name"] not in unneeded]
        _without_reporter(pod["spec"])
    return pod


def _hosted(variable: Object) -> Object:
    """Return the instructions for a program that is not its container's first process."""
    instructions = {**json.loads(variable["value"]), "is_hosted": True}
    return {**variable, "value": json.dumps(instructions, separators=(",", ":"))}


def metadata(start: Submission, engine: Engine) -> Object:
    """Return the metadata of every object of an attempt."""
    run = start.workload
    return {
        "name": names.engine_object_name(run.spec, start.attempt),
        "namespace": run.spec.team,
        "labels": {
            **run.spec.labels,
            **names.run_labels(run),
            names.ATTEMPT: str(start.attempt),
            names.ENGINE: engine.value,
        },
        "ownerReferences": [names.owner(run)],
    }


DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"


def queued(content: Object, queue: str | None) -> Object:
    """Add the queue's label to an object that Kueue may admit; without a queue return it unchanged.

    The object is created suspended, as Kueue's webhook would make it, so that nothing runs if the webhook is missing.
    """
    if queue is not None:
        content["metadata"]["labels"][QUEUE_NAME] = queue
    return content


def _member(start: Submission, engine: Engine) -> Object:
    """Return the first pod of the gang without the fields of a single pod."""
    spec = start.workload.spec
    grant = Grant(cpu_milli=spec.resources.pod_cpu_milli, memory_bytes=spec.resources.pod_memory_bytes)
    member = CreatePod(attempt=start.attempt, index=0, node="", grant=grant)
    pod = render_pod(start.workload, member, start.settings, device=start.device)
    pod.pop("apiVersion")
    pod.pop("kind")
    labels = {name: value for name, value in pod["metadata"]["labels"].items() if name != names.INDEX}
    pod["metadata"] = {
        "labels": {**labels, names.ENGINE: engine.value},
        "annotations": pod["metadata"]["annotations"],
    }
    for name in ("hostname", "subdomain"):
        pod["spec"].pop(name)
    ranks = next(container for container in pod["spec"]["containers"] if container["name"] == RANKS)
    ranks["name"] = pod["metadata"]["annotations"][DEFAULT_CONTAINER] = names.container_of(engine)
    affinity = pod["spec"].get("affinity") or {}
    if start.models:
        pod["spec"]["affinity"] = {**affinity, "nodeAffinity": among(affinity.get("nodeAffinity") or {}, start.models)}
    return pod


def _container(spec: dict[str, Any], engine: Engine) -> dict[str, Any]:
    wanted = names.container_of(engine)
    container_: dict[str, Any] = next(container for container in spec["containers"] if container["name"] == wanted)
    return container_


def _without_reporter(spec: dict[str, Any]) -> None:
    left = [init_container for init_container in spec.get("initContainers", ()) if init_container["name"] != REPORTER]
    spec.pop("initContainers", None)
    if left:
        spec["initContainers"] = left
