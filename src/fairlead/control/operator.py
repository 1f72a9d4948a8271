"""Runs the control loop over a Kubernetes cluster: the same pass as on any cluster, run by the leading operator.

Crash-only: if it is killed at any instant, another operator resumes from the objects. An operator that does not lead
watches the cluster, so that it takes over at once.
"""

import importlib
import json
import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping

from fairlead.cluster.debt_records import plain_debts
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.watching import Unreadable
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.lease_contents import debts_on
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.cluster.kubernetes.names import DEBTS, LEASE, POLICY, TROUBLE, WATCHES
from fairlead.cluster.kubernetes.operator.controller import ControlledCluster, PassStage, Turn, act_all
from fairlead.cluster.kubernetes.operator.leader_election import Election
from fairlead.cluster.kubernetes.operator.ledger.month_costs import MonthCosts
from fairlead.control.controllers import OperatorSettings, all_caches, build
from fairlead.control.health import Health, serve
from fairlead.control.loop import run_pass
from fairlead.control.metrics.operator import operator_metrics
from fairlead.control.pass_counts import PassCounts
from fairlead.errors import ClusterError
from fairlead.gateway.scrape_authorization import ScrapeAuthorizer
from fairlead.policy.pass_cache import PassCache
from fairlead.policy.queue.team_debts import DebtRecord, TeamDebts

log = logging.getLogger("fairlead.operator")

# Without changes, only the passing of time brings work: retries, deadlines, ends of grace periods.
BUSY_WAIT_S, QUIET_WAIT_S = 0.5, 5.0
# Changes come in bursts, our own included; one pass handles a burst, and passes take at most a tenth of the time, or
# half of it for teams that have passes left which do not wait.
GATHER_S, GATHER_PASSES, MOST_GATHER_S = 0.01, 9, 1.0
TROUBLE_WAIT_S = 1.0
# Time without a watch of some list after which the operator is not ready.
STALE_S = 60.0
MOST_TROUBLE = 500
# Threads that await responses alternate with a pass; at Python's default of 5 ms each would wait for several switches.
SWITCH_S = 0.0005


