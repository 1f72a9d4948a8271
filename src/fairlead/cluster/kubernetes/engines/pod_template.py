"""The pods of a run as one template for an engine, which makes them and numbers them by a label of its own.

They are the pods that we would create, with the same runtime, environment and volumes, but for what is a pod's alone:
name, node and place in the gang. That place the runtime reads from the engine's label when it starts.
"""

from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.engines.port import Object, Submission
from fairlead.cluster.kubernetes.manifests.affinities import among
from fairlead.cluster.kubernetes.manifests.pods import REPORTER, render_pod
from fairlead.specs.engines import Engine
from fairlead.specs.overlay import RANKS
from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import Grant


def pod_template(start: Submission, engine: Engine, *, label: str, base: int = 0, reports: bool = True) -> Object:
    """The template of the pods that a label numbers from ``base`` on.

    Args:
        label: Of the engine, with the number of each pod among those of the template.
        reports: The first of them is the gang's first, which tells of progress.
    """
    pod = _member(start, engine)
    pod["metadata"]["labels"][names.INDEX_BASE] = str(base)
    ranks = _container(pod["spec"], engine)
    # The runtime takes its place from these and keeps them to itself.
    ranks["env"] = [
        {"name": "FAIRLEAD_INDEX", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}},
        {"name": "FAIRLEAD_INDEX_BASE", "value": str(base)},
        *ranks["env"],
    ]
    if not reports:
        _without_reporter(pod["spec"])
    return pod


def bare_template(start: Submission, engine: Engine, *, index: int, reports: bool) -> Object:
    """The template of one pod that the engine starts with a command of its own.

    Args:
        reports: The program runs in it, later, and finds there what the runtime is told.
    """
    pod = _member(start, engine)
    pod["metadata"]["labels"][names.INDEX] = str(index)
    ranks = _container(pod["spec"], engine)
    for own in ("command", "startupProbe"):
        ranks.pop(own)
    if not reports:
        told = ("FAIRLEAD_INSTRUCTIONS", "FAIRLEAD_COMMAND", "FAIRLEAD_SETUP")
        ranks["env"] = [each for each in ranks["env"] if each["name"] not in told]
        _without_reporter(pod["spec"])
    return pod


def metadata(start: Submission, engine: Engine) -> Object:
    """The metadata of every object of a start."""
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
    """An object that Kueue may admit; without a queue as it is.

    It is created suspended, as Kueue's own webhook would have it, so that nothing runs where that is missing.
    """
    if queue is not None:
        content["metadata"]["labels"][QUEUE_NAME] = queue
    return content


def _member(start: Submission, engine: Engine) -> Object:
    """The first pod of the gang, less what is its own."""
    spec = start.workload.spec
    grant = Grant(cpu_milli=spec.resources.cpu_milli or 0, memory_bytes=spec.resources.memory_bytes or 0)
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
    ranks = next(each for each in pod["spec"]["containers"] if each["name"] == RANKS)
    ranks["name"] = pod["metadata"]["annotations"][DEFAULT_CONTAINER] = names.container_of(engine)
    affinity = pod["spec"].get("affinity") or {}
    if start.models:
        pod["spec"]["affinity"] = {**affinity, "nodeAffinity": among(affinity.get("nodeAffinity") or {}, start.models)}
    return pod


def _container(spec: dict[str, Any], engine: Engine) -> dict[str, Any]:
    wanted = names.container_of(engine)
    found: dict[str, Any] = next(each for each in spec["containers"] if each["name"] == wanted)
    return found


def _without_reporter(spec: dict[str, Any]) -> None:
    left = [each for each in spec.get("initContainers", ()) if each["name"] != REPORTER]
    spec.pop("initContainers", None)
    if left:
        spec["initContainers"] = left
