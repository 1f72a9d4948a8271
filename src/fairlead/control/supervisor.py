"""The background process of the local cluster: ``python -m fairlead.control.supervisor HOME [LOCK [ahead]]``.

One for each state directory, proved by a lock. It may be killed at any instant: whoever comes next, started by a shim
or by any command, works on from the database and the files.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cluster.local.agent import Agent
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.disk_errors import explained
from fairlead.cluster.local.endpoints import Endpoints
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.room import hold_reserve
from fairlead.cluster.local.supervision import AHEAD
from fairlead.cluster.selection import FINISHED, Selection
from fairlead.control.loop import run_pass
from fairlead.control.pass_counts import PassCounts
from fairlead.errors import ClusterError, NoRoom
from fairlead.policy.kinds.parents import foresee_parents
from fairlead.policy.kinds.retention import KEEP_ALL, forgetting
from fairlead.runtime.podfiles import take_lock

if TYPE_CHECKING:
    from fairlead.control.pipelines.triggers import Triggers
    from fairlead.control.span_exporter import SpanExporter

log = logging.getLogger("fairlead.supervisor")

# Between looks at live pods, whose ranks report progress up to five times a second. Ends and requests wake it at once.
BUSY_WAIT_S = 0.5
# With nothing alive only the clock can bring work: retries and deadlines.
QUIET_WAIT_S = 2.0
# With nothing unfinished it stays a while for the next command, then goes.
IDLE_EXIT_S = 300.0
# One that was started beside a command that is about to submit waits so long for its work.
AHEAD_EXIT_S = 5.0
# How often it looks whether that command is still there.
AHEAD_LOOK_S = 0.25
# Between looks for runs that need not be kept any longer.
KEEP_S = 600.0
# After the database failed (a full disk, most often).
TROUBLE_WAIT_S = 1.0
# How often it is seen to that there is a reserve.
RESERVE_EVERY_S = 2.0
# A database that is damaged, or whose disk is read-only, is looked at for so long; a full disk is waited for.
PATIENCE_S = 60.0


def main(path: Path | None = None, lock: int | None = None, *, ahead_of: int | None = None) -> None:
    """Run until nothing has been unfinished for a while; return at once when another supervisor runs.

    Args:
        lock: A descriptor that holds the lock, from the command that started this.
        ahead_of: The process of that command, which has submitted nothing yet, and may never.
    """
    home = Home.open(path)
    if lock is not None:
        os.set_inheritable(lock, False)
    while True:
        lock = lock if lock is not None else take_lock(home.lock)
        if lock is None:
            return
        try:
            if not _serve_when_there_is_room(home, lock, ahead_of=ahead_of):
                return
        finally:
            os.close(lock)
            lock, ahead_of = None, None
        # A command that came between the last look and the release saw the lock held and started nobody.
        cluster = LocalCluster(home)
        try:
            if not cluster.store.has_work() and not home.has_triggers:
                return
        finally:
            cluster.close()


def _serve_when_there_is_room(home: Home, lock: int, *, ahead_of: int | None) -> bool:
    """Serve until there is nothing to do; False when that cannot be, for a reason that waiting does not mend."""
    told = ""
    while True:
        try:
            _log_to(home)
            home.sign_lock(lock, os.getpid())
            cluster = LocalCluster(home, is_loops=True)
            try:
                _serve(home, cluster, lock=lock, ahead_of=ahead_of)
            finally:
                cluster.close()
            return True
        except (ClusterError, OSError) as error:
            found = explained(home.path, error) if isinstance(error, OSError) else error
            if str(found) != told:
                told = str(found)
                log.error("%s", told)
            if ahead_of is not None or not isinstance(found, NoRoom) or not home.path.is_dir():
                return False
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            time.sleep(TROUBLE_WAIT_S)


def _serve(home: Home, cluster: LocalCluster, *, lock: int | None = None, ahead_of: int | None = None) -> None:
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    agent = Agent(home, cluster.store, cluster.node())
    with contextlib.suppress(OSError):  # tried again when a pod starts, where it is told
        agent.get_ready()
    agent.sweep()
    cluster.sweep()
    cluster.store.settle_shares(cluster.share_of)
    wake, counts = _listen(home), PassCounts()
    log.info("started, process %d", os.getpid())
    idle_since, idle_exit_s = time.monotonic(), IDLE_EXIT_S if ahead_of is None else AHEAD_EXIT_S
    triggers: Triggers | None = None
    endpoints = Endpoints(home)
    exporter = _span_exporter(home)
    reserve_at, told, told_at = 0.0, "", 0.0
    keep_at = 0.0
    foreseen: Mapping[str, int] = {}
    try:
        while not stopping:
            is_left = ahead_of is not None and os.getppid() != ahead_of  # before it is looked for what that has brought
            try:
                live, changed = _step(cluster, agent, endpoints, counts)
                if time.monotonic() >= keep_at:
                    is_more = _forget(cluster)
                    keep_at = time.monotonic() + (QUIET_WAIT_S if is_more else KEEP_S)
                if home.has_triggers:
                    triggers = triggers or _triggers(home, cluster)
                    changed = triggers.look(time.time()) > 0 or changed
                unfinished = live > 0 or cluster.store.has_work() or home.has_triggers
                wait_s, told = BUSY_WAIT_S if live else QUIET_WAIT_S, ""
            except (ClusterError, OSError) as error:
                if str(error) != told:
                    told, told_at = str(error), time.monotonic()
                    log.error("%s", told)
                if not isinstance(error, NoRoom) and time.monotonic() - told_at > PATIENCE_S:
                    raise
                if isinstance(error, NoRoom):
                    with contextlib.suppress(ClusterError):
                        cluster.store.relieve()  # what its log repeats is room too, which the next step may need
                live, changed, unfinished, wait_s = 0, False, True, TROUBLE_WAIT_S
            # Without a reserve the log must not grow: what it takes is all the room there is.
            if not told and (time.monotonic() >= reserve_at or not home.reserve.exists()):
                with contextlib.suppress(ClusterError):
                    # While there is room: on a full disk what the log still holds may be more than the reserve. Any
                    # trouble that lasts is the next step's, which has patience.
                    cluster.store.relieve()
                hold_reserve(home)
                if lock is not None:
                    home.sign_lock(lock, os.getpid())  # a full disk may not have taken it at the start
                reserve_at = time.monotonic() + RESERVE_EVERY_S
            if unfinished:
                idle_since, idle_exit_s, ahead_of = time.monotonic(), IDLE_EXIT_S, None
            elif is_left:
                log.info("the command that might have brought work is over, leaving")
                return
            elif time.monotonic() - idle_since > idle_exit_s:
                log.info("nothing to do for %.0f s, leaving", idle_exit_s)
                return
            if not changed:
                if counts.seen is not None:
                    foreseen = foresee_parents(counts.seen, foreseen)
                _sleep(wake, wait_s if ahead_of is None else min(wait_s, AHEAD_LOOK_S), counts)
    finally:
        agent.close()
        endpoints.close()
        if exporter is not None:
            exporter.close()
        wake.close()


def _span_exporter(home: Home) -> "SpanExporter | None":
    """Begin to send spans where OpenTelemetry's variables say so."""
    if not any(name.startswith("OTEL_EXPORTER_OTLP_") for name in os.environ):
        return None
    from fairlead.control.span_exporter import SpanExporter  # here and not above: few want it

    return SpanExporter(home, os.environ)


