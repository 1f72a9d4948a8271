"""Follows the edits of a run's code on this machine: each saved edit restarts the run with it."""

import threading
import time

from fairlead.cli.follow import DETACHED, follow
from fairlead.cli.show import message
from fairlead.cluster.client import ClusterClient, OwnMachine
from fairlead.errors import FairleadError, NotFound
from fairlead.state.snapshot import Phase, Workload

# Interval between two looks at the files, or this many times the duration of a look if that is more.
LOOK_S = 0.15
LOOK_TIMES = 5.0


def follow_edits(cluster: ClusterClient, run: Workload, *, json_: bool = False) -> int:
    """Show a run, and restart it with each saved edit, until it succeeds or is stopped; return the exit code.

    A run that failed waits for the next edit.
    """
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(cluster, run, ended), name="edits", daemon=True)
    watcher.start()
    since: float | None = None
    try:
        while True:
            code = follow(cluster, [run], json_=json_, since=since)
            since = time.time()
            if code == DETACHED or cluster.get(run.uid).status.phase is not Phase.FAILED:
                return code
            message(f"{run.spec.name} starts again with the next edit; Ctrl-C leaves it as it is.")
            while cluster.get(run.uid).status.phase is Phase.FAILED:
                cluster.wait(LOOK_S)
    except (KeyboardInterrupt, NotFound):
        return DETACHED
    finally:
        ended.set()
        watcher.join()


def _watch(of: ClusterClient, run: Workload, ended: threading.Event) -> None:
    """Restart the run when its code was edited; a second look waits for the rest of what is being saved."""
    cluster = of.another()  # a connection belongs to one thread
    machine: OwnMachine | None = cluster.machine
    assert machine is not None, "checked before"
    seen: tuple[str, ...] = ()
    try:
        while True:
            began = time.monotonic()
            edited = machine.edited(run.uid)
            if edited and edited == seen:
                machine.restart_with_edits(run.uid, edited)
                cluster.nudge()
            seen = edited
            if ended.wait(max(LOOK_S, LOOK_TIMES * (time.monotonic() - began))):
                return
    except FairleadError as error:
        if not isinstance(error, NotFound):
            message(f"fairlead: edits are not followed any more: {error}")
    finally:
        cluster.close()
