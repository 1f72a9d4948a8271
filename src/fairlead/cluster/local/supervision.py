"""Starts the supervisor of a state directory. Imports little, since a command does so before it reads its specs."""

import os
import subprocess
import sys

from fairlead.cluster.local.home import Home
from fairlead.runtime.podfiles import read_json, take_lock

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
            env=_environ(),
            start_new_session=True,
            pass_fds=[lock],
        )  # fmt: skip
        # It outlives this process on purpose; this suppresses the warning about a child that is still running.
        supervisor.returncode = 0
        home.sign_lock(lock, supervisor.pid)
    finally:
        os.close(lock)


def _environ() -> dict[str, str] | None:
    """Return the environment of a supervisor; None for that of this process.

    A program of a run may start one, with a command or as the driver of a pipeline. That of the run, with its devices
    and its uid, must not pass to a supervisor and from there to other runs; the pod has that of the supervisor before.
    """
    directory = os.environ.get("FAIRLEAD_POD_DIR")
    pod = None if directory is None else read_json(os.path.join(directory, "pod.json"))
    return None if pod is None else pod.get("supervisor_env")
