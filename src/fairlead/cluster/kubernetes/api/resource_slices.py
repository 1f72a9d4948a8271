"""GPUs that a driver for dynamic resource allocation (DRA) offers in ResourceSlices, as devices of their nodes.

A pod requests them by the extended resource that Kubernetes has for every DeviceClass, and kube-scheduler creates its
ResourceClaim. That works from Kubernetes 1.36 on, where the feature gate DRAExtendedResource is on by default
(KEP 5004); before, slices are not read. Whole GPUs only; parts of one are left out.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import replace

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import NodeObject, Object, quantity
from fairlead.cluster.kubernetes.devices import DRA, DRA_DRIVER
from fairlead.frozen import dataclass

API = "/apis/resource.k8s.io/v1"
SLICES, CLAIMS = f"{API}/resourceslices", f"{API}/resourceclaims"
SINCE = (1, 36)
SEVERAL = "several"  # model of a node whose GPUs differ, since kube-scheduler chooses which of them a pod gets
_CLOSING = frozenset(("NoSchedule", "NoExecute"))

Device = tuple[str, str]  # pool, name


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedGpu:
    """A whole GPU of a slice."""

    name: str
    model: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceObject:
    """A ResourceSlice with GPUs of one node.

    Attributes:
        pool: The slices of a pool belong together; those of an older generation are about to be deleted.
        num_slices: Slices that the pool has in this generation; kube-scheduler waits until all are there.
    """

    key: str
    version: int
    node: str
    pool: str
    generation: int
    num_slices: int
    gpus: tuple[OfferedGpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimObject:
    """A ResourceClaim.

    Attributes:
        pod: Key of the pod that owns it; empty for a claim that several pods may share.
        devices: Devices of NVIDIA's driver that are allocated to it.
    """

    key: str
    version: int
    pod: str
    pod_uid: str
    devices: tuple[Device, ...]


def are_offered(client: Client) -> bool:
    """Return whether pods of this cluster can request devices of slices as an extended resource.

    Raises:
        ApiError: The API server does not return its version.
    """
    version = client.get("/version")
    parts = [re.match(r"\d*", str(version.get(key) or "")) for key in ("major", "minor")]
    if tuple(int(part[0] or 0) if part else 0 for part in parts) < SINCE:
        return False
    try:
        client.get(API)
    except ApiError as error:
        if error.status != 404:  # an API server may be configured not to serve this API
            raise
        return False
    return True


def list_slices(client: Client) -> list[SliceObject]:
    """Return the slices with GPUs, whether pods can request these or not; none where the account may not list them."""
    try:
        slices = [read_slice(content) for content in client.items(SLICES)]
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return []
    return [slice_ for slice_ in slices if slice_ is not None]


def list_offered(client: Client) -> list[SliceObject]:
    """Return the slices with GPUs that pods can request."""
    return list_slices(client) if are_offered(client) else []


def read_slice(content: Object) -> SliceObject | None:
    """Read a ResourceSlice; None for one of another driver, or of no node in particular."""
    spec, metadata = content["spec"], content["metadata"]
    if spec.get("driver") != DRA_DRIVER or not spec.get("nodeName"):
        return None
    pool = spec.get("pool") or {}
    return SliceObject(
        key=metadata["name"],
        version=int(metadata["resourceVersion"]),
        node=spec["nodeName"],
        pool=str(pool.get("name") or ""),
        generation=int(pool.get("generation") or 0),
        num_slices=int(pool.get("resourceSliceCount") or 0),
        gpus=tuple(_gpu(device) for device in spec.get("devices") or () if _is_whole(device)),
    )


def read_claim(content: Object) -> ClaimObject:
    """Read a ResourceClaim."""
    metadata = content["metadata"]
    owner: Object = next(
        (reference for reference in metadata.get("ownerReferences") or () if reference.get("kind") == "Pod"), {}
    )
    allocation = (content.get("status") or {}).get("allocation") or {}
    return ClaimObject(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        pod=f"{metadata['namespace']}/{owner['name']}" if owner else "",
        pod_uid=str(owner.get("uid") or ""),
        devices=tuple(
            (sys.intern(result["pool"]), sys.intern(result["device"]))
            for result in (allocation.get("devices") or {}).get("results") or ()
            # Administrative access, such as a monitor's, does not block a device for others.
            if result.get("driver") == DRA_DRIVER and not result.get("adminAccess")
        ),
    )


def offered_gpus(slices: Iterable[SliceObject]) -> dict[Device, OfferedGpu]:
    """Return the GPUs of complete pools, each in the pool's newest generation."""
    pools: dict[str, list[SliceObject]] = {}
    for slice_ in slices:
        pools.setdefault(slice_.pool, []).append(slice_)
    gpus: dict[Device, OfferedGpu] = {}
    for pool, own in pools.items():
        generation = max(slice_.generation for slice_ in own)
        newest = [slice_ for slice_ in own if slice_.generation == generation]
        if len(newest) == newest[0].num_slices:
            gpus |= {(pool, gpu.name): gpu for slice_ in newest for gpu in slice_.gpus}
    return gpus


def with_slices(node: NodeObject, slices: Iterable[SliceObject]) -> NodeObject:
    """Return the node with the GPUs that its slices offer, unless a device plugin offers some there."""
    gpus = offered_gpus(slices).values()
    if not gpus or any(count for _, count in node.allocatable.devices):
        return node
    models = {gpu.model for gpu in gpus}
    return replace(
        node,
        allocatable=replace(node.allocatable, devices=((DRA, len(gpus)),)),
        gpu_model=models.pop() if len(models) == 1 else SEVERAL,
        gpu_memory_bytes=min(gpu.memory_bytes for gpu in gpus),
    )


def all_with_slices(nodes: Iterable[NodeObject], slices: Iterable[SliceObject]) -> list[NodeObject]:
    """Return nodes, each with the GPUs that slices offer there."""
    of_node: dict[str, list[SliceObject]] = {}
    for slice_ in slices:
        of_node.setdefault(slice_.node, []).append(slice_)
    return [with_slices(node, of_node[node.key]) if node.key in of_node else node for node in nodes]


def _is_whole(device: Object) -> bool:
    """Return whether a device is a whole GPU that is available to pods."""
    closed = any(taint.get("effect") in _CLOSING for taint in device.get("taints") or ())
    return not closed and _own(device.get("attributes"), "type").get("string") == "gpu"


def _gpu(device: Object) -> OfferedGpu:
    model = str(_own(device.get("attributes"), "productName").get("string") or "GPU")
    memory = quantity(_own(device.get("capacity"), "memory").get("value") or 0)
    return OfferedGpu(
        name=sys.intern(device["name"]), model=sys.intern(model.replace(" ", "-")), memory_bytes=int(memory)
    )


def _own(of: Object | None, name: str) -> Object:
    """Return a value by the driver's name for it, with or without its domain."""
    values: Object = of or {}
    value: Object = values.get(name) or values.get(f"{DRA_DRIVER}/{name}") or {}
    return value
