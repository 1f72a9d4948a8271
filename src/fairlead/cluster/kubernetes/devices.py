"""Which resource of a node a GPU request is met by: whole devices, a MIG slice, or a share of one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.specs.resources import GpuRequest

WHOLE = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "gpu.intel.com/xe",
    "gpu.intel.com/i915",
    "habana.ai/gaudi",
)
SHARED = "nvidia.com/gpu.shared"  # the device plugin's name for time slices, where it renames them
_MIG = re.compile(r"nvidia\.com/mig-([1-7])g\.([0-9]+)gb(?:\.[a-z.]+)?")
MIG_SLICES = 7  # compute slices of every GPU that can be partitioned
GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResource:
    """A resource name and how many of it a pod asks for."""

    name: str
    count: int


def device_resource(request: GpuRequest, allocatable: Mapping[str, int]) -> DeviceResource | None:
    """What to ask a node for; None when it offers nothing of the kind.

    A share is met by the smallest MIG slice that is as large and has the memory, else by one time slice.

    Args:
        allocatable: The node's extended resources by name.
    """
    if request.milli >= 1000:
        name = next((name for name in WHOLE if allocatable.get(name, 0) >= request.num_devices), None)
        return None if name is None else DeviceResource(name=name, count=request.num_devices)
    slices = sorted(found for name, count in allocatable.items() if count > 0 and (found := _slice(name)) is not None)
    for compute, memory_gb, name in slices:
        has_memory = request.min_memory_bytes is None or memory_gb * GB >= request.min_memory_bytes
        if compute * 1000 >= request.milli * MIG_SLICES and has_memory:
            return DeviceResource(name=name, count=1)
    return DeviceResource(name=SHARED, count=1) if allocatable.get(SHARED, 0) > 0 else None


def is_device(name: str) -> bool:
    """Whether a resource is a GPU or a part of one."""
    return name in WHOLE or name == SHARED or _MIG.fullmatch(name) is not None


def _slice(name: str) -> tuple[int, int, str] | None:
    match = _MIG.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]), name)