def _triggers(home: Home, cluster: LocalCluster) -> "Triggers":
    # Here and not above: a tenth of what a supervisor imports before the first run starts, and seldom needed.
    from fairlead.control.pipelines.triggers import Triggers

    return Triggers(home, cluster)


def _forget(cluster: LocalCluster) -> bool:
    """Forget runs that need not be kept any longer, a few of them; whether there may be more."""
    try:
        keep = cluster.keeps()
    except ClusterError as error:
        log.error("%s", error)
        return False
    if keep == KEEP_ALL:
        return False
    plan = forgetting((*cluster.select(Selection(phases=FINISHED)), *cluster.unfinished()), keep, time.time())
    gone = sum(cluster.apply(plan))
    if gone:
        log.info("forgot %d runs that are not kept any longer", gone)
    return gone > 0


def _step(cluster: LocalCluster, agent: Agent, endpoints: Endpoints, counts: PassCounts) -> tuple[int, bool]:
    """Look, decide, act; the number of live pods and whether anything was decided."""
    try:
        live = agent.observe(time.time())
    except NoRoom:
        # What was seen is seen again. What is to be stopped or forgotten makes room for that.
        run_pass(cluster, time.time(), counts)
        agent.act(time.time())
        raise
    cluster.measure(live, time.time())
    changed = run_pass(cluster, time.time(), counts)
    if endpoints.is_open or cluster.store.has_kind("Serving"):
        try:
            # Before replicas get their notices: nobody is to be sent to one that goes.
            endpoints.update(cluster.snapshot())
        except (ClusterError, OSError):
            # As on a full disk, where what is to be stopped makes room.
            agent.act(time.time())
            raise
    agent.act(time.time())
    cluster.tell_budgets()
    return live, changed


def _listen(home: Home) -> socket.socket:
    wake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    home.socket.unlink(missing_ok=True)
    wake.bind(os.fspath(home.socket))
    home.socket.chmod(0o600)
    return wake


def _sleep(wake: socket.socket, wait_s: float, counts: PassCounts) -> None:
    """Wait for a datagram or for the time to pass, and take all datagrams that came together as one.

    One from a socket with an address of its own asks whether anybody is there, and is answered with the counts so far.
    """
    wake.settimeout(wait_s)
    try:
        while True:
            _, asker = wake.recvfrom(1)
            wake.setblocking(False)
            if asker:
                with contextlib.suppress(OSError):  # it waits no longer
                    wake.sendto(counts.dumps(), asker)
    except (TimeoutError, BlockingIOError, InterruptedError):
        return


def _log_to(home: Home) -> None:
    root = logging.getLogger()
    if root.handlers:
        return
    handler = RotatingFileHandler(home.log, maxBytes=4 * 1024 * 1024, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    sys.excepthook = lambda kind, error, trace: log.critical("crashed", exc_info=(kind, error, trace))


if __name__ == "__main__":
    given = sys.argv[1:]
    command = int(given[3]) if given[2:3] == [AHEAD] else None
    main(Path(given[0]) if given else None, int(given[1]) if given[1:] else None, ahead_of=command)
