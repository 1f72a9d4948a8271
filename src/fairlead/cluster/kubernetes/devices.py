"""Reads how a node offers its GPUs: whole devices, MIG slices or time slices; maps grants to resources.

A device of placement is named ``RESOURCE#NUMBER``, so that a grant contains the resource to request from the node.

See decision 117.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from fairlead.frozen import dataclass
from fairlead.policy.gpu.cuda_support import GpuPlatform, Version, parse_driver
from fairlead.policy.gpu.mig import GB, partitionable
from fairlead.specs.sharing import Sharing
from fairlead.state.node_pools import pool_name
from fairlead.state.snapshot import WHOLE_MILLI, Gpu, Node

WHOLE = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "gpu.intel.com/xe",
    "gpu.intel.com/i915",
    "habana.ai/gaudi",
)
SHARED = "nvidia.com/gpu.shared"  # the device plugin's name for time slices, if it renames them
# A GPU of NVIDIA's DRA driver, as the extended resource of its DeviceClass.
DRA_DRIVER = "gpu.nvidia.com"
DRA = f"deviceclass.resource.kubernetes.io/{DRA_DRIVER}"
REPLICAS = "nvidia.com/gpu.replicas"  # label: number of pods that share one device, by time slices or MPS
STRATEGY = "nvidia.com/gpu.sharing-strategy"  # label: time slices or MPS; "none" if devices are not shared
PRODUCT = "nvidia.com/gpu.product"  # label: ends in -MIG-1g.10gb if every device is such a slice
# Labels of GPU feature discovery, its newer ones first: the whole version, or its parts. Source: NVIDIA's
# k8s-device-plugin, internal/lm/nvml.go, where the others are called deprecated.
DRIVER = "nvidia.com/cuda.driver-version.full"
DRIVER_PARTS = (
    ("nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver-version.minor",
     "nvidia.com/cuda.driver-version.revision"),
    ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev"),
)  # fmt: skip
# Compute capability, by the same.
CAPABILITY_PARTS = ("nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor")
MIG_SLICES = 7  # compute slices of a GPU that can be partitioned, except for the few with fewer
_SLICE = r"([1-7])g\.([0-9]+)gb(?:[.+][a-z.]+)?"
_MIG = re.compile(rf"nvidia\.com/mig-{_SLICE}")
_ONLY_SLICES = re.compile(rf".*-MIG-{_SLICE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResource:
    """A resource name and the number that a pod requests."""

    name: str
    count: int


def gpus_of(
    offered: Iterable[tuple[str, int]], labels: Mapping[str, str], model: str, memory_bytes: int
) -> tuple[Gpu, ...]:
    """Return the devices of a node, and the parts of devices, as placement uses them.

    Args:
        offered: The node's extended resources that are devices, with the number of each.
        memory_bytes: Memory of one whole device; 0 if no label has it.
    """
    return tuple(
        Gpu(uuid=f"{name}#{number}", model=model, memory_bytes=memory, milli=milli, divisible=False, shared_by=sharing)
        for name, count in offered
        for milli, memory in (_size(name, labels, model, memory_bytes),)
        for sharing in (_sharing(name, labels, milli),)
        for number in range(count)
    )


def resource_of(gpu_uuids: Iterable[str]) -> DeviceResource | None:
    """Return the resource to request from a node for these granted devices; None for no devices."""
    names = [uuid.partition("#")[0] for uuid in gpu_uuids]
    return DeviceResource(name=names[0], count=len(names)) if names else None


def whole_resource(offered: Collection[str]) -> str:
    """Choose the resource to request for whole GPUs among those offered; ``nvidia.com/gpu`` if none is."""
    return next((name for name in (*WHOLE, DRA) if name in offered), WHOLE[0])


def driver_of(labels: Mapping[str, str]) -> Version | None:
    """Return the version of a node's GPU driver, as its labels say; None if none does."""
    parts = (".".join(filter(None, (labels.get(name) for name in names))) for names in DRIVER_PARTS)
    texts = (labels.get(DRIVER), *parts)
    return next((version for text in texts if (version := parse_driver(text)) is not None), None)


def gpu_platform(node: Node, machine: str) -> GpuPlatform:
    """Return the driver and the GPUs of a node with GPUs, as its labels say.

    Args:
        machine: The architecture of its processor, such as x86_64.
    """
    major, minor = (node.labels.get(name, "") for name in CAPABILITY_PARTS)
    is_known = all(part.isascii() and part.isdigit() and len(part) < 4 for part in (major, minor))
    return GpuPlatform(
        driver=driver_of(node.labels),
        capabilities=((int(major), int(minor)),) if is_known else (),
        processor=machine,
        place=f"pool {pool_name(node.name, node.labels)}",
        is_amd=any(gpu.uuid.startswith("amd.com/") for gpu in node.gpus),
    )


def is_device(name: str) -> bool:
    """Return whether a resource is a GPU or a part of one."""
    return name in WHOLE or name in (SHARED, DRA) or _MIG.fullmatch(name) is not None


def _sharing(name: str, labels: Mapping[str, str], milli: int) -> Sharing | None:
    """Return how items of one device are isolated from each other; None if devices are not shared."""
    if milli == WHOLE_MILLI:
        return None
    if labels.get(STRATEGY) == Sharing.MPS:
        return Sharing.MPS
    is_instance = _MIG.fullmatch(name) or _ONLY_SLICES.fullmatch(labels.get(PRODUCT, ""))
    is_sliced = name.endswith(".shared") or labels.get(STRATEGY) == Sharing.TIME_SLICING
    return Sharing.MIG if is_instance and not is_sliced else Sharing.TIME_SLICING


def _size(name: str, labels: Mapping[str, str], model: str, memory_bytes: int) -> tuple[int, int]:
    """Return the thousandths of a device and the bytes of its memory that one item of a resource has."""
    sliced = _MIG.fullmatch(name)
    if sliced is None and name == WHOLE[0]:
        sliced = _ONLY_SLICES.fullmatch(labels.get(PRODUCT, ""))
    if sliced is not None:
        known = partitionable(model, memory_bytes)
        return int(sliced[1]) * WHOLE_MILLI // (known.compute if known else MIG_SLICES), int(sliced[2]) * GB
    if name in (SHARED, WHOLE[0]):
        replicas = labels.get(REPLICAS, "")
        # If the number of time slices is unknown, a device is shared by at least two.
        num = int(replicas) if replicas.isdigit() and int(replicas) > 0 else 2 if name == SHARED else 1
        return max(1, WHOLE_MILLI // num), memory_bytes // num
    return WHOLE_MILLI, memory_bytes
