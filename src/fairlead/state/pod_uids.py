"""Builds the uids of pods, from which every cluster knows that a pod was created already, and reads them."""

import re

_REPLACEMENT = re.compile(r"-\d+r(\d+)$")


def pod_uid(workload_uid: str, attempt: int, index: int, replacement: int = 0) -> str:
    """Return ``<workload uid>-<attempt>-<index>``, and ``r<number>`` after it for a replacement."""
    return f"{workload_uid}-{attempt}-{index}" + (f"r{replacement}" if replacement else "")


def replacement_of(uid: str) -> int:
    """Return which replacement a pod's uid names; 0 for the pod that its gang started with."""
    match = _REPLACEMENT.search(uid)
    return 0 if match is None else int(match[1])
