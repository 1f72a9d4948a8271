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
    """

    uuid: str
    busy_percent: int | None = 0
    memory_used: int | None = 2**30
    power_mw: int | None = 100_000
    celsius: int | None = 50
    name: str | bytes = "NVIDIA A100-SXM4-80GB"
    by_process: dict[int, int] | None = field(default_factory=dict)
    memory_by_process: dict[int, int | None] | None = field(default_factory=dict)


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
