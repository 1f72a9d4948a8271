"""Judges the lock of an environment by the driver and the GPUs of this machine, before anything is installed.

See decision 228.
"""

import os
import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fairlead.cluster.local.machine import gpu_platform
from fairlead.policy.gpu.cuda_support import GpuSupport, Support, judge

OWN_LIBRARY = "libcuda.so.1"
_TERM = re.compile(r"\s*(\w+)\s*==\s*'([^']*)'\s*|\s*(\w+)\s*==\s*\"([^\"]*)\"\s*")


def judge_lock(lock: bytes, environ: Mapping[str, str]) -> GpuSupport:
    """Return how the packages of a lock stand to this machine.

    Args:
        environ: Variables of the run, whose LD_LIBRARY_PATH may have another library of the driver.
    """
    answer = judge(packages_of(lock, platform.machine()), gpu_platform())
    own = next((path for path in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if _has_library(path)), None)
    if answer.support is Support.REFUSED and own is not None:
        # A forward compatibility package, which runs newer programs on some GPUs.
        message = f"{answer.message}, and {own} has a {OWN_LIBRARY} of its own, with which it may work"
        return replace(answer, support=Support.UNKNOWN, message=message, remedy=None)
    return answer


def packages_of(lock: bytes, processor: str) -> tuple[tuple[str, str], ...]:
    """Return name and version of each package of a lock that Linux on a processor gets; none of what is no lock."""
    try:
        packages = tomllib.loads(lock.decode())["packages"]
        return tuple(
            (str(package["name"]), str(package["version"]))
            for package in packages
            if "version" in package and _applies(str(package.get("marker", "")), processor)
        )
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError, AttributeError, KeyError, TypeError):
        return ()  # uv says what is wrong with it


def _applies(marker: str, processor: str) -> bool:
    """Return whether a marker may hold here; only comparisons joined by ``and`` are evaluated."""
    own = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": processor}
    terms = [_TERM.fullmatch(term) for term in marker.split(" and ")]
    pairs = [(term[1] or term[3], term[2] or term[4]) for term in terms if term is not None]
    return all(own.get(name, value) == value for name, value in pairs)


def _has_library(directory: str) -> bool:
    return bool(directory) and (Path(directory) / OWN_LIBRARY).exists()
