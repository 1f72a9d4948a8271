"""Renders the pod of one member of a gang, as a pure function of the decision."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.manifests import driver_bundle, workspaces
from fairlead.cluster.kubernetes.manifests import pod_environment as contract
from fairlead.cluster.kubernetes.manifests.affinities import REQUIRED
from fairlead.cluster.kubernetes.manifests.overlays import lay_over
from fairlead.cluster.kubernetes.manifests.run_keys import KEY
from fairlead.cluster.kubernetes.manifests.secret_volumes import env_from, secret_mounts, secret_volumes
from fairlead.cluster.kubernetes.manifests.workdir import parts_digest
from fairlead.cluster.kubernetes.system_namespaces import SystemNamespaces
from fairlead.frozen import dataclass
from fairlead.policy.placement.networks import FabricShare
from fairlead.policy.placement.node_eligibility import GPU_TAINTS, tolerates, tolerations
from fairlead.runtime import run_key
from fairlead.specs.gang import ProgramSpec
from fairlead.specs.overlay import RANKS
from fairlead.specs.pipeline import FAMILY_DIR, FAMILY_FILE
from fairlead.specs.quantities import format_cpu
from fairlead.specs.serving import Replica
from fairlead.specs.side_containers import side_resources
from fairlead.specs.training import Training
from fairlead.specs.workload import PIPELINE_VARIABLE
from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import Taint, Workload, is_workspace

MEMORY_BYTES_PER_RANK = 4 * 1024**3
"""Default request and limit; the default CPU request is one core for each rank."""
USER = 1000
"""User and group of every process; Pod Security's ``restricted`` forbids 0."""
GRACE_SLACK_S = 10  # for the shim to kill remaining processes and to record the end
REPORTER = "fairlead-reporter"
# Python starts on it in 1.5 s. Until then it receives no signals, and the end of a short run would wait for it.
REPORTER_CPU_MILLI = 50
REPORTER_MEMORY_BYTES = 32 * 1024**2
# Interval at which a driver with runs is polled; its steps wait in the meantime.
ASKED_EVERY_S = 1.0
START_PERIOD_S = 2
# Kubelet probes a replica of an endpoint as often as the local agent probes a local one.
PROBE_PERIOD_S, PROBE_TIMEOUT_S, PROBE_PATIENCE = 1, 2, 3
# A stopping pod is unlisted at once, but clients see that only after a while, because kube-proxy batches changes for a
# second. For this time its server gets no stop notice.
UNLISTED_S = 3
NETWORKS = "k8s.v1.cni.cncf.io/networks"
"""Multus' annotation of a pod: the NetworkAttachmentDefinitions of its namespace that give it interfaces."""
START_MOST_S = 86_400  # `setup` may take long; only `max_duration` limits it


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """Settings of a cluster or a team for all its pods.

    Attributes:
        runtime: ConfigMap with the runtime, in the pod's namespace.
        workdir: ConfigMaps with the working directory, in order; empty for the image's own.
        archive: Path or URL of the working directory's archive instead; None for none.
        image: Image of runs that name none.
        checkpoint_to: Directory or URL for runs that name none; None if there is none.
        placeholder_image: An idle image, such as a pause image; None for the run's own with its Python, so that the
        image is on the new node before the run.
        system: Namespaces of administrators, whose pods may reach what those of others may not.
    """

    runtime: str
    workdir: tuple[str, ...] = ()
    archive: str | None = None
    image: str = "python:3.12-slim"
    checkpoint_to: str | None = None
    placeholder_image: str | None = None
    system: SystemNamespaces = field(default_factory=SystemNamespaces)


