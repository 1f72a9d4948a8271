"""Ends what a test has left in a state directory of its own."""

import os
import signal
from pathlib import Path

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.state.snapshot import Intent


def end_everything(home: Path) -> None:
    """Stop every run, wait until none of their processes lives, and end the supervisor."""
    if not (home / "fairlead.db").is_file():
        return
    cluster = LocalCluster.open(home)
    for run in cluster.store.active()[0]:
        cluster.set_intent(run.uid, Intent.STOP)
    while cluster.supervisor_alive() and cluster.store.has_work():
        cluster.nudge()
        cluster.wait(0.5)
    pid = cluster.supervisor_pid()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
    cluster.close()
