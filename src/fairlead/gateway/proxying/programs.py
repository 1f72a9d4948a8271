"""Names the programs that take requests to replicas, and finds haproxy."""

import os
import shutil
from pathlib import Path

PYTHON, HAPROXY = "python", "haproxy"
PROXIES = (PYTHON, HAPROXY)
_BESIDE_PATH = "/usr/sbin:/usr/local/sbin"
"""Debian installs it outside of a user's PATH."""


def find_haproxy() -> Path | None:
    """Return the path of haproxy; None if it is not installed."""
    path = shutil.which(HAPROXY, path=f"{os.environ.get('PATH', os.defpath)}:{_BESIDE_PATH}")
    return None if path is None else Path(path)
