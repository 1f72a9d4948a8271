"""The background process of the local cluster: ``python -m fairlead.control.supervisor HOME [LOCK [ahead]]``.

One runs per state directory, ensured by a lock. It may be killed at any instant: the next one, started by a shim or by
any command, continues from the database and the files.
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
from typing import TYPE_CHECKING, Any

from fairlead.cluster.local.agent import Agent
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.debt_file import DebtWriter, read_debts
from fairlead.cluster.local.disk_errors import explained
from fairlead.cluster.local.endpoints import Endpoints
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.room import hold_reserve
from fairlead.cluster.local.supervision import AHEAD
from fairlead.cluster.selection import FINISHED, RunSelection
from fairlead.control.loop import run_pass
from fairlead.control.notifications.local import LocalNotifier
from fairlead.control.pass_counts import PassCounts
from fairlead.control.span_exporter import SpanExporter
from fairlead.control.span_receiver import receiver_of
from fairlead.deferred import deferred
from fairlead.errors import ClusterError, NoRoom
from fairlead.policy.kinds.parents import foresee_parents
from fairlead.policy.kinds.retention import KEEP_ALL, forgetting
from fairlead.policy.next_decision import next_decision_at
from fairlead.policy.queue.team_debts import TeamDebts
from fairlead.runtime import shell_limits, utf8_mode
from fairlead.runtime.podfiles import take_lock
from fairlead.specs.serving import Serving
from fairlead.state.snapshot import Snapshot

if TYPE_CHECKING:
    from fairlead.control import site_clients
    from fairlead.control import sites as site_visits
    from fairlead.control.notifications.local import LocalNotifier
    from fairlead.control.pipelines import triggers as pipeline_triggers
    from fairlead.control.pipelines.triggers import Triggers
    from fairlead.control.site_clients import ClientOrder
    from fairlead.control.sites import AnyReport, SiteOrder, SiteVisits
    from fairlead.control.span_exporter import SpanExporter
else:
    pipeline_triggers = deferred("fairlead.control.pipelines.triggers")
    site_clients = deferred("fairlead.control.site_clients")
    site_visits = deferred("fairlead.control.sites")

log = logging.getLogger("fairlead.supervisor")

# Poll interval of live pods, whose ranks report progress up to five times a second. Exits and requests wake it at once.
BUSY_WAIT_S = 0.5
# Without live pods only the passing of time brings work: retries and deadlines.
QUIET_WAIT_S = 2.0
# Largest share of a core for passes without live pods: with many endpoints that sleep, it waits longer between them.
QUIET_SHARE = 0.003
LONGEST_QUIET_WAIT_S = 60.0
# Time without unfinished runs after which it exits.
IDLE_EXIT_S = 300.0
# Same, if it was started ahead of a command that is about to submit.
AHEAD_EXIT_S = 5.0
# Interval of checks that this command is still alive.
AHEAD_LOOK_S = 0.25
# Interval between searches for runs whose retention has expired.
KEEP_S = 600.0
# Pause after a failure of the database (usually a full disk).
TROUBLE_WAIT_S = 1.0
# Interval of checks that the reserve exists.
RESERVE_EVERY_S = 2.0
# Time for which it retries a damaged database or a read-only disk; a full disk is waited for without limit.
PATIENCE_S = 60.0


def main(path: Path | None = None, lock: int | None = None, *, ahead_of: int | None = None) -> None:
    """Run until nothing has been unfinished for a while; return at once if another supervisor runs.

    Args:
        lock: Descriptor that holds the lock, inherited from the command that started this process.
        ahead_of: Process id of that command, if it has not submitted anything yet.
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
        # A command between the last check and the release saw the lock held and started no supervisor.
        cluster = LocalCluster(home)
        try:
            if not cluster.store.has_work() and not home.has_triggers:
                return
        finally:
            cluster.close()