def render_pod(
    workload: Workload,
    create: CreatePod,
    settings: PodSettings,
    *,
    device: DeviceResource | None = None,
    taints: Sequence[Taint] | None = None,
    connection: FabricShare | None = None,
    group: str | None = None,
    domains: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Render the pod.

    Args:
        create: The member; without a node the pod is rendered for any suitable node.
        device: The resource of the chosen node that meets the run's GPU request; None for a run without GPUs.
        taints: The chosen node's taints, so that no others are tolerated; None to tolerate those of all GPU and spot
            nodes. Each toleration of a pod costs the API server a tenth of a millisecond or two.
        connection: The fabric of its node that it uses; None for the cluster's own network.
        group: Name of the PodGroup of its gang; None for none.
        domains: The domains of its node in the network, by level, for a test between nodes; None or empty if unknown.
    """
    spec = workload.spec
    name = names.pod_name(spec, create.attempt, create.index, create.replacement)
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": spec.team,
        "labels": {
            **names.pod_labels(workload),
            names.ATTEMPT: str(create.attempt),
            names.INDEX: str(create.index),
            **({names.REPLACEMENT: str(create.replacement)} if create.replacement else {}),
        },
        "annotations": {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
            "kubectl.kubernetes.io/default-container": RANKS,
        },
        "ownerReferences": [names.owner(workload)],
    }
    if isinstance(spec, Replica):
        # The label by which an autoscaler of the cluster selects them.
        metadata["labels"] |= {names.SERVICE: spec.service}
    if spec.network.attach:
        metadata["annotations"][NETWORKS] = ",".join(spec.network.attach)
    resources = _resources(workload, create, device)
    if connection is not None:
        resources[connection.resource] = str(connection.count)
        metadata["annotations"][names.FABRIC] = connection.profile.name
    ranks: dict[str, Any] = {
        "name": RANKS,
        "image": spec.image or settings.image,
        "command": [contract.PYTHON, contract.RUNTIME, "run"],
        "env": _variables(
            workload,
            create,
            settings,
            ({} if connection is None else dict(connection.profile.variables))
            | ({"FAIRLEAD_DOMAINS": json.dumps(domains)} if domains and workload.gang.nodes > 1 else {}),
        ),
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "startupProbe": _started("workspace.json" if is_workspace(workload) else "started.json"),
        "terminationMessagePolicy": "File",
        "securityContext": _CONTAINED,
        "volumeMounts": [
            {"name": "fairlead-runtime", "mountPath": contract.RUNTIME_DIR, "readOnly": True},
            {"name": "fairlead-local", "mountPath": contract.LOCAL},
            {"name": "fairlead-shm", "mountPath": "/dev/shm"},
        ],
    }
    if settings.workdir:
        ranks["volumeMounts"].append(
            {"name": "fairlead-workdir", "mountPath": contract.WORKDIR_PARTS, "readOnly": True}
        )
    if _is_told(workload):
        ranks["volumeMounts"].append({"name": "fairlead-family", "mountPath": FAMILY_DIR, "readOnly": True})
    if is_workspace(workload):
        ranks["volumeMounts"].append({"name": workspaces.HOME_VOLUME, "mountPath": contract.WORKSPACE_HOME})
    ranks["volumeMounts"] += [*_claim_mounts(spec), *secret_mounts(spec.secrets, spec.data)]
    if sources := env_from(spec.secrets):
        ranks["envFrom"] = sources
    if isinstance(spec, Replica):
        ranks |= _served(spec)
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "hostname": names.host_name(spec, create.attempt, create.index),
        "subdomain": names.service_name(workload),
        "terminationGracePeriodSeconds": math.ceil(spec.grace_s) + unlisted_s(spec) + GRACE_SLACK_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [ranks],
        "volumes": _volumes(workload, settings, resources["memory"]),
    }
    if create.index == 0:
        pod["initContainers"] = [_reporter(workload, settings)]
    if tolerated := tolerations(spec) if taints is None else _tolerations_of(spec, taints):
        pod["tolerations"] = tolerated
    rendered = lay_over({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}, spec.kubernetes)
    if create.node:
        rendered["spec"]["affinity"] = _pinned(rendered["spec"].get("affinity") or {}, create.node)
    if group is not None:
        rendered["spec"]["schedulingGroup"] = {"podGroupName": group}
    contain(rendered["spec"], _CONTAINED)
    return rendered


def contain(pod: dict[str, Any], security: Mapping[str, Any]) -> None:
    """Bound the containers beside the ranks as the ranks are: by a security context, and by requests and limits."""
    for beside in pod.get("initContainers", ()):
        own = beside.get("securityContext", {})
        drop = {"drop": security["capabilities"]["drop"]}
        beside["securityContext"] = {**security, **own, "capabilities": {**own.get("capabilities", {}), **drop}}
        beside["resources"] = side_resources(beside.get("resources", {}))


def overhead(create: CreatePod) -> tuple[int, int]:
    """Return the thousandths of a core and the bytes that a pod requests in addition to its grant."""
    return (REPORTER_CPU_MILLI, REPORTER_MEMORY_BYTES) if create.index == 0 else (0, 0)


def _resources(workload: Workload, create: CreatePod, device: DeviceResource | None) -> dict[str, str | int]:
    """Return the amounts of both requests and limits, which are equal, so that neighbours cannot use granted ones."""
    grant, spec = create.grant, workload.spec
    cpu, memory, requests = grant.cpu_milli, grant.memory_bytes, spec.resources
    if (beside := requests.beside) is not None:
        # A grant is of the whole pod, of which a container that ends before the ranks may need the most.
        cpu = min(max(0, cpu - beside.cpu_milli), requests.cpu_milli or cpu)
        memory = min(max(0, memory - beside.memory_bytes), requests.memory_bytes or memory)
    return _amounts(cpu, memory, spec.ranks_on_each_node, device)


def server_resources(spec: Training, device: DeviceResource | None) -> dict[str, dict[str, str | int]]:
    """Return requests and limits of a server that Fairlead does not place."""
    amounts = _amounts(spec.resources.cpu_milli, spec.resources.memory_bytes, 1, device)
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _amounts(cpu: int | None, memory: int | None, ranks: int, device: DeviceResource | None) -> dict[str, str | int]:
    resources: dict[str, str | int] = {
        "cpu": str(format_cpu(cpu or 1000 * ranks)),
        "memory": str(memory or MEMORY_BYTES_PER_RANK * ranks),
    }
    return resources if device is None else resources | {device.name: str(device.count)}


def _variables(
    workload: Workload, create: CreatePod, settings: PodSettings, of_network: Mapping[str, str]
) -> list[dict[str, Any]]:
    spec = workload.spec
    place = contract.checkpoint_place(workload, settings.checkpoint_to)
    fixed = {
        "HOME": contract.WORKSPACE_HOME if is_workspace(workload) else contract.USER_HOME,
        "USER": names.MANAGER,
        **of_network,
        **spec.env,
        **contract.instructions(
            workload, create, checkpoint_to=place, parts=parts_digest(settings.workdir), archive=settings.archive
        ),
    }
    fields = {"FAIRLEAD_NODE": "spec.nodeName", "FAIRLEAD_POD_IP": "status.podIP"}
    has_weights = contract.has_shared_weights(workload)
    key = {
        "name": names.weights_name(workload) if has_weights else names.key_name(workload, create.attempt),
        "key": KEY,
    }
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *([{"name": run_key.SECRET, "valueFrom": {"secretKeyRef": key}}] if spec.has_rendezvous or has_weights else ()),
        *({"name": name, "value": literal(value)} for name, value in fixed.items()),
    ]


def literal(value: str) -> str:
    """Escape a value so that Kubernetes does not expand ``$(NAME)`` in it."""
    return value.replace("$", "$$")


def _tolerations_of(spec: ProgramSpec, taints: Sequence[Taint]) -> list[dict[str, str]]:
    """Return tolerations for the chosen node, including its GPU taints even for a run without GPUs."""
    of_gpus = [taint for taint in taints if taint.key in GPU_TAINTS]
    rest = [taint for taint in taints if taint.key not in GPU_TAINTS]
    return [
        *({"key": taint.key, "operator": "Exists", "effect": taint.effect} for taint in of_gpus),
        *(toleration for toleration in tolerations(spec) if any(tolerates([toleration], taint) for taint in rest)),
    ]


def _started(file: str) -> dict[str, Any]:
    """Return the startup probe, which succeeds once there is a file: that of started ranks, or of a server."""
    look = f"import os, sys; sys.exit(not os.path.exists('{contract.POD_DIR}/{file}'))"
    return {
        "exec": {"command": [contract.PYTHON, "-I", "-S", "-c", look]},
        "periodSeconds": START_PERIOD_S,
        "timeoutSeconds": 10,
        "failureThreshold": START_MOST_S // START_PERIOD_S,
    }


def _served(spec: Replica) -> dict[str, Any]:
    """Return the fields of an endpoint's server: its port, its probe, and a delay to be unlisted."""
    wait = f"import time; time.sleep({UNLISTED_S})"
    return {
        "ports": [{"name": "http", "containerPort": contract.MASTER_PORT}],
        "readinessProbe": {
            "httpGet": {"path": spec.probe, "port": contract.MASTER_PORT},
            "periodSeconds": PROBE_PERIOD_S,
            "timeoutSeconds": PROBE_TIMEOUT_S,
            "failureThreshold": PROBE_PATIENCE,
        },
        "lifecycle": {"preStop": {"exec": {"command": [contract.PYTHON, "-I", "-S", "-c", wait]}}},
    }


def unlisted_s(spec: ProgramSpec) -> int:
    """Return the seconds between a pod's deletion and its program's stop notice."""
    return UNLISTED_S if isinstance(spec, Replica) else 0


def is_followed(workload: Workload) -> bool:
    """Return whether a run is the driver of a pipeline with runs as steps: it requests them and gets their state."""
    return workload.parent is not None and PIPELINE_VARIABLE in workload.spec.env


def _is_told(workload: Workload) -> bool:
    """Return whether a run has a file with the operator's information about its pipeline."""
    return is_followed(workload) or (workload.parent is not None and driver_bundle.is_watch(workload.spec))


def _reporter(workload: Workload, settings: PodSettings) -> dict[str, Any]:
    """Return the container whose log is the run's progress, one line each; it ends after the ranks."""
    spec = workload.spec
    soon = (str(ASKED_EVERY_S),) if is_followed(workload) else ()
    resources = {"cpu": str(format_cpu(REPORTER_CPU_MILLI)), "memory": str(REPORTER_MEMORY_BYTES)}
    return {
        "name": REPORTER,
        "image": spec.image or settings.image,
        "command": [contract.PYTHON, "-I", "-S", contract.RUNTIME, "report", contract.POD_DIR, *soon],
        "restartPolicy": "Always",
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "securityContext": _CONTAINED,
        "volumeMounts": [
            {"name": "fairlead-runtime", "mountPath": contract.RUNTIME_DIR, "readOnly": True},
            {"name": "fairlead-local", "mountPath": contract.LOCAL, "readOnly": True},
        ],
    }


def _volumes(workload: Workload, settings: PodSettings, memory: str | int) -> list[dict[str, Any]]:
    spec = workload.spec
    # The default on any machine: half of memory. It counts as the pod's memory either way.
    shared = spec.resources.shm_bytes or int(memory) // 2
    runtime: dict[str, Any] = {"configMap": {"name": settings.runtime}}
    beside = (
        driver_bundle.bundle_name()
        if driver_bundle.is_driver(spec)
        else workspaces.bundle_name()
        if is_workspace(workload)
        else None
    )
    if beside is not None:
        runtime = {"projected": {"sources": [runtime, {"configMap": {"name": beside}}]}}
    volumes: list[dict[str, Any]] = [
        {"name": "fairlead-runtime", **runtime},
        {"name": "fairlead-local", "emptyDir": {}},
        {"name": "fairlead-shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(shared)}},
    ]
    if settings.workdir:
        parts = [{"configMap": {"name": name}} for name in settings.workdir]
        volumes.append({"name": "fairlead-workdir", "projected": {"sources": parts}})
    if is_workspace(workload):
        claim = {"claimName": workspaces.claim_name(spec.name)}
        volumes.append({"name": workspaces.HOME_VOLUME, "persistentVolumeClaim": claim})
    claims = sorted({source.claim: None for source in spec.data.values() if source.claim is not None})
    volumes += [{"name": _claim_volume(claim), "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    volumes += secret_volumes(spec.secrets, spec.data)
    if _is_told(workload):
        file, field = FAMILY_FILE.rpartition("/")[2], f"metadata.annotations['{names.FAMILY}']"
        items = [{"path": file, "fieldRef": {"fieldPath": field}}]
        volumes.append({"name": "fairlead-family", "downwardAPI": {"items": items}})
    return volumes


def _claim_volume(claim: str) -> str:
    """Return the name of a claim's volume in pods; a claim's own name may be longer than that of a volume."""
    return f"data-{hashlib.sha256(claim.encode()).hexdigest()[:12]}"


def _claim_mounts(spec: ProgramSpec) -> list[dict[str, Any]]:
    """Return the mounts of the claims of a run's data."""
    mounts: list[dict[str, Any]] = []
    for name, source in spec.data.items():
        if source.claim is None:
            continue
        below = source.origin.removeprefix("pvc://").partition("/")[2].strip("/")
        mounts.append(
            {
                "name": _claim_volume(source.claim),
                "mountPath": source.mount_path(name),
                **({"subPath": below} if below else {}),
                **({} if source.write else {"readOnly": True}),
            }
        )
    return mounts


def _pinned(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Return the affinity restricted to one node by name; kube-scheduler then checks the rest and binds the pod.

    Terms are alternatives, so the name is added to each of them.
    """
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    of_nodes = dict(affinity.get("nodeAffinity") or {})
    required = of_nodes.get(REQUIRED) or {}
    own_terms: list[dict[str, Any]] = required.get("nodeSelectorTerms") or [{}]
    terms = [{**term, "matchFields": [*term.get("matchFields", ()), field]} for term in own_terms]
    return {**affinity, "nodeAffinity": {**of_nodes, REQUIRED: {"nodeSelectorTerms": terms}}}


_CONTAINED: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SERVER_SECURITY: dict[str, Any] = {
    **_CONTAINED, "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
"""Settings that Pod Security's ``restricted`` requires, in fields of a container alone."""
