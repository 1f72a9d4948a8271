"""Runs the control loop over a Kubernetes cluster: the same pass as on any cluster, run by the leading operator.

Crash-only: if it is killed at any instant, another operator resumes from the objects. An operator that does not lead
watches the cluster, so that it takes over at once.
"""

import importlib
import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Mapping

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.watching import IDLE_S
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.cluster.kubernetes.names import LEASE, POLICY
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.engines.dispatched_runs import DispatchedRuns
from fairlead.cluster.kubernetes.operator.engines.endpoint_controller import EndpointController
from fairlead.cluster.kubernetes.operator.engines.engine_controller import EngineController
from fairlead.cluster.kubernetes.operator.engines.search_controller import SearchController
from fairlead.cluster.kubernetes.operator.events.event_recorder import EventRecorder, api_refusal_of, refusal_of
from fairlead.cluster.kubernetes.operator.leader_election import BEAT_S, DEADLINE_S, DURATION_S, Election
from fairlead.cluster.kubernetes.operator.ledger.budget_notices import BudgetNotices
from fairlead.cluster.kubernetes.operator.ledger.cost_publisher import EVERY_S as COSTS_S
from fairlead.cluster.kubernetes.operator.ledger.cost_publisher import CostPublisher
from fairlead.cluster.kubernetes.operator.ledger.ledger_keeper import LedgerKeeper
from fairlead.cluster.kubernetes.operator.ledger.month_costs import MonthCosts
from fairlead.cluster.kubernetes.operator.partitions.partition_controller import PartitionController
from fairlead.cluster.kubernetes.operator.placeholders.autoscalers import Autoscalers
from fairlead.cluster.kubernetes.operator.placeholders.capacity_objects import SILENT_S
from fairlead.cluster.kubernetes.operator.placeholders.placeholder_controller import PlaceholderController
from fairlead.cluster.kubernetes.operator.placeholders.standby_controller import StandbyController
from fairlead.cluster.kubernetes.operator.pods.autoscaler_controller import AutoscalerController
from fairlead.cluster.kubernetes.operator.pods.endpoint_publisher import EndpointPublisher
from fairlead.cluster.kubernetes.operator.pods.family_notices import FamilyNotices
from fairlead.cluster.kubernetes.operator.pods.gateways import Gateways
from fairlead.cluster.kubernetes.operator.pods.image_pulls import ImagePulls
from fairlead.cluster.kubernetes.operator.pods.pod_agent import Agent
from fairlead.cluster.kubernetes.operator.pods.start_blockers import StartBlockers
from fairlead.cluster.kubernetes.operator.runs.gpu_telemetry import EVERY_S as GPUS_S
from fairlead.cluster.kubernetes.operator.runs.gpu_telemetry import GpuTelemetry
from fairlead.cluster.kubernetes.operator.runs.informers import Informers
from fairlead.cluster.kubernetes.operator.runs.log_archive import LogArchive
from fairlead.cluster.kubernetes.operator.runs.progress_polling import Listener
from fairlead.cluster.kubernetes.operator.runs.vertical_recommendations import recommended_for
from fairlead.cluster.kubernetes.operator.teams.pool_controller import PoolKeeper
from fairlead.cluster.kubernetes.operator.teams.team_controller import TeamKeeper
from fairlead.cluster.prometheus import PrometheusReader
from fairlead.control.cluster_span_exporter import ClusterSpanExporter
from fairlead.control.health import Health, serve
from fairlead.control.loop import run_pass
from fairlead.control.metrics.operator import operator_metrics
from fairlead.control.pass_counts import PassCounts
from fairlead.control.span_receiver import SpanReceiver
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.policy.kinds.retention import KEEP_ALL, Retention, forgetting
from fairlead.policy.pass_cache import PassCache
from fairlead.policy.serving.routes import places_on_cluster
from fairlead.state.capacity_requests import PATIENCE_S, PAUSE_S
from fairlead.state.demand import Demand
from fairlead.state.measurements import Measurement
from fairlead.state.scheduling_policy import POLICIES
from fairlead.state.snapshot import Snapshot

log = logging.getLogger("fairlead.operator")

