"""A disk that can be filled, for tests of what happens then."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEEDS_ROOT = os.geteuid() != 0
WHY = "a full disk needs a mount, and that needs root; tests of the words and of single writes cover the rest"


@contextmanager
def small_disk(path: Path, num_bytes: int) -> Iterator[bool]:
    """A disk of that size at a directory; false where this machine refuses to mount one."""
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes},mode=0700", "tmpfs", str(path)]
    mounted = not NEEDS_ROOT and subprocess.run(command, check=False, timeout=60).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(path)], check=True, timeout=60)


def fill(disk: Path, name: str = "filler") -> Path:
    """Write until nothing more can be written; the file, to be removed to make room."""
    filler = disk / name
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return filler
