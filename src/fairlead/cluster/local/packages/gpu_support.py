"""Judges the lock of an environment by the driver and the GPUs of this machine, before anything is installed.

See decision 228.
"""

import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fairlead.cluster.local.machine import gpu_platform
from fairlead.cluster.local.packages.locked_packages import packages_of
from fairlead.policy.gpu.cuda_support import GpuSupport, Support, judge

OWN_LIBRARY = "libcuda.so.1"


def judge_lock(lock: bytes, python: str, environ: Mapping[str, str]) -> GpuSupport:
    """Return how the packages of a lock stand to this machine.

    Args:
        python: Full version of its Python.
        environ: Variables of the run, whose LD_LIBRARY_PATH may have another library of the driver.
    """
    answer = judge(packages_of(lock, python, platform.machine()), gpu_platform())
    own = next((path for path in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if _has_library(path)), None)
    if answer.support is Support.REFUSED and own is not None:
        # A forward compatibility package, which runs newer programs on some GPUs.
        message = f"{answer.message}, and {own} has a {OWN_LIBRARY} of its own, with which it may work"
        return replace(answer, support=Support.UNKNOWN, message=message, remedy=None)
    return answer


def _has_library(directory: str) -> bool:
    return bool(directory) and (Path(directory) / OWN_LIBRARY).exists()
