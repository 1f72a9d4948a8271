"""Starts the supervisor of a state directory. Imports little: a command does so before it reads its specs."""

import os
import subprocess
import sys

from fairlead.cluster.local.home import Home
from fairlead.runtime.podfiles import take_lock

AHEAD = "ahead"
"""Tells a supervisor that it was started before there is any work; then comes the command's process id."""


def start_supervisor(home: Home, *, is_ahead: bool = False) -> None:
    """Start one that holds the lock from its first moment: whoever comes meanwhile sees it and starts no other.

    Args:
        is_ahead: There is no work yet; it leaves with this process, or soon, when none comes.
    """
    try:
        lock = take_lock(home.lock)
    except OSError:  # `LocalCluster.trouble` says what is in the way
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
        # It outlives this process on purpose, so nobody is to wait for it or to warn that nobody does.
        supervisor.returncode = 0
        home.sign_lock(lock, supervisor.pid)
    finally:
        os.close(lock)
