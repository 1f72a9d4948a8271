"""Starts the supervisor of a state directory. Imports little, since a command does so before it reads its specs."""

import os
import subprocess
import sys

from fairlead.cluster.local.home import Home
from fairlead.runtime.podfiles import take_lock

AHEAD = "ahead"
"""Marks a supervisor as started before there is work; the command's process id follows."""


def start_supervisor(home: Home, *, is_ahead: bool = False) -> None:
    """Start a supervisor that holds the lock from its first moment, so that no second one is started meanwhile.

    Args:
        is_ahead: There is no work yet; it ends with this process, or soon, if none arrives.
    """
    try:
        lock = take_lock(home.lock)
    except OSError:  # `LocalCluster.trouble` reports the cause
        return
    if lock is None:
        return
    try:
        supervisor = subprocess.Popen(
            [
                sys.executable, "-m", "fairlead.control.supervisor", os.fspath(home.path), str(lock),
                *([AHEAD, str(os.getpid())] if is_ahead else []),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            pass_fds=[lock],
        )  # fmt: skip
        # It outlives this process on purpose; this suppresses the warning about a child that is still running.
        supervisor.returncode = 0
        home.sign_lock(lock, supervisor.pid)
    finally:
        os.close(lock)
