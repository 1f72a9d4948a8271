"""Seeded rounds on real processes, each with one to three faults at random instants.

Cheaper tests cover each recovery alone; only this one finds the instants between two steps of any of them.
FAIRLEAD_CHAOS_ROUNDS=200 runs so many of them.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.world import Round, begin, end
from tests.rounds import rounds

DISK_BYTES = 6 * 1024 * 1024

pytestmark = pytest.mark.slow


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A disk that can be filled; None where this user may not mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = sys.platform == "linux" and os.geteuid() == 0
    if mounted:
        argv = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(disk)]
        mounted = subprocess.run(argv, check=False, timeout=60).returncode == 0
    yield disk if mounted else None
    if mounted:
        subprocess.run(["umount", "-l", str(disk)], check=True, timeout=60)


def faults_of(world: Round, has_small_disk: bool) -> list[str]:
    names = ["kill_rank"] * 3 + ["kill_shim", "kill_supervisor"] * 2 + ["kill_cli", "corrupt_newest_checkpoint"]
    return [
        world.rng.choice([*names, "fill_disk"] if has_small_disk else names) for _ in range(world.rng.randint(1, 3))
    ]


@pytest.mark.parametrize("seed", rounds(few=3, many=15))
def test_no_fault_loses_repeats_or_doubles_work(seed: int, tmp_path: Path, small_disk: Path | None) -> None:
    home = (small_disk or tmp_path) / "home"
    world = begin(seed, home)
    try:
        for fault in faults_of(world, small_disk is not None):
            time.sleep(world.rng.uniform(0.05, 0.9))
            getattr(world, fault)()
        world.check(world.finished())
    finally:
        end(world)
        shutil.rmtree(home, ignore_errors=True)
