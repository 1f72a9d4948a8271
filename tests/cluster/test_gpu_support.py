"""Locks against the driver and the GPUs of this machine, played by a stand-in for NVML."""

from pathlib import Path

import pytest

from fairlead.cluster.local.machine import gpu_platform
from fairlead.cluster.local.packages.gpu_support import judge_lock
from fairlead.cluster.local.packages.locked_packages import packages_of
from fairlead.policy.gpu.cuda_support import GpuPlatform, Support
from tests.gpu_machine import play_gpus

LOCK = b"""
lock-version = "1.0"
[[packages]]
name = "torch"
version = "2.11.0"
[[packages]]
name = "nvidia-cuda-runtime"
version = "13.0.96"
marker = "platform_machine == 'x86_64' and sys_platform == 'linux'"
[[packages]]
name = "pywin32"
version = "311"
marker = "sys_platform == 'win32'"
[[packages]]
name = "local"
directory = {path = "."}
"""


def test_driver_and_compute_capabilities_are_read_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_gpus(monkeypatch, tmp_path, "535.54.03", (8, 0), (9, 0))
    platform = gpu_platform()
    assert (platform.driver, platform.capabilities) == ((535, 54, 3), ((8, 0), (9, 0)))
    play_gpus(monkeypatch, tmp_path, "5" * 9, (8, 0))
    assert gpu_platform().driver is None


def test_a_machine_without_a_driver_knows_nothing() -> None:
    platform = gpu_platform()
    assert platform == GpuPlatform(driver=None, processor=platform.processor)


def test_packages_of_another_system_or_processor_do_not_count() -> None:
    assert packages_of(LOCK, "3.12.7", "x86_64") == (("torch", "2.11.0"), ("nvidia-cuda-runtime", "13.0.96"))
    assert packages_of(LOCK, "3.12.7", "aarch64") == (("torch", "2.11.0"),)
    for damaged in (b"packages = 3", b"\xff", LOCK.replace(b"sys_platform", b"(")):
        assert packages_of(damaged, "3.12.7", "x86_64") == ()


def test_a_library_of_the_driver_beside_its_own_makes_a_refusal_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_gpus(monkeypatch, tmp_path / "python", "535.54.03", (8, 0))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert judge_lock(LOCK, "3.12.7", {}).support is Support.REFUSED
    compat = tmp_path / "compat"
    compat.mkdir()
    variables = {"LD_LIBRARY_PATH": f"/nowhere::{compat}"}
    assert judge_lock(LOCK, "3.12.7", variables).support is Support.REFUSED
    (compat / "libcuda.so.1").touch()
    answer = judge_lock(LOCK, "3.12.7", variables)
    assert answer.support is Support.UNKNOWN
    assert answer.message.endswith(f"and {compat} has a libcuda.so.1 of its own, with which it may work")
