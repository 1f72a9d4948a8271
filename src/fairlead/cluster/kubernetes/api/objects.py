"""Nodes and pods of the API server, reduced to the fields for placement and gang life cycle. Pure.

See decision 218.
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import islice
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.pod_owner import PodOwner, placeholder_owner, pod_owner
from fairlead.cluster.kubernetes.devices import is_device
from fairlead.cluster.kubernetes.kinds import PROBED
from fairlead.cluster.kubernetes.node_detectors import MOST_REASON, faults_of, unix_seconds
from fairlead.frozen import dataclass
from fairlead.specs.overlay import RANKS
from fairlead.specs.side_containers import SIDECAR
from fairlead.state.node_health import NodeFault
from fairlead.state.snapshot import Taint

Object = Mapping[str, Any]

_UNITS: Mapping[str, int | Decimal] = {
    "": 1, "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": 10**3, "M": 10**6, "G": 10**9,
    "T": 10**12, "P": 10**15, "E": 10**18, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
    "Ei": 2**60,
}  # fmt: skip
# As in Kubernetes, which also rounds up to its smallest unit.
LARGEST, SMALLEST, MOST_QUANTITY = Decimal(2**63 - 1), Decimal("1e-9"), 200
MOST_DEVICES = 10_000
"""Maximum devices of one kind that a node or pod counts with: each gets a name, and a pod may request any number."""
MOST_KINDS, MOST_TEXT = 100, 4096
"""Maximum kinds of devices, and characters of a text, that are held of an object. A pod with more kinds is never bound,
as no node has them; kubelet's messages have 4,096 bytes, and names of images fewer."""
MOST_EXTENDED = 64
"""Maximum extended resources of a node, beside GPUs, that are read."""
MODEL_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
    "cloud.google.com/gke-accelerator",
)
# Labels with the memory of one device in MiB.
MEMORY_LABELS = ("nvidia.com/gpu.memory", "karpenter.k8s.aws/instance-gpu-memory")
NOBODY = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAmounts:
    """Amounts offered or requested; ``devices`` are extended resources that are GPUs or parts of one."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    devices: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObject:
    """A Node.

    Attributes:
        slots: Most pods that it can run.
        gpu_memory_bytes: Memory of one device; 0 if no label has it.
        ready: The kubelet's last report; False also if that is too old.
        partitioning: State of a change of its GPU layout, as annotated; empty for none.
        partitions_failed: Times at which layouts failed there, as annotated.
        extended: Extended resources that are no GPUs, such as network adapters, with their numbers.
        faults: Faults that detectors report now.
        cordon_reason: Why an administrator has cordoned it with ``fairlead node cordon``; empty if unknown.
        given_back_at: When an administrator gave it back after a test, in Unix seconds; 0 for never.
    """

    key: str
    version: int
    allocatable: ResourceAmounts
    slots: int
    gpu_model: str
    gpu_memory_bytes: int
    ready: bool
    cordoned: bool
    taints: tuple[Taint, ...]
    labels: Mapping[str, str]
    created_at: float = 0.0
    partitioning: str = ""
    partitions_failed: str = ""
    extended: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[NodeFault, ...] = ()
    cordon_reason: str = ""
    given_back_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodObject:
    """A Pod, of Fairlead or of others.

    Attributes:
        uid: The pod's uid.
        run_uid: The uid of the run that it names as its own, by an owner and a name that Fairlead would have given it;
            empty for other pods. That run has it only if it is the one of ``run_key``.
        run_key: Kind, and namespace and name, of that run: those of the owner, in the pod's own namespace.
        claim: The uid of any run that its labels or its owner name, borne out or not; empty for none.
        maker: Kind and uid of its controller.
        requests: The requests that kube-scheduler counts for it.
        daemon: The uid of the DaemonSet that owns it; empty for all others.
        node: The node to which it is bound; empty before.
        leaves_by: The end of its grace period, once it is being deleted; None before.
        told_at: The time at which its deletion was requested.
        refused: The reason why kube-scheduler found no node for it.
        disruption: Reason and message of the condition DisruptionTarget; None without it.
        pod_reason: Reason and message of the pod as a whole, such as Evicted.
        waiting: Reason and message of the first waiting container, or of the Event that blocks all; None for none.
        asked_at: The time at which its kubelet's newest Event was requested; None if it was not.
        last_word: Reason and message of that Event, if there was one.
        last_word_at: The time at which it was first reported.
        is_busy: It waits for its own init containers, or for a scheduling gate.
        address: Its IP address; empty before it has one.
        started_at: The start of the ranks' container; None before.
        ended: The status of the ended ranks' container, as ``reports.read_ending`` reads it.
        container: The name of the ranks' container.
        engine: The engine that created it; empty for one that Fairlead created.
        group: The name of the PodGroup that it says it is of; empty for none.
        room_for: The uid of the run or Pool whose placeholder it says it is, by owner, name and priority; empty for all
            other pods, including gang members. For a run, that of ``run_key``.
        pool: The name of that Pool; empty if it is a run.
        bound_at: The time at which a pod without a run was bound; None before, and for pods of runs.
        ready: For a replica of an endpoint, a workspace or a gateway, whether its server passes its probe.
        is_gateway: It is a gateway, which forwards requests to endpoints.
        family: For a pipeline's driver, the ``digest`` of what was last reported of the runs that it requested; empty
            for none.
    """

    key: str
    version: int
    uid: str
    phase: str
    node: str
    requests: ResourceAmounts
    created_at: float
    daemon: str = ""
    run_uid: str = ""
    run_key: tuple[str, str] = NOBODY
    claim: str = ""
    maker: tuple[str, str] = ("", "")
    attempt: int = 0
    index: int = 0
    replacement: int = 0
    told_at: float | None = None
    leaves_by: float | None = None
    refused: str | None = None
    disruption: tuple[str, str] | None = None
    pod_reason: tuple[str, str] = ("", "")
    image: str = ""
    address: str = ""
    waiting: tuple[str, str] | None = None
    asked_at: float | None = None
    last_word: tuple[str, str] | None = None
    last_word_at: float | None = None
    is_busy: bool = False
    started_at: float | None = None
    ended: Mapping[str, Any] | None = None
    container: str = RANKS
    engine: str = ""
    group: str = ""
    room_for: str = ""
    pool: str = ""
    bound_at: float | None = None
    ready: bool = False
    family: str = ""
    is_gateway: bool = False

    @property
    def is_over(self) -> bool:
        """True once none of its containers runs or will run."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def counts(self) -> bool:
        """Return whether anything follows from it: it names a run, is Fairlead's, or takes room of a node."""
        is_ours = self.run_uid or self.claim or self.room_for or self.is_gateway
        return bool(is_ours) or (bool(self.node) and not self.is_over)


