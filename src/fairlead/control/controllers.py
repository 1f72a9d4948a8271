"""Builds the controllers of an operator: one list, in the order in which the loop calls them.

See decision 205.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.watching import IDLE_S, ObjectCache
from fairlead.cluster.kubernetes.informers.autoscalers import Autoscalers
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.informers.run_reports import RunReports
from fairlead.cluster.kubernetes.lease_contents import DURATION_S
from fairlead.cluster.kubernetes.manifests.network_policies import METADATA, NetworkSettings
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.cluster.kubernetes.manifests.teams import TeamSettings
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.controller import Controller
from fairlead.cluster.kubernetes.operator.engines.dispatched_runs import DispatchedRuns
from fairlead.cluster.kubernetes.operator.engines.endpoint_controller import EndpointController
from fairlead.cluster.kubernetes.operator.engines.engine_controller import EngineController
from fairlead.cluster.kubernetes.operator.engines.search_controller import SearchController
from fairlead.cluster.kubernetes.operator.events.event_recorder import EventRecorder
from fairlead.cluster.kubernetes.operator.events.foreign_objects import ForeignObjects
from fairlead.cluster.kubernetes.operator.leader_election import DEADLINE_S, RENEW_EVERY_S
from fairlead.cluster.kubernetes.operator.ledger.budget_notices import BudgetNotices
from fairlead.cluster.kubernetes.operator.ledger.cost_publisher import EVERY_S as COSTS_S
from fairlead.cluster.kubernetes.operator.ledger.cost_publisher import CostPublisher
from fairlead.cluster.kubernetes.operator.ledger.ledger_keeper import LedgerKeeper
from fairlead.cluster.kubernetes.operator.nodes.node_health_controller import NodeHealthController
from fairlead.cluster.kubernetes.operator.partitions.partition_controller import PartitionController
from fairlead.cluster.kubernetes.operator.placeholders.capacity_objects import SILENT_S
from fairlead.cluster.kubernetes.operator.placeholders.placeholder_controller import PlaceholderController
from fairlead.cluster.kubernetes.operator.placeholders.standby_controller import StandbyController
from fairlead.cluster.kubernetes.operator.pods.autoscaler_controller import AutoscalerController
from fairlead.cluster.kubernetes.operator.pods.disruption_budgets import DisruptionBudgets
from fairlead.cluster.kubernetes.operator.pods.endpoint_publisher import EndpointPublisher
from fairlead.cluster.kubernetes.operator.pods.family_notices import FamilyNotices
from fairlead.cluster.kubernetes.operator.pods.gateways import Gateways
from fairlead.cluster.kubernetes.operator.pods.image_pulls import ImagePulls
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.cluster.kubernetes.operator.pods.start_blockers import StartBlockers
from fairlead.cluster.kubernetes.operator.runs.gpu_telemetry import EVERY_S as GPUS_S
from fairlead.cluster.kubernetes.operator.runs.gpu_telemetry import GpuTelemetry
from fairlead.cluster.kubernetes.operator.runs.log_archive import LogArchive
from fairlead.cluster.kubernetes.operator.runs.progress_polling import Listener
from fairlead.cluster.kubernetes.operator.runs.refusals import InvalidSpecs, RefusedWrites
from fairlead.cluster.kubernetes.operator.runs.retention_controller import EVERY_S, RetentionController
from fairlead.cluster.kubernetes.operator.runs.snapshot_extensions import QueryMeasurements, VerticalRecommendations
from fairlead.cluster.kubernetes.operator.runs.unreadable_objects import UnreadableObjects
from fairlead.cluster.kubernetes.operator.teams.dataset_publisher import DatasetPublisher
from fairlead.cluster.kubernetes.operator.teams.pool_controller import PoolKeeper
from fairlead.cluster.kubernetes.operator.teams.team_controller import TeamKeeper
from fairlead.cluster.kubernetes.operator.teams.team_holdings import TeamHoldings
from fairlead.cluster.kubernetes.operator.teams.view_publisher import EVERY_S as VIEWS_S
from fairlead.cluster.kubernetes.operator.teams.view_publisher import ViewPublisher
from fairlead.cluster.prometheus import PrometheusReader, ask_if_allowed
from fairlead.control.cluster_span_exporter import ClusterSpanExporter
from fairlead.control.other_leaders import OtherLeaders
from fairlead.control.span_receiver import SpanReceiver
from fairlead.frozen import dataclass
from fairlead.policy.kinds.retention import KEEP_ALL, Retention
from fairlead.specs.overlay_allowance import NOTHING, OverlayAllowance
from fairlead.state.capacity_requests import PATIENCE_S, PAUSE_S
from fairlead.state.scheduling_policy import POLICIES

# Interval between searches for runs whose retention has expired.
KEEP_S = EVERY_S


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
        show_names: Whether reasons name runs of other teams to members of a team.
        keeps: Retention of finished runs.
        views_s: Seconds between two writes of what members of teams see of the cluster.
        keep_s: Seconds between searches for runs whose retention has expired.
        ledger: File or URL ``postgresql://...`` of the ledger of usage and cost; None keeps none.
        costs_s: Seconds between updates of the published costs.
        gpus_s: Seconds between scrapes of DCGM's exporters.
        spans: Receives the spans of finished runs; None sends none.
        cluster_networks: Networks that pods of teams cannot reach as storage.
        guards_metrics: Only whom the API server lets ``get`` ``/metrics`` may read the metrics.
        allowed: What the pods of runs may do beyond what everybody may.
    """

    namespace: str
    watch_namespace: str | None = None
    listen: tuple[str, int] | None = None
    identity: str | None = None
    lease_s: float = DURATION_S
    deadline_s: float = DEADLINE_S
    beat_s: float = RENEW_EVERY_S
    idle_s: float = IDLE_S
    grow_patience_s: float = PATIENCE_S
    grow_pause_s: float = PAUSE_S
    policy: str = "default"
    show_names: bool = False
    keeps: Retention = KEEP_ALL
    views_s: float = VIEWS_S
    keep_s: float = KEEP_S
    ledger: str | None = None
    costs_s: float = COSTS_S
    gpus_s: float = GPUS_S
    spans: SpanReceiver | None = None
    cluster_networks: tuple[str, ...] = ()
    guards_metrics: bool = False
    allowed: OverlayAllowance = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorParts:
    """The parts of an operator that act on a cluster.

    Attributes:
        controllers: In the order in which they are called.
        ledger: Records usage and cost; None keeps none.
        gpus: Reads the use of GPUs.
    """

    cluster: KubernetesCluster
    agent: PodAgent
    controllers: tuple[Controller, ...]
    ledger: LedgerKeeper | None
    gpus: GpuTelemetry


