"""Ends what a test has left in a state directory of its own."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.errors import NotFound
from fairlead.runtime.podfiles import is_locked
from fairlead.state.snapshot import Intent

PATIENCE_S = 180.0


def end_everything(home: Path) -> None:
    """Stop every run, wait until none of their processes lives, and end the supervisor."""
    if not (home / "fairlead.db").is_file():
        return
    cluster = LocalCluster.open(home)
    for run in cluster.store.active()[0]:
        with suppress(NotFound):  # one that was being deleted
            cluster.set_intent(run.uid, Intent.STOP)
    deadline = time.monotonic() + PATIENCE_S
    while cluster.supervisor_alive() and cluster.store.has_work():
        assert time.monotonic() < deadline, f"still at work: {cluster.store.active()[0]}"
        cluster.nudge()
        cluster.wait(0.5)
    # A shim that has not quite ended starts another supervisor, and one that has just begun has no number yet.
    deadline = time.monotonic() + PATIENCE_S
    while (cluster.supervisor_alive() or _has_shims(home)) and time.monotonic() < deadline:
        pid = cluster.supervisor_pid()
        if pid is not None and not cluster.store.has_work():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        cluster.nudge()
        time.sleep(0.02)
    cluster.close()
    _end_gateway(home, deadline)


def _end_gateway(home: Path, deadline: float) -> None:
    """The gateway outlives its supervisor."""
    lock = home / "serving" / "gateway.lock"
    while is_locked(lock) and time.monotonic() < deadline:
        with suppress(ProcessLookupError, ValueError):
            os.kill(int(lock.read_text()), signal.SIGTERM)
        time.sleep(0.02)


def _has_shims(home: Path) -> bool:
    return any(is_locked(lock) for lock in home.glob("runs/*/pods/*/shim.lock"))
