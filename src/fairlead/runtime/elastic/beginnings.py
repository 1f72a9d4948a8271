"""Reports, from a file, whether the ranks of an attempt have formed a group; for their supervisor. Python 3.9 on."""

from __future__ import annotations

import os

EPOCH = "epoch.json"


def has_begun(directory: str) -> bool:
    """Return whether the ranks have formed their first group, so that a killed rank can be taken in again."""
    return os.path.exists(os.path.join(directory, EPOCH))