def _serve_when_there_is_room(home: Home, lock: int, *, ahead_of: int | None) -> bool:
    """Serve until there is nothing to do; return False on an error that waiting does not resolve."""
    message = ""
    while True:
        try:
            _log_to(home)
            home.sign_lock(lock, os.getpid())
            cluster = LocalCluster(home, is_loops=True)
            try:
                _serve(home, cluster, lock=lock, ahead_of=ahead_of)
            finally:
                cluster.close()
            return _is_there(home, lock)
        except (ClusterError, OSError) as error:
            cause = explained(home.path, error) if isinstance(error, OSError) else error
            if str(cause) != message:
                message = str(cause)
                log.error("%s", message)
            if ahead_of is not None or not isinstance(cause, NoRoom) or not home.path.is_dir():
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
    with contextlib.suppress(OSError):  # retried, with a report, when a pod starts
        agent.get_ready()
    agent.sweep()
    cluster.sweep()
    cluster.store.settle_shares(cluster.share_of)
    wake, counts = _listen(home), PassCounts()
    debts = TeamDebts(read_debts(home.debts))
    debt_file = DebtWriter(home.debts, debts.record)
    log.info("started, process %d", os.getpid())
    idle_since, idle_exit_s = time.monotonic(), IDLE_EXIT_S if ahead_of is None else AHEAD_EXIT_S
    triggers: Triggers | None = None
    endpoints, sites = Endpoints(home), _Sites(cluster)
    exporter = _span_exporter(home)
    notifier: LocalNotifier | None = None
    reserve_at, message, told_at = 0.0, "", 0.0
    spent_before_s = 0.0
    keep_at = 0.0
    foreseen: Mapping[str, int] = {}
    try:
        while not stopping:
            if not _is_there(home, lock):
                log.info("%s was moved or removed, leaving", home.path)
                return
            is_left = (
                ahead_of is not None and os.getppid() != ahead_of
            )  # checked before looking for work of that command
            begun_s = time.process_time()
            try:
                live, changed = _step(cluster, agent, endpoints, counts, debts, sites)
                debt_file.write(debts.record)
                if time.monotonic() >= keep_at:
                    is_more = _forget(cluster)
                    keep_at = time.monotonic() + (QUIET_WAIT_S if is_more else KEEP_S)
                if home.has_triggers:
                    triggers = triggers or _triggers(home, cluster)
                    changed = triggers.look(time.time()) > 0 or changed
                notifier = notifier or _notifier(home)
                has_notices = notifier is not None and notifier.is_waiting
                unfinished = live > 0 or cluster.store.has_work() or home.has_triggers or has_notices
                wait_s, message = BUSY_WAIT_S if live else QUIET_WAIT_S, ""
                is_quiet = not (live or changed or home.has_triggers)
            except Exception as error:
                # An internal error may pass with what caused it; a supervisor that ends helps nobody.
                is_of_cluster = isinstance(error, (ClusterError, OSError))
                if str(error) != message:
                    message, told_at = str(error), time.monotonic()
                    log.error("%s", message, exc_info=None if is_of_cluster else error)
                if is_of_cluster and not isinstance(error, NoRoom) and time.monotonic() - told_at > PATIENCE_S:
                    raise
                if isinstance(error, NoRoom):
                    with contextlib.suppress(ClusterError):
                        cluster.store.checkpoint_wal()  # a checkpoint of its log frees room that the next step may need
                live, changed, unfinished, wait_s, is_quiet = 0, False, True, TROUBLE_WAIT_S, False
            # Without a reserve the log must not grow, since it would take the last free room.
            if not message and (time.monotonic() >= reserve_at or not home.reserve.exists()):
                with contextlib.suppress(ClusterError):
                    # Before the disk is full: then the content of the log may exceed the reserve. The
                    # next step handles an error that persists, within PATIENCE_S.
                    cluster.store.checkpoint_wal()
                hold_reserve(home)
                if lock is not None:
                    home.sign_lock(lock, os.getpid())  # a full disk may have prevented it at the start
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
                spent_s = time.process_time() - begun_s
                if is_quiet and counts.seen is not None:
                    # Of two passes the cheaper one, as the first of a kind imports modules.
                    wait_s = quiet_wait_s(min(spent_s, spent_before_s), counts.seen, time.time())
                spent_before_s = spent_s
                left_s = wait_s if ahead_of is None else min(wait_s, AHEAD_LOOK_S)
                # Between passes it notices a signal, and a kill of both gateways, within the usual wait.
                while left_s > 0 and not stopping:
                    if _sleep(wake, min(left_s, QUIET_WAIT_S), counts) or not endpoints.are_served:
                        break
                    left_s -= QUIET_WAIT_S
    finally:
        debt_file.write(debts.record, at_once=True)
        agent.close()
        endpoints.close()
        if exporter is not None:
            exporter.close()
        if notifier is not None:
            notifier.close()
        wake.close()


def _is_there(home: Home, lock: int | None) -> bool:
    """Return whether the lock is that of the state directory, which somebody may have moved away or removed."""
    try:
        return lock is None or os.path.samestat(os.fstat(lock), home.lock.stat())
    except FileNotFoundError:
        return False


def quiet_wait_s(spent_s: float, seen: Snapshot, now: float) -> float:
    """Return how long to wait without live pods, if no request wakes it.

    Only where there is nothing but endpoints that sleep it waits longer after costly passes, and to the next time that
    something is due: a run may wait for something that is only found by looking.

    Args:
        spent_s: Processor time of a pass.
        seen: The snapshot of the last one.
    """
    wait_s = min(spent_s / QUIET_SHARE, LONGEST_QUIET_WAIT_S)
    if wait_s <= QUIET_WAIT_S:
        return QUIET_WAIT_S
    left = [workload for workload in (*seen.workloads, *seen.parents) if not workload.status.phase.is_final]
    if not all(isinstance(workload.spec, Serving) and not workload.spec.sites for workload in left):
        return QUIET_WAIT_S
    return max(QUIET_WAIT_S, min(wait_s, next_decision_at(seen, now) - now))