class Operator:
    """An operator process, from its watches to its Lease."""

    def __init__(self, client: Client, pods: PodSettings, settings: OperatorSettings) -> None:
        self._client = client
        self._settings = settings
        self.view = Informers(
            client, idle_s=settings.idle_s, allowed=settings.allowed, namespace=settings.namespace, system=pods.system
        )
        self.election = Election(
            client,
            namespace=settings.namespace,
            name=LEASE,
            identity=settings.identity or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}",
            annotate=self._on_lease,
            on_change=self.view.wake,
            duration_s=settings.lease_s,
            deadline_s=settings.deadline_s,
            renew_every_s=settings.beat_s,
        )
        parts = build(client, self.view, pods, settings, leads=lambda: self.election.is_leader)
        self.cluster, self.agent, self.ledger, self._gpus = parts.cluster, parts.agent, parts.ledger, parts.gpus
        self.controllers = parts.controllers
        self._controlled = ControlledCluster(self.cluster, self.controllers, self._follow)
        self._month = None if self.ledger is None else MonthCosts(self.ledger)
        self._stopping = threading.Event()
        self._counts = {"passes": 0, "changes": 0}
        self._pass_s = 0.0
        self._acted = -1
        self._decided = PassCounts()
        self._known = PassCache()
        self._debts, self._debts_term = TeamDebts(), -1
        self.health = Health(numbers=self._numbers, trouble=self._trouble, more=self._metrics)

    @property
    def num_requests(self) -> int:
        """Return the number of requests to the API server so far."""
        return self._client.num_requests

    def run(self) -> None:
        """Watch, take part in leader election, and run passes until ``stop``.

        Raises:
            ClusterError: The cluster cannot be reached, or lacks Fairlead's custom resources.
        """
        judge = ScrapeAuthorizer(self._client.create, (ClusterError,)) if self._settings.guards_metrics else None
        listen = self._settings.listen
        server = None if listen is None else serve(self.health, *listen, judge)
        try:
            sys.setswitchinterval(SWITCH_S)
            # Imported ahead, since importing it with the first gang would delay that gang.
            importlib.import_module("fairlead.policy.placement.packed_capacity")
            self.view.start()
            log.info(
                "following %d nodes, %d pods and %d runs of %s",
                len(self.view.nodes.all()),
                len(self.view.pods.all()),
                len(self.view.runs()),
                self._client.access.context,
            )
            for controller in self.controllers:
                controller.start()
            self.election.start()
            while not self._stopping.is_set():
                self._round()
        finally:
            for controller in self.controllers:
                controller.finish()
            self.election.stop()
            self.agent.close()
            for controller in self.controllers:
                controller.stop()
            self.view.stop()
            self._client.close()
            if server is not None:
                server.shutdown()
                server.server_close()

    def stop(self) -> None:
        """Make ``run`` return soon. Safe from any thread, but not from a signal handler."""
        self._stopping.set()
        self.view.urgent.end()
        self.view.wake()

    def _round(self) -> None:
        self.health.beat_at = time.monotonic()
        if not self.election.is_leader:
            for controller in self.controllers:
                controller.rest()
            self.view.wait(self.view.epoch, QUIET_WAIT_S)
            return
        begun, own_begun_s = time.monotonic(), time.thread_time()
        self.view.urgent.begin()
        try:
            self._pass()
        except ClusterError as error:
            log.error("%s", error)
            self._stopping.wait(TROUBLE_WAIT_S)
            return
        except Exception as error:  # noqa: BLE001
            # Whatever it is, the next pass may succeed, and an operator that ends leaves it to the next one.
            self.view.isolation.note("a pass", error)
            self._stopping.wait(TROUBLE_WAIT_S)
            return
        took_s = time.monotonic() - begun
        self._pass_s += took_s
        least_s = max(GATHER_S, time.thread_time() - own_begun_s)
        self._stopping.wait(least_s)
        self.view.urgent.wait(min(GATHER_PASSES * took_s, MOST_GATHER_S) - least_s)
        is_busy = self.agent.is_busy or any(controller.is_busy for controller in self.controllers)
        is_busy = is_busy or bool(self.cluster.refused)
        self.cluster.wait(BUSY_WAIT_S if is_busy else self._quiet_s(time.time()))

    def _quiet_s(self, now: float) -> float:
        """Return the seconds until time alone may change a decision, within bounds."""
        return min(max(self.cluster.next_decision_at(now) - now, BUSY_WAIT_S), QUIET_WAIT_S)

    def _on_lease(self) -> dict[str, str]:
        """Return the annotations of the Lease while it is ours."""
        return {
            POLICY: self._settings.policy,
            WATCHES: self._settings.watch_namespace or "",
            TROUBLE: self._trouble(with_objects=True),
            **self._debts_for_lease(),
        }

    def _debts_for_lease(self) -> dict[str, str]:
        """Return the debts of teams for the Lease; those of the leader before stay on it until they are read."""
        if not self.election.is_leader or self._debts_term != self.election.num_terms:
            return {}
        record: DebtRecord = self._debts.record
        return {DEBTS: json.dumps(plain_debts(record), separators=(",", ":"))} if record.debts_s else {}

    def _pass(self) -> None:
        """Run one pass: observe, decide, act."""
        now = time.time()
        for controller in self.controllers:
            with self.view.isolation.of(controller.name):
                controller.prepare(now)
        if self._debts_term != self.election.num_terms:
            # Another operator may have led since.
            self._debts_term, self._debts = self.election.num_terms, TeamDebts(debts_on(self.election.annotations))
        changed = run_pass(self._controlled, now, self._decided, self._known, self._debts)
        epoch = self.view.epoch
        # An idle cluster has nothing to act on, and finding that out costs more than the rest of the pass.
        is_behind = any(controller.is_behind for controller in self.controllers)
        is_news = changed or epoch != self._acted or is_behind
        # Decisions of this pass are first seen in the next snapshot.
        self._acted = -1 if changed else epoch
        self._follow(is_news=is_news)
        turn = self._turn(now, is_news=is_news)
        if is_news:
            act_all(self.controllers, PassStage.CHANGES, turn, self.view.isolation)
        act_all(self.controllers, PassStage.EVERY_PASS, turn, self.view.isolation)
        self._counts["passes"] += 1
        self._counts["changes"] += changed

    def _turn(self, now: float, *, is_news: bool) -> Turn:
        snapshot = self.cluster.shown
        assert snapshot is not None, "controllers act after a pass has taken its snapshot"
        debts = self._debts.record.counted()
        return Turn(agent=self.agent, now=now, snapshot=snapshot, is_news=is_news, debts=debts)

    def _follow(self, *, is_news: bool = True) -> None:
        """Act on what the runs' objects require."""
        now = time.time()
        act_all(self.controllers, PassStage.FOLLOWING, self._turn(now, is_news=is_news), self.view.isolation)
        self.agent.act(now)

    def _unreadable_objects(self) -> list[Unreadable]:
        return [item for cache in all_caches(self.view, self.controllers) for item in cache.unreadable]

    def _trouble(self, *, with_objects: bool = False) -> str:
        """Return what keeps the operator from seeing the cluster as it is, as a clause; empty for nothing.

        Args:
            with_objects: Also tell of objects that cannot be read, which keep nobody from working.
        """
        if not all(cache.is_synced for cache in self.view.caches):
            return "the watches are not there yet"
        stalest = max(self.view.caches, key=lambda cache: cache.stale_s)
        if stalest.stale_s > STALE_S:
            why = "" if stalest.trouble is None else f": {stalest.trouble}"
            return f"it has not followed {stalest.path} for {stalest.stale_s:.0f} s{why}"[:MOST_TROUBLE]
        unreadable = self._unreadable_objects() if with_objects else []
        if not unreadable:
            return ""
        counts = Counter(item.path.rpartition("/")[2] for item in unreadable)
        return f"it cannot read {', '.join(f'{number} of {plural}' for plural, number in sorted(counts.items()))}"

    def _metrics(self) -> str:
        return operator_metrics(
            self._decided,
            is_leader=self.election.is_leader,
            gpus=self._gpus.held,
            ledger=self.ledger,
            month=self._month,
        )

    def _numbers(self) -> Mapping[str, float]:
        now = time.monotonic()
        own = {name: number for controller in self.controllers for name, number in controller.numbers().items()}
        return own | {
            "fairlead_leader": float(self.election.is_leader),
            "fairlead_pods": float(sum(bool(self.view.run_of(pod)) for pod in self.view.pods.all())),
            "fairlead_nodes": float(len(self.view.nodes.all())),
            "fairlead_passes_total": float(self._counts["passes"]),
            "fairlead_changes_total": float(self._counts["changes"]),
            "fairlead_pass_seconds_total": self._pass_s,
            "fairlead_api_requests_total": float(self._client.num_requests),
            "fairlead_api_waiting": float(self.agent.num_waiting),
            "fairlead_watch_lists_total": float(sum(cache.num_lists for cache in self.view.caches)),
            "fairlead_watch_silent_seconds": max(now - cache.heard_at for cache in self.view.caches),
            "fairlead_watch_stale_seconds": max(cache.stale_s for cache in self.view.caches),
            "fairlead_unreadable_objects": float(len(self._unreadable_objects())),
            "fairlead_refused_objects": float(
                len({*self.cluster.refused, *self.agent.refused, *self.view.isolation.refused})
            ),
            "fairlead_internal_errors_total": float(
                self.view.isolation.num_failures + self._decided.isolation.num_failures
            ),
        }
