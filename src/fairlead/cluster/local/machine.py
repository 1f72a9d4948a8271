"""Describes this machine as a node: its cores, its memory, its GPUs through NVML."""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.policy.gpu.cuda_support import GpuPlatform, parse_driver
from fairlead.state.snapshot import Gpu, Node

if TYPE_CHECKING:
    from fairlead.policy.gpu.cuda_support import GpuPlatform

NAME = "localhost"
# One of these exists wherever NVML works on Linux; the last is that of Windows' subsystem.
DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg")


def node() -> Node:
    """Return this machine, as far as this process may use it. Its price is 0: a run on it costs nothing more."""
    return Node(name=NAME, cpu_milli=_cpu_milli(), memory_bytes=_memory_bytes(), gpus=gpus(), price_per_hour=0.0)


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that NVML lists, without those split by MIG; empty without a driver."""
    if sys.platform == "linux" and not any(map(os.path.exists, DRIVERS)):
        return ()  # avoids loading a library only to find no driver
    with _nvml() as nvml:
        return tuple(
            Gpu(
                uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                model=_text(nvml.nvmlDeviceGetName(handle)).removeprefix("NVIDIA "),
                memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            )
            for handle in _handles(nvml)
            if not _is_split(handle)
        )


def gpu_driver() -> str | None:
    """Return the version of the GPU driver; None without one."""
    import pynvml

    with _nvml() as nvml:
        try:
            return None if nvml is None else _text(nvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError:
            return None


def gpu_platform() -> "GpuPlatform":
    """Return the driver and the compute capabilities of this machine's GPUs, as far as NVML says."""
    nothing = GpuPlatform(driver=None, processor=platform.machine())
    if sys.platform != "linux" or not any(map(os.path.exists, DRIVERS[:-1])):
        return nothing  # in Windows' subsystem the driver is that of Windows, with versions of its own
    import pynvml

    with _nvml() as nvml:
        if nvml is None:
            return nothing
        try:
            driver = parse_driver(_text(nvml.nvmlSystemGetDriverVersion()))
            pairs = [nvml.nvmlDeviceGetCudaComputeCapability(handle) for handle in _handles(nvml)]
        except pynvml.NVMLError:
            return nothing
    return replace(nothing, driver=driver, capabilities=tuple((int(major), int(minor)) for major, minor in pairs))


@contextmanager
def _nvml() -> Iterator[Any]:
    """Open NVML; None where it cannot be opened."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _handles(nvml: Any) -> list[Any]:
    """Return the handles of all GPUs; none without NVML."""
    if nvml is None:
        return []
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _cpu_milli() -> int:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota_milli()
    return min(allowed * 1000, quota) if quota is not None else allowed * 1000


def _cpu_quota_milli() -> int | None:
    """Return a container's CPU quota (cgroup v2); None without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) * 1000 // int(period)


def _memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sys.platform == "linux":
        for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
            try:
                total = min(total, int(Path(limit).read_text()))
            except (OSError, ValueError):  # no such controller, or "max"
                continue
    return total


def _is_split(handle: object) -> bool:
    import pynvml

    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # a device without MIG support
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