def read_node(content: Object) -> NodeObject:
    """Read a Node."""
    metadata, spec, status = content["metadata"], content.get("spec") or {}, content.get("status") or {}
    labels, allocatable = metadata.get("labels") or {}, status.get("allocatable") or {}
    annotations, conditions = metadata.get("annotations") or {}, status.get("conditions") or ()
    memory = next((labels[name] for name in MEMORY_LABELS if name in labels), "0")
    taints = tuple(
        Taint(key=taint["key"], value=taint.get("value") or "", effect=taint["effect"])
        for taint in spec.get("taints") or ()
        if taint["effect"] != "PreferNoSchedule"
    )
    return NodeObject(
        key=metadata["name"],
        version=int(metadata["resourceVersion"]),
        allocatable=amounts(allocatable),
        slots=int(quantity(allocatable.get("pods", "110"))),
        gpu_model=sys.intern(next((labels[name] for name in MODEL_LABELS if name in labels), "GPU")),
        gpu_memory_bytes=int(memory) * 2**20 if memory.isdigit() else 0,
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
        cordoned=bool(spec.get("unschedulable")),
        taints=taints,
        labels={sys.intern(name): sys.intern(value) for name, value in labels.items()},
        created_at=seconds(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else 0.0,
        partitioning=annotations.get(names.PARTITIONING, ""),
        partitions_failed=annotations.get(names.PARTITIONS_FAILED, ""),
        extended=dict(islice(_extended(allocatable), MOST_EXTENDED)),
        faults=faults_of(conditions, taints),
        cordon_reason=str(annotations.get(names.CORDONED, ""))[:MOST_REASON],
        given_back_at=unix_seconds(annotations.get(names.GIVEN_BACK)),
    )


def _extended(allocatable: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the extended resources of a node that are no GPUs: those with a domain that is not Kubernetes' own."""
    for name, amount in sorted(allocatable.items()):
        domain, slash, _ = name.partition("/")
        if slash and not f".{domain}".endswith(".kubernetes.io") and not is_device(name):
            yield sys.intern(name), min(MOST_DEVICES, int(quantity(amount)))


def read_pod(content: Object) -> PodObject:
    """Read a Pod."""
    metadata, spec, status = content["metadata"], content["spec"], content.get("status") or {}
    labels, owner = metadata.get("labels") or {}, names.controller_of(metadata)
    basic = PodObject(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        uid=metadata["uid"],
        phase=sys.intern(status.get("phase") or "Pending"),
        node=sys.intern(spec.get("nodeName") or ""),
        requests=pod_requests(spec),
        created_at=seconds(metadata["creationTimestamp"]),
        daemon=sys.intern(owner["uid"]) if _is_daemon_set(owner) else "",
        maker=(sys.intern(str(owner.get("kind") or "")), sys.intern(str(owner.get("uid") or ""))),
        bound_at=_bound_at(spec, status),
    )
    if metadata["namespace"] == names.GATEWAY_NAMESPACE and labels.get("app.kubernetes.io/name") == names.GATEWAY:
        told_at = _told_at(metadata) if "deletionTimestamp" in metadata else None
        address = status.get("podIP") or ""
        return replace(basic, is_gateway=True, ready=_is_ready(status), address=address, told_at=told_at)
    if (keeper := placeholder_owner(content)) is not None:
        kind, key = keeper.key
        pool = key.partition("/")[2] if kind == "Pool" else ""
        run_key = NOBODY if pool else keeper.key
        return replace(basic, room_for=keeper.uid, run_key=run_key, pool=pool, index=_whole(labels.get(names.INDEX)))
    run = pod_owner(metadata)
    if run is None or not run.is_borne_out:
        return basic if run is None else replace(basic, claim=run.uid)
    ours = _ours(basic, content, run, labels)
    # For a training run, readiness of its pods shows only that they have started.
    return replace(ours, ready=_is_ready(status)) if run.key[0] in PROBED else ours


def digest(text: str) -> str:
    """Return the digest by which a long annotation is compared; empty for an empty one."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32] if text else ""


def _is_daemon_set(owner: Object) -> bool:
    return names.group_of(owner) == "apps" and owner.get("kind") == "DaemonSet"


def _bound_at(spec: Object, status: Object) -> float | None:
    if not spec.get("nodeName"):
        return None
    at = next(
        (c.get("lastTransitionTime") for c in status.get("conditions") or () if c["type"] == "PodScheduled"), None
    )
    return None if at is None else seconds(at)


def _is_ready(status: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())


def _ours(basic: PodObject, content: Object, run: PodOwner, labels: Mapping[str, str]) -> PodObject:
    metadata, spec, status = content["metadata"], content["spec"], content.get("status") or {}
    states = {c["name"]: c.get("state") or {} for c in status.get("containerStatuses") or ()}
    first = {c["name"]: c.get("state") or {} for c in status.get("initContainerStatuses") or ()}
    container = names.container_of(labels.get(names.ENGINE))
    ranks = states.get(container) or next(iter(states.values()), {})
    running, terminated = ranks.get("running"), ranks.get("terminated")
    waiting = next((s["waiting"] for s in (*first.values(), *states.values()) if s.get("waiting")), None)
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    scheduled, disrupted = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
    leaves_by = metadata.get("deletionTimestamp")
    return PodObject(
        key=basic.key,
        version=basic.version,
        uid=basic.uid,
        phase=basic.phase,
        node=basic.node,
        requests=basic.requests,
        created_at=basic.created_at,
        run_uid=run.uid,
        run_key=run.key,
        claim=run.uid,
        maker=basic.maker,
        address=status.get("podIP") or "",
        attempt=_whole(labels.get(names.ATTEMPT)),
        index=names.index_in_gang(labels),
        replacement=_whole(labels.get(names.REPLACEMENT)),
        told_at=_told_at(metadata) if leaves_by else None,
        leaves_by=seconds(leaves_by) if leaves_by else None,
        refused=_words(scheduled)[1] if scheduled.get("reason") == "Unschedulable" else None,
        disruption=_words(disrupted) if disrupted.get("status") == "True" else None,
        pod_reason=_words(status),
        image=next((c.get("image") or "" for c in spec["containers"] if c["name"] == container), "")[:MOST_TEXT],
        container=container,
        engine=sys.intern(labels.get(names.ENGINE) or ""),
        group=sys.intern(str((spec.get("schedulingGroup") or {}).get("podGroupName") or "")),
        waiting=_words(waiting) if waiting else None,
        is_busy=_is_busy(spec, first) or scheduled.get("reason") == "SchedulingGated",
        started_at=_started_at(running or terminated or {}),
        ended=_only(terminated) if terminated else None,
        family=digest(str((metadata.get("annotations") or {}).get(names.FAMILY) or "")),
    )


def _is_busy(spec: Object, states: Mapping[str, Any]) -> bool:
    """Return whether an init container runs, which has to end before the others start."""
    sidecars = {
        container["name"] for container in spec.get("initContainers") or () if container.get("restartPolicy") == SIDECAR
    }
    return any("running" in state for name, state in states.items() if name not in sidecars)


def amounts(resources: Mapping[str, Any]) -> ResourceAmounts:
    """Parse a list of resources, such as ``requests``."""
    devices = ((name, int(quantity(amount))) for name, amount in sorted(resources.items()) if is_device(name))
    return ResourceAmounts(
        cpu_milli=int(quantity(resources.get("cpu", 0)) * 1000),
        memory_bytes=int(quantity(resources.get("memory", 0))),
        devices=tuple((name, min(MOST_DEVICES, number)) for name, number in islice(devices, MOST_KINDS)),
    )


def pod_requests(spec: Object) -> ResourceAmounts:
    """Return a pod's requests as kube-scheduler counts them: the larger of all containers and of any init container.

    From kube-scheduler's ``PodRequests``: sidecars (init containers that restart) count in both.
    """
    own = (spec.get("resources") or {}).get("requests")
    together = [_requests(container) for container in spec.get("containers") or ()]
    sidecars: list[Mapping[str, Any]] = []
    most: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == SIDECAR:
            sidecars.append(_requests(container))
            alone = _sum(sidecars)
        else:
            alone = _sum([*sidecars, _requests(container)])
        most = {name: max(most.get(name, Decimal(0)), alone.get(name, Decimal(0))) for name in {*most, *alone}}
    main = _sum([*together, *sidecars])
    total = {name: max(main.get(name, Decimal(0)), most.get(name, Decimal(0))) for name in {*main, *most}}
    if own:
        total |= {name: quantity(value) for name, value in own.items()}
    whole = _sum([total, spec.get("overhead") or {}])
    return amounts({name: amount for name, amount in whole.items() if amount})


def seconds(moment: str) -> float:
    """Convert a time of the API server to Unix seconds."""
    return datetime.fromisoformat(moment).timestamp()


@lru_cache(maxsize=4096)
def quantity(value: str | int | float | Decimal) -> Decimal:
    """Parse a Kubernetes quantity exactly; text that is not one counts as 0.

    The API server checks and bounds the quantities of its own kinds only, those of other kinds may hold any text.
    """
    if not isinstance(value, str):
        return _bounded(Decimal(value))
    if len(value) > MOST_QUANTITY:
        return Decimal(0)
    number = value.rstrip("KMGTPEikmnu")
    if number and number[-1] in "eE":  # 1e3 is a number, 1E is a unit
        number = number[:-1]
    try:
        return _bounded(_bounded(Decimal(number)) * _UNITS[value[len(number) :]])
    except (InvalidOperation, KeyError):
        return Decimal(0)


def _bounded(amount: Decimal) -> Decimal:
    """Return an amount within what Kubernetes can hold, 0 for none: a larger one takes Python minutes to convert."""
    if not amount.is_finite():
        return Decimal(0)
    size = amount.copy_abs()  # unlike abs(), it takes any exponent
    if size > LARGEST:
        return LARGEST.copy_sign(amount)
    return amount if not size or size >= SMALLEST else SMALLEST.copy_sign(amount)


def _requests(container: Object) -> Mapping[str, Any]:
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def _sum(lists: list[Mapping[str, Any]]) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for resources in lists:
        for name, value in resources.items():
            total[name] = total.get(name, Decimal(0)) + quantity(value)
    return total


def _told_at(metadata: Object) -> float:
    return seconds(metadata["deletionTimestamp"]) - float(metadata.get("deletionGracePeriodSeconds") or 0)


def _started_at(state: Object) -> float | None:
    return seconds(state["startedAt"]) if state.get("startedAt") else None


def _only(terminated: Object) -> Object:
    """Return a pod object that contains only the ended state of its ranks' container."""
    return {"status": {"containerStatuses": [{"name": RANKS, "state": {"terminated": terminated}}]}}


def _words(source: Object) -> tuple[str, str]:
    return str(source.get("reason") or "")[:MOST_TEXT], str(source.get("message") or "")[:MOST_TEXT]


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
