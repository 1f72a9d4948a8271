"""A stand-in for NVML's Python binding, as much of it as Fairlead asks, for machines without a GPU."""

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any


@dataclass
class Device:
    """A device; a value that is None is not supported by it.

    Attributes:
        by_process: Percent of its time by process, as its newest samples say.
        memory_by_process: Bytes by process.
        uncorrected: Errors of its memory since its driver was loaded.
        xids: Reported and not yet read.
    """

    uuid: str
    busy_percent: int | None = 0
    memory_used: int | None = 2**30
    power_mw: int | None = 100_000
    celsius: int | None = 50
    name: str | bytes = "NVIDIA A100-SXM4-80GB"
    by_process: dict[int, int] | None = field(default_factory=dict)
    memory_by_process: dict[int, int | None] | None = field(default_factory=dict)
    uncorrected: int | None = 0
    xids: list[int] = field(default_factory=list)


class _EventSet(list[Device]):
    """A set of events; like NVML's own it is true without devices, too."""

    def __bool__(self) -> bool:
        return True


def fake_nvml(*devices: Device) -> Any:
    """The module ``pynvml`` for these devices, to be put into ``sys.modules``."""

    class NVMLError(Exception):
        pass

    found = {device.uuid: device for device in devices}
    module: Any = ModuleType("pynvml")
    module.NVMLError, module.NVML_TEMPERATURE_GPU, module.num_open = NVMLError, 0, 0

    def told(value: Any) -> Any:
        if value is None:
            raise NVMLError("Not Supported")
        return value

    def opened(by: int) -> None:
        module.num_open += by

    def handle(uuid: str) -> Device:
        if uuid not in found:
            raise NVMLError("Not Found")
        return found[uuid]

    def processes(device: Device, since_us: int) -> list[SimpleNamespace]:
        newest = told(device.by_process)
        return [SimpleNamespace(pid=pid, smUtil=percent, timeStamp=since_us + 1) for pid, percent in newest.items()]

    def holders(device: Device) -> list[SimpleNamespace]:
        held = told(device.memory_by_process)
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in held.items()]

    def event(watched: list[Device], _: int) -> SimpleNamespace:
        reporting = next((device for device in watched if device.xids), None)
        if reporting is None:
            raise NVMLError("Timeout")
        return SimpleNamespace(device=reporting, eventData=reporting.xids.pop(0))

    module.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, module.NVML_VOLATILE_ECC, module.nvmlEventTypeXidCriticalError = 1, 0, 8
    module.nvmlDeviceGetTotalEccErrors = lambda device, *_: told(device.uncorrected)
    module.nvmlEventSetCreate = lambda: _EventSet()
    module.nvmlEventSetFree = lambda _: None
    module.nvmlDeviceRegisterEvents = lambda device, _, watched: watched.append(device)
    module.nvmlEventSetWait_v2 = event
    module.nvmlDeviceGetComputeRunningProcesses = holders
    module.nvmlInit = lambda: opened(1)
    module.nvmlShutdown = lambda: opened(-1)
    module.nvmlDeviceGetHandleByUUID = handle
    module.nvmlDeviceGetName = lambda device: device.name
    module.nvmlDeviceGetUtilizationRates = lambda device: SimpleNamespace(gpu=told(device.busy_percent))
    module.nvmlDeviceGetMemoryInfo = lambda device: SimpleNamespace(used=told(device.memory_used))
    module.nvmlDeviceGetPowerUsage = lambda device: told(device.power_mw)
    module.nvmlDeviceGetTemperature = lambda device, _: told(device.celsius)
    module.nvmlDeviceGetProcessUtilization = processes
    return module
