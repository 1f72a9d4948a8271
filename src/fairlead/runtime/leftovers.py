"""Kills processes that a pod left behind when its shim was killed and could not clean up.

Ranks die with their shim. Their child processes do not, but have the pod's uid in their environment.
"""

from __future__ import annotations

import os
import time

from fairlead.runtime import processes

_POLL_S = 0.01


def kill_leftovers(pod_uid: str, *, timeout_s: float = 5.0) -> int:
    """Kill every other process with FAIRLEAD_POD_UID=pod_uid until none is left, and return how many were killed.

    Raises:
        TimeoutError: Some process did not end, or may not be killed by this user, within ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    killed: set[int] = set()
    while True:
        # A zombie has no readable environment, so every process found is alive.
        left = [pid for pid in processes.processes_with("FAIRLEAD_POD_UID", pod_uid) if pid != os.getpid()]
        if not left:
            return len(killed)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} of pod {pod_uid} did not end within {timeout_s} s of SIGKILL")
        processes.kill(left)
        killed.update(left)
        time.sleep(_POLL_S)