def _span_exporter(home: Home) -> "SpanExporter | None":
    """Start the exporter of spans if OpenTelemetry's variables configure a receiver."""
    if not any(name.startswith("OTEL_EXPORTER_OTLP_") for name in os.environ):
        return None
    receiver = receiver_of(os.environ)
    return None if receiver is None else SpanExporter(home, receiver)


def _notifier(home: Home) -> "LocalNotifier | None":
    """Start to notify if this machine has destinations."""
    if not home.notifications.exists():
        return None
    return LocalNotifier(home)


def _triggers(home: Home, cluster: LocalCluster) -> "Triggers":
    return pipeline_triggers.Triggers(home, cluster)


def _forget(cluster: LocalCluster) -> bool:
    """Delete some of the runs whose retention has expired; return whether there may be more."""
    try:
        keep = cluster.keeps()
    except ClusterError as error:
        log.error("%s", error)
        return False
    if keep == KEEP_ALL:
        return False
    plan = forgetting((*cluster.select(RunSelection(phases=FINISHED)), *cluster.unfinished()), keep, time.time())
    gone = sum(cluster.apply(plan))
    if gone:
        log.info("forgot %d runs that are not kept any longer", gone)
    return gone > 0


def _step(
    cluster: LocalCluster,
    agent: Agent,
    endpoints: Endpoints,
    counts: PassCounts,
    debts: TeamDebts,
    sites: "_Sites | None" = None,
) -> tuple[int, bool]:
    """Observe, decide, act; return the number of live pods and whether anything changed."""
    try:
        live = agent.observe(time.time())
    except NoRoom:
        # The next step repeats these observations. Stopping and deleting runs makes room for them.
        run_pass(cluster, time.time(), counts, debts=debts)
        agent.act(time.time())
        raise
    cluster.observed(agent.unreadable)
    cluster.measure(live, time.time())
    changed = run_pass(cluster, time.time(), counts, debts=debts)
    if endpoints.is_open or cluster.store.has_kind("Serving"):
        try:
            # Before replicas get stop notices, so that no request is routed to one that terminates.
            seen = cluster.snapshot()
            endpoints.update(seen)
        except (ClusterError, OSError):
            # For example on a full disk, where stopping runs makes room.
            agent.act(time.time())
            raise
    if sites is not None and counts.seen is not None:
        sites.look(counts.seen)
    agent.act(time.time())
    cluster.tell_budgets()
    return live, changed


class _Sites:
    """The sites of endpoints and federations, which are visited once there are any."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._visits: SiteVisits | None = None

    def look(self, seen: Snapshot) -> None:
        """Give the next snapshot the reports of sites, and begin visits that are due."""
        if self._visits is None and not seen.sites:
            return
        if self._visits is None:

            def visit_any(order: "SiteOrder | ClientOrder", last: Any, applied: Any, now: float) -> "AnyReport":
                if isinstance(order, site_visits.SiteOrder):
                    return site_visits.visit(order, last, applied, now, edited=self._edited)
                return site_clients.visit_client(order, last, now, home=self._cluster.home)

            self._visits = site_visits.SiteVisits(
                visit_any, lambda seen, now: (*site_visits.orders(seen), *site_clients.client_orders(seen, now))
            )
        self._cluster.visited(self._visits.look(seen, time.time()))

    def _edited(self, order: "SiteOrder") -> tuple[str, ...]:
        """Return the sources that have changed since a release was submitted; called by threads of visits."""
        if order.spec is None or not order.spec.code:
            return ()
        cluster = LocalCluster(self._cluster.home)
        try:
            return cluster.edited_code(order.owner, order.spec, None) or ()
        finally:
            cluster.close()


def _listen(home: Home) -> socket.socket:
    wake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    home.socket.unlink(missing_ok=True)
    wake.bind(os.fspath(home.socket))
    home.socket.chmod(0o600)
    return wake


def _sleep(wake: socket.socket, wait_s: float, counts: PassCounts) -> bool:
    """Wait for a datagram or a timeout, treat all datagrams that arrived together as one, and return whether any came.

    A datagram from a socket with an address is a liveness probe, answered with the counters so far.
    """
    wake.settimeout(wait_s)
    is_woken = False
    try:
        while True:
            _, asker = wake.recvfrom(1)
            is_woken = True
            wake.setblocking(False)
            if asker:
                with contextlib.suppress(OSError):  # the client has gone
                    wake.sendto(counts.dumps(), asker)
    except InterruptedError:
        return True
    except (TimeoutError, BlockingIOError):
        return is_woken


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
    utf8_mode.enter()
    shell_limits.raise_own()
    arguments = sys.argv[1:]
    command = int(arguments[3]) if arguments[2:3] == [AHEAD] else None
    main(Path(arguments[0]) if arguments else None, int(arguments[1]) if arguments[1:] else None, ahead_of=command)
