"""A machine with GPUs of NVIDIA, played by a stand-in for NVML in this process and in those that it starts."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fairlead.cluster.local import machine

NVML = """
from types import SimpleNamespace

DRIVER, CAPABILITIES = {driver!r}, {capabilities!r}


class NVMLError(Exception):
    pass


nvmlInit = nvmlShutdown = lambda: None
nvmlSystemGetDriverVersion = lambda: DRIVER
nvmlDeviceGetCount = lambda: len(CAPABILITIES)
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetCudaComputeCapability = lambda index: CAPABILITIES[index]
nvmlDeviceGetUUID = lambda index: "GPU-" + str(index)
nvmlDeviceGetName = lambda index: "NVIDIA A100-SXM4-80GB"
nvmlDeviceGetMemoryInfo = lambda index: SimpleNamespace(total=80 << 30, used=0)


def __getattr__(name):
    if not name.startswith("nvml"):
        return 0

    def refuse(*arguments):
        raise NVMLError("Not Supported")

    return refuse
"""
# Each Python that starts meanwhile takes the stand-in for a driver.
CUSTOMIZE = """
try:
    from fairlead.cluster.local import machine
except ImportError:
    pass
else:
    machine.DRIVERS = ("/", "/dev/dxg")
"""


def play_gpus(monkeypatch: pytest.MonkeyPatch, directory: Path, driver: str, *capabilities: tuple[int, int]) -> None:
    """Let this machine have a driver and GPUs of these compute capabilities."""
    directory.mkdir(parents=True, exist_ok=True)
    source = NVML.format(driver=driver, capabilities=list(capabilities))
    (directory / "pynvml.py").write_text(source)
    (directory / "sitecustomize.py").write_text(CUSTOMIZE)
    paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    module = ModuleType("pynvml")
    exec(compile(source, "pynvml.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(machine, "DRIVERS", ("/", "/dev/dxg"))