def build(
    client: Client, view: Informers, pods: PodSettings, settings: OperatorSettings, *, leads: Callable[[], bool]
) -> OperatorParts:
    """Build the controllers and what they share; nothing is started.

    Args:
        leads: Returns whether this process leads; the only source of that for all controllers.
    """
    namespace, is_whole = settings.watch_namespace, settings.watch_namespace is None
    silent_s = min(SILENT_S, settings.grow_patience_s / 2)
    create_s = settings.lease_s - settings.deadline_s
    autoscalers = Autoscalers(client, patience_s=settings.grow_patience_s, pause_s=settings.grow_pause_s)
    placeholders = PlaceholderController(view, autoscalers, pods, may_act=leads, silent_s=silent_s)
    pools = PoolKeeper(client, wake=view.wake, idle_s=settings.idle_s)
    standby = StandbyController(view, pools.objects, pods, settings.namespace, may_act=leads, silent_s=silent_s)
    partitions = PartitionController(view, pools.objects, may_act=leads)
    pools.tell_of(ahead=standby.status, partitions=partitions.status)
    reports = RunReports(view)
    ledger = None
    if settings.ledger is not None:
        ledger = LedgerKeeper(
            view, settings.ledger, namespace=namespace, progress_of=reports.progress_of, pools=pools.specs
        )
    gpus = GpuTelemetry(view, ledger, system=pods.system, every_s=settings.gpus_s)
    cluster = KubernetesCluster(
        client,
        view=view,
        reports=reports,
        namespace=namespace,
        rules=replace(POLICIES[settings.policy], shows_names=settings.show_names),
        ledger=ledger,
        idle_of=gpus.idle_of,
    )
    agent = PodAgent(cluster, pods, may_act=leads, is_making_way=placeholders.is_making_way, create_s=create_s)
    gateways = Gateways(client, view, may_act=leads, idle_s=settings.idle_s)
    recorder = EventRecorder(view, may_act=leads)
    query_problem = pods.system.prometheus_problem
    network = NetworkSettings(withheld_cidrs=(METADATA, *settings.cluster_networks))
    teams = TeamKeeper(view, recorder, settings=TeamSettings(network=network), may_act=leads, idle_s=settings.idle_s)
    unreadable = UnreadableObjects(view, recorder, may_act=leads)
    controllers: list[Controller | None] = [
        ledger,
        # Placeholders are removed before the pods are created for which they hold room.
        placeholders,
        EngineController(cluster, agent, pods, may_act=leads, create_s=create_s),
        DispatchedRuns(client, view, may_act=leads),
        EndpointPublisher(cluster, gateways, may_act=leads),
        DisruptionBudgets(client, view, namespace=namespace, may_act=leads),
        EndpointController(client, view, may_act=leads, idle_s=settings.idle_s),
        SearchController(client, view, may_act=leads, idle_s=settings.idle_s),
        QueryMeasurements(PrometheusReader(partial(ask_if_allowed, query_problem)), may_act=leads),
        AutoscalerController(client, view, namespace=namespace, may_act=leads, query_problem=query_problem),
        VerticalRecommendations(client, namespace),
        FamilyNotices(cluster, may_act=leads),
        recorder,
        InvalidSpecs(cluster, recorder, may_act=leads),
        unreadable,
        OtherLeaders(client, recorder, settings.namespace, may_act=leads),
        gateways,
        ForeignObjects(view, recorder),
        RefusedWrites(cluster, recorder),
        ViewPublisher(client, view.isolation, may_act=leads, every_s=settings.views_s),
        DatasetPublisher(client, view.isolation, may_act=leads, every_s=settings.views_s) if is_whole else None,
        # Teams and pools are cluster-wide, so only a cluster-wide operator reconciles them.
        teams if is_whole else None,
        TeamHoldings(view, may_act=leads) if is_whole else None,
        pools if is_whole else None,
        standby if is_whole else None,
        partitions if is_whole else None,
        NodeHealthController(client, view, recorder, settings.namespace, watches=namespace, may_act=leads),
        Listener(cluster, devices=gpus.note),
        gpus,
        StartBlockers(view),
        *_of_ledger(client, view, recorder, ledger, settings, leads),
        LogArchive(cluster, may_act=leads),
        *_of_spans(cluster, settings, leads),
        RetentionController(cluster, settings.keeps, every_s=settings.keep_s),
    ]
    present = tuple(controller for controller in controllers if controller is not None)
    unreadable.follow(lambda: all_caches(view, present))
    return OperatorParts(cluster=cluster, agent=agent, controllers=present, ledger=ledger, gpus=gpus)


def all_caches(view: Informers, controllers: Sequence[Controller]) -> list[ObjectCache[Any]]:
    """Return all caches that are used now."""
    own = [cache for controller in controllers for cache in controller.caches]
    return [*view.caches, *view.engines.caches, *own]


def _of_ledger(
    client: Client,
    view: Informers,
    recorder: EventRecorder,
    ledger: LedgerKeeper | None,
    settings: OperatorSettings,
    leads: Callable[[], bool],
) -> tuple[Controller, ...]:
    if ledger is None:
        return ()
    costs = CostPublisher(client, ledger, settings.namespace, may_act=leads, every_s=settings.costs_s)
    return costs, BudgetNotices(view, recorder, ledger)


def _of_spans(
    cluster: KubernetesCluster, settings: OperatorSettings, leads: Callable[[], bool]
) -> tuple[Controller, ...]:
    if settings.spans is None:
        return ()
    exporter = ClusterSpanExporter(cluster, settings.spans, namespace=settings.watch_namespace, may_act=leads)
    return ImagePulls(cluster), exporter
