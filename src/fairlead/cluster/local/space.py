"""Measures how much of a disk a directory takes."""

import os
from pathlib import Path

BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own


def used_bytes(directory: Path) -> int:
    """Bytes on disk of all files below, without following links; what cannot be read counts nothing."""
    total, left = 0, [os.fspath(directory)]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
        except OSError:
            continue
    return total
