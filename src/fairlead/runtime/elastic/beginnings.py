"""Tells whether the ranks of a start have met, by a file; for whoever watches them. Any Python from 3.9 on."""

from __future__ import annotations

import os

EPOCH = "epoch.json"


def has_begun(directory: str) -> bool:
    """Return whether ranks have met there, so that one that is killed can be taken in again."""
    return os.path.exists(os.path.join(directory, EPOCH))
