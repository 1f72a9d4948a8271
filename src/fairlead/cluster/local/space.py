"""Measures the disk usage of a directory."""

import os
from pathlib import Path

BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own


def used_bytes(directory: Path) -> int:
    """Return bytes on disk of all files below a directory, without following links; unreadable files count as 0."""
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