# Without changes, only the passing of time brings work: retries, deadlines, ends of grace periods.
BUSY_WAIT_S, QUIET_WAIT_S = 0.5, 5.0
# Changes come in bursts, our own included; one pass handles a burst, and passes take at most a tenth of the time.
GATHER_S, GATHER_PASSES, MOST_GATHER_S = 0.01, 9, 1.0
TROUBLE_WAIT_S = 1.0
# Interval between searches for runs whose retention has expired.
KEEP_S = 600.0
# Threads that await responses alternate with a pass; at Python's default of 5 ms each would wait for several switches.
SWITCH_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Settings of an operator.

    Attributes:
        namespace: Namespace of the Lease.
        watch_namespace: Only runs of this namespace, and no teams; None for all.
        listen: Host and port of the health endpoints; None for none.
        identity: Name in the Lease; None generates one.
        idle_s: Seconds without data after which a watch is considered dead.
        grow_patience_s, grow_pause_s: As in ``fairlead.state.capacity_requests.Growth``.
        policy: Scheduling policy of pending runs, a key of ``fairlead.state.scheduling_policy.POLICIES``.
        keeps: Retention of finished runs.
        keep_s: Seconds between searches for runs whose retention has expired.
        ledger: File or URL ``postgresql://...`` of the ledger of usage and cost; None keeps none.
        costs_s: Seconds between updates of the published costs.
        gpus_s: Seconds between scrapes of DCGM's exporters.
        spans: Receives the spans of finished runs; None sends none.
    """

    namespace: str
    watch_namespace: str | None = None
    listen: tuple[str, int] | None = None
    identity: str | None = None
    lease_s: float = DURATION_S
    deadline_s: float = DEADLINE_S
    beat_s: float = BEAT_S
    idle_s: float = IDLE_S
    grow_patience_s: float = PATIENCE_S
    grow_pause_s: float = PAUSE_S
    policy: str = "default"
    keeps: Retention = KEEP_ALL
    keep_s: float = KEEP_S
    ledger: str | None = None
    costs_s: float = COSTS_S
    gpus_s: float = GPUS_S
    spans: SpanReceiver | None = None


class Operator:
    """An operator process, from its watches to its Lease."""

    def __init__(self, client: Client, pods: PodSettings, settings: OperatorSettings) -> None:
        self._client = client
        self._settings = settings
        self.view = Informers(client, idle_s=settings.idle_s)
        self.election = Election(
            client,
            namespace=settings.namespace,
            name=LEASE,
            identity=settings.identity or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}",
            told={POLICY: settings.policy},
            changed=self.view.wake,
            duration_s=settings.lease_s,
            deadline_s=settings.deadline_s,
            beat_s=settings.beat_s,
        )
        self._askings = PlaceholderController(
            self.view,
            Autoscalers(client, patience_s=settings.grow_patience_s, pause_s=settings.grow_pause_s),
            pods,
            may_act=lambda: self.election.is_leader,
            silent_s=min(SILENT_S, settings.grow_patience_s / 2),
        )
        self._standby = StandbyController(
            self.view,
            lambda: self._pools.objects(),
            pods,
            settings.namespace,
            may_act=lambda: self.election.is_leader,
            silent_s=min(SILENT_S, settings.grow_patience_s / 2),
        )
        self._partitions = PartitionController(
            self.view, lambda: self._pools.objects(), may_act=lambda: self.election.is_leader
        )
        self._pools = PoolKeeper(
            client,
            wake=self.view.wake,
            ahead=self._standby.status,
            partitions=self._partitions.status,
            idle_s=settings.idle_s,
        )
        self.ledger: LedgerKeeper | None = None
        if settings.ledger is not None:
            self.ledger = LedgerKeeper(
                self.view,
                settings.ledger,
                namespace=settings.watch_namespace,
                progress_of=lambda uid: self.cluster.progress_of(uid),
                pools=self._pools.specs,
            )
        self._gpus = GpuTelemetry(self.view, self.ledger, every_s=settings.gpus_s)
        self._prometheus = PrometheusReader()
        self._gateways = Gateways(client, self.view, idle_s=settings.idle_s)
        self._served = EndpointController(
            client, self.view, may_act=lambda: self.election.is_leader, idle_s=settings.idle_s
        )
        self._searches = SearchController(
            client, self.view, may_act=lambda: self.election.is_leader, idle_s=settings.idle_s
        )
        self._autoscalers = AutoscalerController(
            client, self.view, namespace=settings.watch_namespace, may_act=lambda: self.election.is_leader
        )
        self.cluster = KubernetesCluster(
            client,
            demand_of=self._demand,
            served_of=self._served.look,
            searched_of=self._searches.look,
            measured_of=self._measured,
            view=self.view,
            ledger=self.ledger,
            idle_of=self._gpus.idle_of,
            recommended_of=lambda runs: recommended_for(client, runs, settings.watch_namespace),
            standby=self._standby if settings.watch_namespace is None else None,
            partitions=self._partitions if settings.watch_namespace is None else None,
            namespace=settings.watch_namespace,
            rules=POLICIES[settings.policy],
            outlook=self._askings.outlook,
            meanwhile=self._follow,
        )
        self.agent = Agent(
            self.cluster,
            pods,
            may_act=lambda: self.election.is_leader,
            is_making_way=self._askings.is_making_way,
            create_s=settings.lease_s - settings.deadline_s,
        )
        self._engines = EngineController(
            self.cluster,
            self.agent,
            pods,
            may_act=lambda: self.election.is_leader,
            create_s=settings.lease_s - settings.deadline_s,
        )
        self._guests = DispatchedRuns(client, self.view, may_act=lambda: self.election.is_leader)
        self._endpoints = EndpointPublisher(self.cluster, self._gateways, may_act=lambda: self.election.is_leader)
        self._listener = Listener(self.cluster, devices=self._gpus.note)
        self._families = FamilyNotices(self.cluster, may_act=lambda: self.election.is_leader)
        self._hindrances = StartBlockers(self.view)
        self._teller = EventRecorder(self.view, may_act=lambda: self.election.is_leader)
        self._teams = TeamKeeper(
            self.view,
            self._teller,
            may_act=lambda: self.election.is_leader,
            idle_s=settings.idle_s,
        )
        # Teams are cluster-wide, so only a cluster-wide operator reconciles them.
        self._keeps_teams = settings.watch_namespace is None
        self._last_lines = LogArchive(self.cluster, may_act=lambda: self.election.is_leader)
        self._spans: ClusterSpanExporter | None = None
        self._pulls: ImagePulls | None = None
        if settings.spans is not None:
            self._pulls = ImagePulls(self.cluster)
            self._spans = ClusterSpanExporter(
                self.cluster,
                settings.spans,
                namespace=settings.watch_namespace,
                may_act=lambda: self.election.is_leader,
            )
        self._costs: CostPublisher | None = None
        self._budgets: BudgetNotices | None = None
        self._month: MonthCosts | None = None
        if self.ledger is not None:
            self._month = MonthCosts(self.ledger)
            self._budgets = BudgetNotices(self.view, self._teller, self.ledger)
            self._costs = CostPublisher(
                client,
                self.ledger,
                settings.namespace,
                may_act=lambda: self.election.is_leader,
                every_s=settings.costs_s,
            )
        self._stopping = threading.Event()
        self._counts = {"passes": 0, "changes": 0}
        self._pass_s = 0.0
        self._acted = -1
        self._keep_at = 0.0
        self._decided = PassCounts()
        self._known = PassCache()
        self.health = Health(numbers=self._numbers, is_ready=self._is_ready, more=self._metrics)

    @property
    def num_requests(self) -> int:
        """Return the number of requests to the API server so far."""
        return self._client.num_requests

    def run(self) -> None:
        """Watch, take part in leader election, and run passes until ``stop``.

        Raises:
            ClusterError: The cluster cannot be reached, or lacks Fairlead's custom resources.
        """
        server = serve(self.health, *self._settings.listen) if self._settings.listen is not None else None
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
            if self._keeps_teams:
                self._teams.start()
                self._pools.start()
            self.election.start()
            while not self._stopping.is_set():
                self._round()
        finally:
            if self._spans is not None:
                self._spans.close()  # while it still leads, so that the next leader knows what was sent
            self.election.stop()
            self.agent.close()
            if self._keeps_teams:
                self._teams.stop()
                self._pools.stop()
            self._last_lines.close()
            if self.ledger is not None:
                self.ledger.rest()
            self._gateways.stop()
            self._served.stop()
            self._searches.stop()
            self.view.stop()
            self._client.close()
            if server is not None:
                server.shutdown()
                server.server_close()

    def stop(self) -> None:
        """Make ``run`` return soon. Safe from any thread, but not from a signal handler."""
        self._stopping.set()
        self.view.wake()

    def _round(self) -> None:
        self.health.beat_at = time.monotonic()
        if not self.election.is_leader:
            if self.ledger is not None:
                self.ledger.rest()
            self.view.wait(self.view.epoch, QUIET_WAIT_S)
            return
        begun = time.monotonic()
        try:
            self._pass()
        except ClusterError as error:
            log.error("%s", error)
            self._stopping.wait(TROUBLE_WAIT_S)
            return
        took_s = time.monotonic() - begun
        self._pass_s += took_s
        self._stopping.wait(min(max(GATHER_S, GATHER_PASSES * took_s), MOST_GATHER_S))
        is_busy = (
            self.agent.is_busy
            or self._askings.is_watching
            or self._endpoints.is_behind
            or self._served.is_behind
            or self._searches.is_behind
            or self._autoscalers.is_behind
            or self._engines.is_busy
            or self._families.is_behind
            or self._listener.is_following
        )
        self.cluster.wait(BUSY_WAIT_S if is_busy else self._quiet_s(time.time()))

    def _quiet_s(self, now: float) -> float:
        """Return the seconds until time alone may change a decision, within bounds."""
        return min(max(self.cluster.next_decision_at(now) - now, BUSY_WAIT_S), QUIET_WAIT_S)

    def _pass(self) -> None:
        """Run one pass: observe, decide, act."""
        now = time.time()
        if self.ledger is not None:
            self.ledger.act(now)
        changed = run_pass(self.cluster, now, self._decided, self._known)
        epoch = self.view.epoch
        # An idle cluster has nothing to act on, and finding that out costs more than the rest of the pass.
        is_behind = self._endpoints.is_behind or self._families.is_behind
        is_behind = is_behind or self._served.is_behind or self._searches.is_behind or self._autoscalers.is_behind
        is_news = changed or epoch != self._acted or self._askings.is_watching or is_behind
        # Decisions of this pass are first seen in the next snapshot.
        self._acted = -1 if changed else epoch
        self._follow(with_askings=is_news)
        if is_news:
            if self.cluster.shown is not None:
                self._endpoints.act(self.agent, self.cluster.shown)
                self._served.act(self.agent, self.cluster.shown)
                self._searches.act(self.agent, self.cluster.shown)
                self._autoscalers.act(self.agent, self.cluster.shown)
                self._families.act(self.agent, self.cluster.shown)
            self._teller.act(self.agent, now)
            for found in self.cluster.refuse_unreadable():
                self._teller.tell(self.agent, refusal_of(found, now), now)
        for found, what, said in self.cluster.take_refusals():
            log.warning("%s of %s: %s: %s", found.name, found.namespace, what, said)
            self._teller.tell(self.agent, api_refusal_of(found, what, said, now), now)
        if self._keeps_teams:
            self._teams.act(self.agent, now)
            self._pools.act(self.agent)
            if self.cluster.shown is not None:
                self._standby.act(self.agent, self.cluster.shown)
            self._partitions.act(self.agent)
        self._listener.listen(now, self.agent)
        if self.cluster.shown is not None:
            self._gpus.act(now, self.agent, self.cluster.shown)
        self._hindrances.act(now, self.agent)
        if self._costs is not None and self._budgets is not None:
            self._costs.act(self.agent, now)
            self._budgets.act(self.agent, now)
        self._last_lines.keep(now)
        if self._spans is not None and self._pulls is not None:
            self._pulls.act(now, self.agent)
            self._spans.act(now)
        self._forget(now)
        self._counts["passes"] += 1
        self._counts["changes"] += changed

    def _demand(self, seen: Snapshot) -> Mapping[str, Demand]:
        """Return the demand for endpoints as measured by the gateways."""
        if not seen.parents or not self._gateways.are_there:
            return {}
        return self._gateways.demand({uid: place.name for uid, place in places_on_cluster(seen).items()})

    def _measured(self, seen: Snapshot) -> Mapping[str, Measurement]:
        """Return the measurements by which endpoints scale."""
        if not self.election.is_leader:
            return {}
        return {**self._prometheus.look(seen, time.time()), **self._autoscalers.look(seen)}

    def _forget(self, now: float) -> None:
        """Delete some of the runs whose retention has expired."""
        if self._settings.keeps == KEEP_ALL or time.monotonic() < self._keep_at:
            return
        gone = sum(self.cluster.apply(forgetting(self.cluster.workloads(), self._settings.keeps, now)))
        if gone:
            log.info("forgot %d runs that are not kept any longer", gone)
        self._keep_at = time.monotonic() + (QUIET_WAIT_S if gone else self._settings.keep_s)

    def _follow(self, *, with_askings: bool = True) -> None:
        """Act on what the runs' objects require."""
        now = time.time()
        if with_askings:
            # Placeholders are removed before the pods are created for which they hold room.
            self._askings.act(self.agent, now)
        self._engines.act(now)
        self._guests.act(self.agent)
        self.agent.act(now)

    def _is_ready(self) -> bool:
        return all(cache.is_synced for cache in self.view.caches)

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
        return {
            "fairlead_leader": float(self.election.is_leader),
            "fairlead_pods": float(sum(bool(pod.run_uid) for pod in self.view.pods.all())),
            "fairlead_nodes": float(len(self.view.nodes.all())),
            "fairlead_passes_total": float(self._counts["passes"]),
            "fairlead_changes_total": float(self._counts["changes"]),
            "fairlead_pass_seconds_total": self._pass_s,
            "fairlead_api_requests_total": float(self._client.num_requests),
            "fairlead_log_requests_total": float(self._listener.num_asked),
            "fairlead_api_waiting": float(self.agent.num_waiting),
            "fairlead_watch_lists_total": float(sum(cache.num_lists for cache in self.view.caches)),
            "fairlead_watch_silent_seconds": max(now - cache.heard_at for cache in self.view.caches),
        }
