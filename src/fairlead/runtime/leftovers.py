"""Ends what a pod left behind when its shim was killed and could not clean up itself.

Ranks die with their shim. What they started does not, but it carries the pod's uid in its environment.
"""

from __future__ import annotations

import os
import time

from fairlead.runtime import processes

_POLL_S = 0.01


def kill_leftovers(pod_uid: str, *, timeout_s: float = 5.0) -> int:
    """Kills every other process with FAIRLEAD_POD_UID=pod_uid until none is left; returns how many it killed.

    Raises:
        TimeoutError: some process would not die, or is not ours to kill, within timeout_s.
    """
    deadline = time.monotonic() + timeout_s
    killed: set[int] = set()
    while True:
        # A zombie has no environment to read, so what is found is alive.
        left = [pid for pid in processes.processes_with("FAIRLEAD_POD_UID", pod_uid) if pid != os.getpid()]
        if not left:
            return len(killed)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} of pod {pod_uid} did not end within {timeout_s} s of SIGKILL")
        processes.kill(left)
        killed.update(left)
        time.sleep(_POLL_S)
