"""Reads what a node hands out of its GPUs: whole devices, MIG slices, or time slices; and which resource a grant means.

A device of placement is called ``RESOURCE#NUMBER``, so that a grant says what to ask the node for.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from fairlead.frozen import dataclass
from fairlead.policy.gpu.mig import GB, partitionable
from fairlead.specs.sharing import Sharing
from fairlead.state.snapshot import WHOLE_MILLI, Gpu

WHOLE = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "gpu.intel.com/xe",
    "gpu.intel.com/i915",
    "habana.ai/gaudi",
)
SHARED = "nvidia.com/gpu.shared"  # the device plugin's name for time slices, where it renames them
# A GPU of NVIDIA's driver for dynamic resource allocation, by the extended resource of its DeviceClass.
DRA_DRIVER = "gpu.nvidia.com"
DRA = f"deviceclass.resource.kubernetes.io/{DRA_DRIVER}"
REPLICAS = "nvidia.com/gpu.replicas"  # label: how many pods share one device, by time slices or MPS
STRATEGY = "nvidia.com/gpu.sharing-strategy"  # label: which of the two; "none" where devices go whole
PRODUCT = "nvidia.com/gpu.product"  # label: ends in -MIG-1g.10gb where every device is such a slice
MIG_SLICES = 7  # compute slices of every GPU that can be partitioned, but for the few that have fewer
_SLICE = r"([1-7])g\.([0-9]+)gb(?:[.+][a-z.]+)?"
_MIG = re.compile(rf"nvidia\.com/mig-{_SLICE}")
_ONLY_SLICES = re.compile(rf".*-MIG-{_SLICE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResource:
    """A resource name and how many of it a pod asks for."""

    name: str
    count: int


def gpus_of(
    offered: Iterable[tuple[str, int]], labels: Mapping[str, str], model: str, memory_bytes: int
) -> tuple[Gpu, ...]:
    """The devices of a node, and the parts of devices, as placement sees them.

    Args:
        offered: Its extended resources that are devices, with how many of each it has.
        memory_bytes: Of one whole device; 0 when no label says it.
    """
    return tuple(
        Gpu(uuid=f"{name}#{number}", model=model, memory_bytes=memory, milli=milli, divisible=False, shared_by=sharing)
        for name, count in offered
        for milli, memory in (_size(name, labels, model, memory_bytes),)
        for sharing in (_sharing(name, labels, milli),)
        for number in range(count)
    )


def resource_of(gpu_uuids: Iterable[str]) -> DeviceResource | None:
    """Name what to ask a node for that was granted these devices; None for none."""
    names = [uuid.partition("#")[0] for uuid in gpu_uuids]
    return DeviceResource(name=names[0], count=len(names)) if names else None


def whole_resource(offered: Collection[str]) -> str:
    """Choose which resource to request for whole GPUs, of those that nodes offer; ``nvidia.com/gpu`` if none is."""
    return next((name for name in (*WHOLE, DRA) if name in offered), WHOLE[0])


def is_device(name: str) -> bool:
    """Return whether a resource is a GPU or a part of one."""
    return name in WHOLE or name in (SHARED, DRA) or _MIG.fullmatch(name) is not None


def _sharing(name: str, labels: Mapping[str, str], milli: int) -> Sharing | None:
    """Tell how whoever has one item is kept apart from others on the same device; None where there are none."""
    if milli == WHOLE_MILLI:
        return None
    if labels.get(STRATEGY) == Sharing.MPS:
        return Sharing.MPS
    is_instance = _MIG.fullmatch(name) or _ONLY_SLICES.fullmatch(labels.get(PRODUCT, ""))
    is_sliced = name.endswith(".shared") or labels.get(STRATEGY) == Sharing.TIME_SLICING
    return Sharing.MIG if is_instance and not is_sliced else Sharing.TIME_SLICING


def _size(name: str, labels: Mapping[str, str], model: str, memory_bytes: int) -> tuple[int, int]:
    """Thousandths of a device, and bytes of its memory, of one item of a resource."""
    sliced = _MIG.fullmatch(name)
    if sliced is None and name == WHOLE[0]:
        sliced = _ONLY_SLICES.fullmatch(labels.get(PRODUCT, ""))
    if sliced is not None:
        known = partitionable(model, memory_bytes)
        return int(sliced[1]) * WHOLE_MILLI // (known.compute if known else MIG_SLICES), int(sliced[2]) * GB
    if name in (SHARED, WHOLE[0]):
        told = labels.get(REPLICAS, "")
        # Time slices that do not say how many they are share with one other at least.
        num = int(told) if told.isdigit() and int(told) > 0 else 2 if name == SHARED else 1
        return max(1, WHOLE_MILLI // num), memory_bytes // num
    return WHOLE_MILLI, memory_bytes
