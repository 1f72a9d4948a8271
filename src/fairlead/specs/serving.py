"""The spec of an endpoint: replicas of one server behind one address, in a fixed or a load-dependent number."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, PATH, Limit, Text, enforce, quote
from fairlead.specs.cron import parse_cron
from fairlead.specs.data import DataSource, without_claims
from fairlead.specs.endpoint_engines import TITLES, EndpointEngine, endpoint_engine_problems
from fairlead.specs.environment import PythonEnvironment
from fairlead.specs.field_types import (
    DURATION,
    FACTOR,
    SHARE,
    SPAN,
    TEXT,
    ListField,
    MapField,
    Named,
    Section,
    SectionKey,
    word,
)
from fairlead.specs.key import Key, SameKey, broken
from fairlead.specs.overlay import Overlay
from fairlead.specs.pool import LABEL_NAME, LABEL_VALUE
from fairlead.specs.quantities import format_duration
from fairlead.specs.resources import Resources
from fairlead.specs.secret_reference import SecretReference, secrets_problems
from fairlead.specs.sections import part_of, with_keys
from fairlead.specs.serving_sites import (
    PUBLIC_KEY,
    SERVING_SITES_MOST,
    ServingSite,
    Waves,
    replica_resources,
    sites_problems,
)
from fairlead.specs.training import (
    DAY_S,
    DEFAULT_TEAM,
    Capacity,
    Logs,
    Retry,
    Tier,
    Training,
    env_problems,
    labels_problems,
)
from fairlead.specs.workload import Kind, WorkloadSpec

# Leaves room for the revision and the number of a replica in names.
NAME_MOST = 35
MAX_REPLICAS = 1_000
# Command of a replica with a predictor, and its readiness path.
PREDICTOR_SERVER = "python -m fairlead.runtime.serving"
PREDICTOR_PROBE = "/v2/health/ready"
# Precedes a command that reads a published model.
PUBLISHED_MODEL = (
    'FAIRLEAD_MODEL="$(python -m fairlead.runtime.serving.published_model)" || exit; export FAIRLEAD_MODEL; '
)
# Variables set in a replica in addition to those of every run.
SET = (
    "HOST", "PORT", "FAIRLEAD_MODEL", "FAIRLEAD_PREDICTOR", "FAIRLEAD_SERVICE", "FAIRLEAD_REVISION", "FAIRLEAD_REPLICA",
    "FAIRLEAD_BATCHING", "FAIRLEAD_GRACE", "FAIRLEAD_MAX_QUEUE", "FAIRLEAD_MODEL_SIGNER",
    "FAIRLEAD_MODEL_CACHE",
)  # fmt: skip

PREDICTOR = Text(
    max_length=500,
    pattern=r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*",
    what="a predictor; give its module and its class, such as `predict:Classifier`",
)
PROBE_PATH = Text(max_length=1_000, pattern=r"/[!-~]*", what="a path; it begins with `/` and has no spaces")
MAX_QUEUE = Limit(low=0, high=1_000_000, whole=True)
SELECTORS_MOST = 20
WINDOW_NAME = NAME
WINDOWS_MOST = 20
MARGIN = Limit(low=0.0001, high=0.5)
TEAMS_MOST = 100
ORIGINS_MOST = 20
ORIGIN = Text(
    max_length=300,
    pattern=r"https?://[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[1-9][0-9]{0,4})?",
    what="the origin of a site; use `https://` or `http://`, its host in small letters and its port if it is not the "
    "usual one, without a path, such as `https://app.example.com`",
)
# A step has at least one request in a thousand, and at most half of all, since the old revision gets an equal share.
LEAST_STEP, MOST_STEP, STEPS_MOST = 0.001, 0.5, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A recurring time with a minimum number of replicas."""

    cron: Annotated[
        str,
        Key("cron", rule=Text(max_length=200, what="a time"), example="'0 8 * * mon-fri'", also="start at schedule"),
        "When it begins, in UTC: minute, hour, day of the month, month, day of the week.",
    ]
    duration_s: Annotated[
        float,
        Key("duration", DURATION, Limit(low=60, high=7 * DAY_S), example="10h", also="for length end"),
        "How long it lasts.",
    ]
    replicas: Annotated[
        int,
        Key(
            "replicas",
            rule=Limit(low=1, high=MAX_REPLICAS, whole=True),
            example="4",
            also="min_replicas desired_replicas count",
        ),
        "Minimum number of replicas in that time.",
    ]

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        try:
            parse_cron(self.cron)
        except ValueError as error:
            yield "cron", f"{quote(self.cron)} {error}"


class Aggregation(StrEnum):
    """The meaning of a metric: the sum over all replicas, or the mean per replica."""

    SUM = "sum"
    MEAN = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusQuery:
    """A Prometheus query that determines the number of replicas."""

    url: Annotated[
        str,
        Key(
            "url",
            rule=Text(
                max_length=1_000, pattern=r"https?://[!-~]+", what="the address of a Prometheus, http:// or https://"
            ),
            example="'http://prometheus.monitoring:9090'",
            also="server server_address serverAddress address host endpoint",
        ),
        "URL of a Prometheus, or of a server with its `/api/v1/query`.",
    ]
    query: Annotated[
        str,
        Key(
            "query",
            rule=Text(max_length=4_000, lines=True, what="a query"),
            example="sum(jobs_waiting)",
            also="promql expr expression metric",
        ),
        "PromQL query with a single number as its result.",
    ]
    target: Annotated[
        float,
        Key(
            "target",
            FACTOR,
            Limit(low=1e-9, high=1e15),
            example="50",
            also="threshold target_value targetValue value averageValue",
        ),
        "Target value for each replica.",
    ]
    aggregation: Annotated[
        Aggregation,
        Key("aggregation", example="mean", also="metric_type metricType type aggregate"),
        "Whether the value is a total of all replicas, such as a queue, or their mean, such as utilisation.",
    ] = Aggregation.SUM

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        try:
            parts = urlsplit(self.url)
            host, user = parts.hostname, parts.username
            _ = parts.port
        except ValueError as error:
            yield "url", f"{quote(self.url)} is not an address: {error}; give one such as `http://prometheus:9090`"
            return
        if user is not None:
            yield "url", "it has a password, which anybody could read here; give an address that needs none"
        elif not host or parts.query or parts.fragment:
            yield "url", f"{quote(self.url)} is not the address of a server; give one such as `http://prometheus:9090`"


class Autoscaler(StrEnum):
    """The autoscalers of a Kubernetes cluster that may set the number of replicas."""

    HPA = "hpa"
    KEDA = "keda"


NO_AUTOSCALER = "it is set by a cluster's own autoscaler; give `by: hpa` or `by: keda`, or leave it out"
AUTOSCALERS = {Autoscaler.HPA: "HorizontalPodAutoscaler", Autoscaler.KEDA: "ScaledObject"}
"""Kind of the object for each autoscaler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalMetric:
    """An external metric from an adapter of the cluster, such as Prometheus', for its HorizontalPodAutoscaler."""

    name: Annotated[
        str,
        Key(
            "name",
            rule=Text(
                max_length=253,
                pattern=r"[A-Za-z_:][-A-Za-z0-9_:.|]*",
                what="the name of a metric, such as `DCGM_FI_DEV_GPU_UTIL`",
            ),
            example="DCGM_FI_DEV_GPU_UTIL",
            also="metric metric_name metricName",
        ),
        "Name of the metric in `external.metrics.k8s.io`.",
    ]
    target: Annotated[
        float,
        Key(
            "target", FACTOR, Limit(low=1e-3, high=1e15), example="70", also="threshold target_value value averageValue"
        ),
        "Target value for each replica.",
    ]
    labels: Annotated[
        Mapping[str, str],
        Key(
            "labels",
            MapField(names=LABEL_NAME, values=LABEL_VALUE, most=SELECTORS_MOST),
            example="{service: chat}",
            also="selector match_labels matchLabels",
        ),
        "Only series with these labels.",
    ] = field(default_factory=dict)
    aggregation: Annotated[
        Aggregation,
        Key("aggregation", example="mean", also="metric_type metricType type aggregate"),
        "Whether the value is a total of all replicas, such as a queue, or their mean, such as utilisation.",
    ] = Aggregation.SUM

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if len(self.labels) > SELECTORS_MOST:
            yield "labels", f"{len(self.labels)} labels; give at most {SELECTORS_MOST}"
        for name, value in self.labels.items():
            problem = LABEL_NAME.problem(name) or LABEL_VALUE.problem(value)
            if problem is not None:
                yield "labels", problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The scaling rule of an endpoint with a variable number of replicas."""

    by: Annotated[
        Autoscaler | None,
        Key("by", example="hpa", also="autoscaler class engine scaler controller"),
        "Autoscaler of the Kubernetes cluster that sets the number; Fairlead when left out.",
    ] = None
    cpu: Annotated[
        float | None,
        Key(
            "cpu",
            SHARE,
            Limit(low=0.01, high=10),
            example="70%",
            also="cpu_utilization target_cpu targetCPUUtilizationPercentage utilization",
        ),
        "Target CPU utilisation of replicas, with `by: hpa`.",
    ] = None
    external_metric: Annotated[
        ExternalMetric | None,
        Key(
            "external_metric",
            example="{name: DCGM_FI_DEV_GPU_UTIL, target: 70, aggregation: mean}",
            also="external adapter object_metric",
        ),
        "Metric of a metrics adapter of the cluster, with `by: hpa`.",
    ] = None
    replicas: Annotated[
        int | None,
        Key("replicas", rule=Limit(low=0, high=MAX_REPLICAS, whole=True), example="3", also="current desired"),
        "Current number of replicas of the autoscaler `by`, which sets it.",
    ] = None
    concurrency: Annotated[
        float,
        Key(
            "concurrency",
            FACTOR,
            Limit(low=0.01, high=100_000),
            example="8",
            also="target target_concurrency container_concurrency target_ongoing_requests requests",
            alone=True,
        ),
        "Target of requests in flight for each replica; with `latency`, how many it serves without delay.",
    ] = 4.0
    latency_s: Annotated[
        float | None,
        Key(
            "latency",
            DURATION,
            Limit(low=0.001, high=3_600),
            example="500ms",
            also="slo latency_slo target_latency response_time p99",
        ),
        "Target time of answers: sets as many replicas as the forecast demand needs.",
    ] = None
    first_token_s: Annotated[
        float | None,
        Key(
            "time_to_first_token",
            DURATION,
            Limit(low=0.001, high=3_600),
            example="1s",
            also="ttft first_token first_token_latency time_to_first_token_slo target_ttft",
        ),
        "Target time until a text server's answers begin; a simulation gives the number of replicas.",
    ] = None
    per_token_s: Annotated[
        float | None,
        Key(
            "time_per_token",
            DURATION,
            Limit(low=0.001, high=60),
            example="50ms",
            also="tpot time_per_output_token inter_token_latency itl token_latency",
        ),
        "Target mean time of each further token of an answer; with `time_to_first_token` or alone.",
    ] = None
    queue: Annotated[
        int | None,
        Key(
            "queue",
            rule=Limit(low=0, high=100_000, whole=True),
            example="5",
            also="queue_length queue_size backlog waiting pending",
        ),
        "Requests that may wait for each replica, beside its `max_concurrency`; replaces `concurrency`.",
    ] = None
    prometheus: Annotated[
        PrometheusQuery | None,
        Key(
            "prometheus",
            example="{url: 'http://prometheus:9090', query: sum(jobs_waiting), target: 20}",
            also="query metric metrics custom_metric gpu_utilization trigger triggers",
        ),
        "Prometheus query that sets the number of replicas; replaces `concurrency`.",
    ] = None
    schedule: Annotated[
        Mapping[str, Window],
        Key(
            "schedule",
            Named(WINDOW_NAME, WINDOWS_MOST),
            example="{office: {cron: '0 8 * * mon-fri', duration: 10h, replicas: 4}}",
            also="cron scheduled calendar windows",
        ),
        "Times with a minimum number of replicas, by names of your own.",
    ] = field(default_factory=dict)
    shed: Annotated[
        bool,
        Key("shed", example="false", also="load_shedding gate admission_control reject_late"),
        "Refuse requests at once that would take longer than `latency`.",
    ] = True
    window_s: Annotated[
        float,
        Key(
            "window",
            DURATION,
            Limit(low=1, high=110),
            example="90s",
            also="stable_window cooldown scale_down_delay downscale_delay stabilization_window",
        ),
        "A replica is removed only if it was not needed during this time.",
    ] = 60.0
    idle_s: Annotated[
        float,
        Key(
            "idle",
            DURATION,
            Limit(low=1, high=DAY_S),
            example="10m",
            also="idle_timeout scale_to_zero_after scaledown_window cooldown_period retention",
        ),
        "Time without requests after which the last replica is removed, with `replicas: 0..N`.",
    ] = 300.0

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if self.latency_s is None and not self.shed:
            yield "shed", "nothing is refused without `latency`, such as `latency: 500ms`; remove it"
        by_default = self.concurrency == Scale.__dataclass_fields__["concurrency"].default
        if self.queue is not None and self.latency_s is not None:
            yield "queue", "replicas scale by `latency` or by `queue`, not by both; remove one"
        if self.queue is not None and not by_default:
            yield "queue", "replicas scale by `concurrency` or by `queue`, not by both; remove one"
        tokens = "time_per_token" if self.first_token_s is None else "time_to_first_token"
        if self.is_by_tokens and self.latency_s is not None:
            yield tokens, f"replicas scale by `latency` or by `{tokens}`, not by both; remove one"
        if self.is_by_tokens and self.queue is not None:
            yield "queue", f"replicas scale by `{tokens}` or by `queue`, not by both; remove one"
        yield from self._problems_of_autoscaler()
        others = {
            "latency": self.latency_s is not None, tokens: self.is_by_tokens, "queue": self.queue is not None,
            "concurrency": not by_default,
        }  # fmt: skip
        if self.prometheus is not None:
            yield from (
                ("prometheus", f"replicas scale by `{other}` or by `prometheus`, not by both; remove one")
                for other, is_given in others.items()
                if is_given
            )
        if self.is_by_time and self.window_s != Scale.__dataclass_fields__["window_s"].default:
            by = "latency" if self.latency_s is not None else tokens
            yield "window", f"it applies to `concurrency` only; `{by}` always uses the last 15 minutes; remove one"

    @property
    def is_by_tokens(self) -> bool:
        """Return whether the latency of tokens determines the number."""
        return self.first_token_s is not None or self.per_token_s is not None

    @property
    def is_by_time(self) -> bool:
        """Return whether forecast response times determine the number."""
        return self.latency_s is not None or self.is_by_tokens

    def _problems_of_autoscaler(self) -> Iterable[tuple[str, str]]:
        if self.by is None:
            for key, value in (("cpu", self.cpu), ("external_metric", self.external_metric)):
                if value is not None:
                    yield key, f"it is for the cluster's own autoscaler; give `by: hpa`, or leave `{key}` out"
            if self.replicas is not None:
                yield "replicas", NO_AUTOSCALER
            return
        default = Scale()
        ours = {
            "concurrency": self.concurrency != default.concurrency, "latency": self.latency_s is not None,
            "time_to_first_token": self.first_token_s is not None, "time_per_token": self.per_token_s is not None,
            "queue": self.queue is not None, "shed": not self.shed, "schedule": bool(self.schedule),
        }  # fmt: skip
        yield from (
            (key, f"it is for Fairlead's own scaling, and `by: {self.by}` has another do that; remove one")
            for key, is_given in ours.items()
            if is_given
        )
        if self.by is Autoscaler.HPA:
            if self.prometheus is not None:
                yield (
                    "prometheus",
                    "a HorizontalPodAutoscaler asks none; give `by: keda`, or `external_metric`",
                )
            elif self.cpu is None and self.external_metric is None:
                yield "by", "no metric is given; give `cpu`, such as `cpu: 70%`, or `external_metric`"
            if self.idle_s != default.idle_s:
                yield "idle", "a HorizontalPodAutoscaler keeps one replica at least; leave it out, or give `by: keda`"
            return
        if self.prometheus is None:
            yield "by", "no metric is given; give `prometheus: {url: ..., query: ..., target: ...}`"
        for key, value in (("cpu", self.cpu), ("external_metric", self.external_metric)):
            if value is not None:
                yield key, "KEDA scales by `prometheus` here; leave it out, or give `by: hpa`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """The limits of request batches for a predictor."""

    max_batch_size: Annotated[
        int,
        Key(
            "max_batch_size",
            rule=Limit(low=1, high=65_536, whole=True),
            example="64",
            also="batch_size max_size size preferred_batch_size",
            alone=True,
        ),
        "Maximum number of rows of a batch.",
    ] = 32
    max_latency_s: Annotated[
        float,
        Key(
            "max_latency",
            DURATION,
            Limit(low=0.0001, high=60),
            example="100ms",
            also="max_wait timeout batch_wait_timeout max_queue_delay wait",
        ),
        "Time limit of a request, which limits how long it waits for a batch.",
    ] = 0.05

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The rollout from one revision to the next."""

    max_surge: Annotated[
        int,
        Key(
            "max_surge",
            rule=Limit(low=0, high=MAX_REPLICAS, whole=True),
            example="0",
            also="surge extra maxSurge max_extra",
            alone=True,
        ),
        "Additional replicas during a rollout; with 0 an old replica is removed first.",
    ] = 1

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryMetric:
    """A number in a response header, and its bad range. Exactly one of ``above`` and ``below`` is given."""

    header: Annotated[
        str,
        Key(
            "header",
            rule=Text(max_length=100, pattern=r"[A-Za-z][-A-Za-z0-9]*", what="the name of a header, such as `X-Score`"),
            example="X-Score",
            also="name field key",
        ),
        "Header of the answers that has the number.",
    ]
    above: Annotated[
        float | None,
        Key("above", FACTOR, Limit(low=-1e12, high=1e12), example="0.8", also="more_than max upper greater_than"),
        "An answer with a greater number is bad.",
    ] = None
    below: Annotated[
        float | None,
        Key("below", FACTOR, Limit(low=-1e12, high=1e12), example="0.5", also="less_than min lower smaller_than"),
        "An answer with a smaller number is bad.",
    ] = None
    margin: Annotated[
        float,
        Key("margin", SHARE, MARGIN, example="2%", also="tolerance threshold max_increase"),
        "How much more often than the old revision's the answers may be bad, as a share of requests.",
    ] = 0.05

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if (self.above is None) == (self.below is None):
            stated = "neither" if self.above is None else "both"
            yield (
                "header",
                f"of `above` and `below`, which say when its number is bad, there are {stated}; give one, such as "
                "`below: 0.5`",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The trial of a new revision on a slice of the requests, against an equal slice of the old one."""

    steps: Annotated[
        tuple[float, ...],
        Key(
            "steps",
            ListField(item=SHARE, most=STEPS_MOST),
            example="[5%, 25%, 50%]",
            also="weights traffic step_weight percent canary_traffic_percent",
        ),
        "Shares of the requests that the new revision gets in turn, compared with as many of the old one's.",
    ] = (0.05, 0.25, 0.5)
    errors: Annotated[
        float,
        Key("errors", SHARE, MARGIN, example="1%", also="error_rate max_errors failures success_rate"),
        "How much more often than the old revision the new one may fail, as a share of requests.",
    ] = 0.01
    latency_s: Annotated[
        float | None,
        Key(
            "latency",
            DURATION,
            Limit(low=0.001, high=DAY_S),
            example="250ms",
            also="latency_target slo target threshold p99",
        ),
        "Requests that take longer are slow; none is when left out.",
    ] = None
    slow: Annotated[
        float,
        Key("slow", SHARE, MARGIN, example="5%", also="max_slow slower latency_margin"),
        "How much more often than the old revision the new one may be slow, as a share of requests.",
    ] = 0.05
    metric: Annotated[
        CanaryMetric | None,
        Key("metric", example="{header: X-Score, below: 0.5}", also="metrics analysis custom_metric quality"),
        "Your own number in the answers, by which they are good or bad.",
    ] = None
    confidence: Annotated[
        float,
        Key("confidence", SHARE, Limit(low=0.5, high=0.9999), example="99%", also="significance alpha certainty"),
        "Confidence of the verdict: at most the rest of good revisions is rolled back, or of bad promoted.",
    ] = 0.95
    within_s: Annotated[
        float,
        Key(
            "within",
            DURATION,
            Limit(low=1, high=30 * DAY_S),
            example="1d",
            also="timeout deadline duration max_duration progress_deadline",
        ),
        "Time after which, without a verdict, the old revision stays.",
    ] = 3_600.0
    shadow: Annotated[
        bool,
        Key("shadow", example="true", also="mirror mirroring dark_launch copies shadow_traffic tee"),
        "Send the new revision only copies of requests, and drop its answers.",
    ] = False

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def margins(self) -> Mapping[str, float]:
        """Return the tolerated excess of bad requests of the new revision over the old one, by criterion."""
        margins = {"failed": self.errors}
        if self.latency_s is not None:
            margins["slow"] = self.slow
        if self.metric is not None:
            margins["metric"] = self.metric.margin
        return margins

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        least = 0.0
        for step in self.steps:
            if not LEAST_STEP <= step <= MOST_STEP:
                yield (
                    "steps",
                    f"{step:g} is out of bounds; give {LEAST_STEP:g} to {MOST_STEP:g}, as the old one gets it too",
                )
            elif step <= least:
                yield "steps", f"{step:g} is no more than the step before, {least:g}; give more"
            least = step
        if not 1 <= len(self.steps) <= STEPS_MOST:
            yield "steps", f"it has {len(self.steps)} steps; give 1 to {STEPS_MOST}"
        if self.latency_s is None and self.slow != Canary.__dataclass_fields__["slow"].default:
            yield "slow", "no request counts as slow without `latency`, such as `latency: 250ms`"


class OverflowCapacity(StrEnum):
    """The kind of capacity of replicas above the base."""

    SPOT = "spot"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCapacity:
    """The kinds of capacity that replicas may use.

    Attributes:
        spot: Whether reclaimable capacity is allowed for all of them.
        max_price: Maximum price of a node in dollars per hour; None for no limit.
    """

    spot: Annotated[
        bool,
        SameKey(Capacity, "spot", {"kind": None, "sets": ()}),
        "Whether capacity that can be reclaimed may be used.",
    ] = False
    max_price: Annotated[float | None, SameKey(Capacity, "max_price")] = None
    base: Annotated[
        int | None,
        Key(
            "base",
            rule=Limit(low=0, high=MAX_REPLICAS, whole=True),
            example="2",
            also="base_ondemand_fallback_replicas on_demand min_on_demand on_demand_base base_capacity",
        ),
        "Replicas on on-demand nodes, with `overflow` for those above them.",
    ] = None
    overflow: Annotated[
        OverflowCapacity | None,
        Key("overflow", example="spot", also="burst above rest dynamic_ondemand_fallback"),
        "Nodes of replicas above the base: spot nodes if they have room, else on-demand nodes.",
    ] = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    def of_replica(self, tier: Tier | None) -> Capacity:
        """Return the capacity of a replica of a tier."""
        return Capacity(spot=self.spot or tier is Tier.OVERFLOW, max_price=self.max_price, tier=tier)

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if self.base is not None and self.overflow is None:
            yield (
                "base",
                "it needs `overflow`, the capacity beyond `base`; give `overflow: spot` too, or leave `base` out",
            )
        if self.spot and self.overflow is not None:
            yield "spot", "`overflow` already says which replicas use spot; leave `spot` out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The teams with access to an endpoint, by keys that a command creates and no spec contains."""

    teams: Annotated[
        tuple[str, ...],
        Key(
            "teams",
            ListField(item=TEXT, most=TEAMS_MOST, rule=NAME),
            example="[search, ads]",
            also="team allow allowed allowed_teams users keys api_keys",
        ),
        "Teams whose keys are accepted; its own team when left out.",
    ] = ()
    requests_per_minute: Annotated[
        int | None,
        Key(
            "requests_per_minute",
            rule=Limit(low=1, high=10_000_000, whole=True),
            example="600",
            also="rpm requests rate_limit rate qps requests_per_second",
        ),
        "Requests that each team may begin within any minute.",
    ] = None
    tokens_per_minute: Annotated[
        int | None,
        Key(
            "tokens_per_minute",
            rule=Limit(low=1, high=1_000_000_000, whole=True),
            example="100000",
            also="tpm tokens token_limit token_rate max_tokens_per_minute",
        ),
        "Tokens of requests and answers that each team may have in a minute before its next request begins.",
    ] = None
    origins: Annotated[
        tuple[str, ...],
        Key(
            "origins",
            ListField(item=TEXT, most=ORIGINS_MOST, rule=ORIGIN),
            example='["https://app.example.com"]',
            also="cors origin allowed_origins allow_origins cors_origins",
        ),
        "Sites whose pages may use it from a browser, with a key (CORS).",
    ] = ()

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if len(self.teams) > TEAMS_MOST:
            yield "teams", f"there are {len(self.teams)}; give at most {TEAMS_MOST}"
        for number, team in enumerate(self.teams):
            problem = NAME.problem(team)
            if problem is not None:
                yield "teams", problem
            elif team in self.teams[:number]:
                yield "teams", f"{quote(team)} is listed twice; remove one"
        if len(self.origins) > ORIGINS_MOST:
            yield "origins", f"there are {len(self.origins)}; give at most {ORIGINS_MOST}"
        for number, origin in enumerate(self.origins):
            problem = ORIGIN.problem(origin)
            if problem is not None:
                yield "origins", problem
            elif origin in self.origins[:number]:
                yield "origins", f"{quote(origin)} is listed twice; remove one"


def _replica_capacity() -> Section:
    spot = part_of(EndpointCapacity).key("spot")
    assert spot is not None
    tier = SectionKey(
        name="tier", kind=word(Tier), attributes=("tier",), example="base",
        doc="Which part of its endpoint's replicas it is of, where these use different capacity.",
    )  # fmt: skip
    whole = with_keys(part_of(Capacity), spot)
    return replace(whole, keys=(*whole.keys, tier))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica(Training):
    """One server of an endpoint: a gang whose program is not meant to end. Nobody writes one: endpoints submit them.

    Attributes:
        code: Stored snapshot of its directory that it runs; empty for none.
    """

    kind: ClassVar[str] = Kind.REPLICA

    OBJECT_KEYS: ClassVar = (
        "name", "team", "labels", "image", "workdir", "setup", "run", "env", "secrets", "data", "ranks_per_node",
        "resources", "capacity", "retry", "logs", "priority", "grace", "snapshot", "kubernetes", "service", "revision",
        "model", "predictor", "probe", "batching", "max_queue", "guarded", "signed_by",
    )  # fmt: skip

    name: Annotated[
        str,
        Key("name", rule=NAME, example="chat-r1-1", metadata="name"),
        "Lower-case letters, digits and dashes, at most 50.",
    ] = "replica"
    resources: Annotated[Resources, SameKey(Training, "resources", {"kind": replica_resources})] = field(
        default_factory=Resources
    )
    capacity: Annotated[
        Capacity,
        SameKey(Training, "capacity", {"kind": _replica_capacity}),
        "Kinds of capacity to use.",
    ] = field(default_factory=Capacity)
    service: Annotated[str, Key("service", rule=NAME, example="chat"), "Name of its endpoint."] = "service"
    revision: Annotated[str, Key("revision", rule=NAME, example="r1"), "Revision of its endpoint."] = "r1"
    model_path: Annotated[
        str,
        Key("model", rule=replace(PATH, blank=True), example="/models/chat"),
        "Where its model is.",
    ] = ""
    predictor: Annotated[
        str,
        Key(
            "predictor",
            rule=replace(PREDICTOR, pattern=f"(?:{PREDICTOR.pattern})?", blank=True),
            example="predict:Classifier",
        ),
        "Module and class that Fairlead's own server loads.",
    ] = ""
    probe: Annotated[str, Key("probe", rule=PROBE_PATH, example="/"), "Path that it answers well once ready."] = "/"
    batching: Annotated[
        str,
        Key("batching", rule=Text(max_length=1_000), example="'{}'"),
        "Bounds of batches, as JSON for Fairlead's own server.",
    ] = "{}"
    max_queue: Annotated[
        int,
        Key("max_queue", rule=MAX_QUEUE, example="100"),
        "Requests that Fairlead's own server lets wait.",
    ] = 0
    guarded: Annotated[bool, Key("guarded", example="true"), "Whether only gateways may ask it."] = False
    signed_by: Annotated[
        str | None,
        Key(
            "signed_by",
            rule=PUBLIC_KEY,
            example="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGq1fJ8m0bT1n2xqkWq0v1m8o3yTnC0k2vYxq5x3Zr9d",
        ),
        "Public key whose signature its model needs.",
    ] = None
    code: str = ""


class Routing(StrEnum):
    """The replica of a request: the one with the fewest outstanding, or one that has the prefix of the prompt."""

    LEAST_OUTSTANDING = "least_outstanding"
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """An endpoint.

    Attributes:
        name: Lower-case letters, digits and dashes, at most 35.
        run: Command of the server, which listens on ``$PORT``; None with a predictor.
        most_replicas: Maximum number of replicas; None for a fixed number.
        code: Snapshot of its directory that its replicas run, on a cluster that stores any; not written by users.
    """

    kind: ClassVar[str] = Kind.SERVING

    name: Annotated[
        str,
        Key(
            "name",
            rule=replace(NAME, max_length=NAME_MOST),
            example="chat",
            also="service service_name endpoint title id",
            metadata="name",
        ),
        "Lower-case letters, digits and dashes, at most 35.",
    ]
    team: Annotated[str, SameKey(Training, "team")] = DEFAULT_TEAM
    labels: Annotated[
        Mapping[str, str],
        SameKey(Training, "labels"),
        "Names and values of your own, which its replicas have too.",
    ] = field(default_factory=dict)
    model: Annotated[
        str | None,
        Key(
            "model",
            rule=PATH,
            example="run://train@best",
            also="checkpoint model_path model_uri storage_uri weights artifact",
        ),
        "A path, a model such as `churn@production`, or a run's checkpoint, `run://NAME@best`.",
    ] = None
    signed_by: Annotated[
        str | None,
        Key(
            "signed_by",
            rule=PUBLIC_KEY,
            example="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGq1fJ8m0bT1n2xqkWq0v1m8o3yTnC0k2vYxq5x3Zr9d",
            also="public_key verify_key signature model_key trusted_key",
        ),
        "Public key of a published model, given as its URL or path; nothing else is loaded.",
    ] = None
    sites: Annotated[
        Mapping[str, ServingSite],
        Key(
            "sites",
            Named(NAME, SERVING_SITES_MOST),
            example="{north: {context: k3s-north}, south: {context: k3s-south}}",
            also="clusters edges locations targets regions devices",
        ),
        "Clusters that each get this endpoint, by name, from a supervisor of this machine; see edge.md.",
    ] = field(default_factory=dict)
    waves: Annotated[
        Waves,
        Key("waves", example="{steps: [north, 25%], hold: 1h}", also="wave stages phases rings batches"),
        "In which order and how fast a new revision reaches `sites`.",
    ] = field(default_factory=Waves)
    run: Annotated[
        str | None,
        SameKey(Training, "run", {"example": "'vllm serve $FAIRLEAD_MODEL --port $PORT'"}),
        "The command of a server, as for a shell, that listens on `$PORT`; or give `predictor`.",
    ] = None
    predictor: Annotated[
        str | None,
        Key(
            "predictor",
            rule=PREDICTOR,
            example="predict:Classifier",
            also="class handler import_path model_class deployment",
        ),
        "Module and class that loads the model and predicts on batches; or give `run`.",
    ] = None
    probe: Annotated[
        str | None,
        Key(
            "probe",
            rule=PROBE_PATH,
            example="/health",
            also="readiness_probe health health_check healthcheck ready readiness",
        ),
        "Path that a ready replica answers with success; `/`, or that of the open inference protocol.",
    ] = None
    replicas: Annotated[
        int,
        Key(
            "replicas",
            SPAN,
            Limit(low=0, high=MAX_REPLICAS, whole=True),
            example="0..8",
            also="num_replicas min_replicas max_replicas instances workers nodes scaling",
            sets=("most_replicas",),
        ),
        "Number of replicas; `0..8` for as many as requests need within these bounds.",
    ] = 1
    most_replicas: Annotated[int | None, Limit(low=1, high=MAX_REPLICAS, whole=True)] = None
    scale: Annotated[
        Scale,
        Key("scale", example="{concurrency: 8}", also="autoscaling autoscaler autoscale scaling_policy"),
        "How the number of replicas is chosen; a number alone is `concurrency`.",
    ] = field(default_factory=Scale)
    batching: Annotated[
        Batching,
        Key("batching", example="{max_batch_size: 64, max_latency: 100ms}", also="batch batcher dynamic_batching"),
        "Batching of requests to a predictor; a number alone is `max_batch_size`.",
    ] = field(default_factory=Batching)
    rollout: Annotated[
        Rollout,
        Key("rollout", example="{max_surge: 0}", also="strategy update update_policy rolling_update upgrade"),
        "Rollout of a changed spec; a number alone is `max_surge`.",
    ] = field(default_factory=Rollout)
    canary: Annotated[
        Canary | None,
        Key(
            "canary",
            example="{steps: [5%, 25%, 50%], latency: 250ms}",
            also="canaries progressive analysis canary_traffic_percent canaryTrafficPercent",
        ),
        "A new revision first gets a share of the requests, and is rolled back if it does worse.",
    ] = None
    access: Annotated[
        Access | None,
        Key(
            "access",
            example="{teams: [search], requests_per_minute: 600}",
            also="auth authentication api_keys keys rate_limit rate_limits quota",
        ),
        "Require keys of teams, and limit their requests; `{}` for its own team.",
    ] = None
    timeout_s: Annotated[
        float,
        Key(
            "timeout",
            DURATION,
            Limit(low=0.01, high=DAY_S),
            example="30s",
            also="request_timeout timeout_seconds response_timeout timeout_s",
        ),
        "Time limit of a request; the gateway ends it then.",
    ] = 60.0
    ready_within_s: Annotated[
        float,
        Key(
            "ready_within",
            DURATION,
            Limit(low=1, high=DAY_S),
            example="10m",
            also="startup_timeout initial_delay progress_deadline start_timeout initial_delay_seconds",
        ),
        "Time in which a replica of a new revision must be ready; else the old revision stays.",
    ] = 600.0
    max_concurrency: Annotated[
        int | None,
        Key(
            "max_concurrency",
            rule=Limit(low=1, high=100_000, whole=True),
            example="16",
            also="max_ongoing_requests container_concurrency concurrency_limit max_connections",
        ),
        "Maximum number of requests at a replica; others wait at the gateway.",
    ] = None
    max_queue: Annotated[
        int,
        Key(
            "max_queue",
            rule=MAX_QUEUE,
            example="50",
            also="max_queued_requests queue queue_size max_pending",
        ),
        "Maximum number of waiting requests; further ones are refused.",
    ] = 100
    idempotent: Annotated[
        bool,
        Key("idempotent", example="true", also="retry retries retryable safe_to_retry"),
        "Retry requests that a replica had begun when it died.",
    ] = False
    routing: Annotated[
        Routing,
        Key(
            "routing",
            example="prefix",
            also="load_balancing balancing affinity session_affinity routing_logic lb_policy",
        ),
        "How a request's replica is chosen; `prefix` for text servers that cache prefixes or load adapters.",
    ] = Routing.LEAST_OUTSTANDING
    setup: Annotated[
        str | None,
        SameKey(Training, "setup", {"example": "pip install vllm"}),
        "Shell commands run once for each replica before its first start.",
    ] = None
    workdir: Annotated[str | None, SameKey(Training, "workdir")] = None
    image: Annotated[str | None, SameKey(Training, "image")] = None
    environment: Annotated[
        PythonEnvironment | None,
        SameKey(Training, "environment"),
        "Packages and Python of its replicas, made before the first starts; a text alone is `file`.",
    ] = None
    env: Annotated[Mapping[str, str], SameKey(Training, "env")] = field(default_factory=dict)
    secrets: Annotated[tuple[SecretReference, ...], SameKey(Training, "secrets")] = ()
    data: Annotated[
        Mapping[str, DataSource],
        SameKey(Training, "data", {"kind": without_claims, "example": "{weights: hf://owner/model}"}),
        "Data that its replicas read, such as weights with `mode: copy`, which they share.",
    ] = field(default_factory=dict)
    resources: Annotated[
        Resources,
        SameKey(Training, "resources", {"kind": replica_resources}),
        "What each replica gets.",
    ] = field(default_factory=Resources)
    capacity: Annotated[
        EndpointCapacity,
        Key("capacity", example="{spot: true}", also="capacity_type provisioning"),
        "Kinds of capacity to use.",
    ] = field(default_factory=EndpointCapacity)
    logs: Annotated[Logs, SameKey(Training, "logs")] = field(default_factory=Logs)
    priority: Annotated[int, SameKey(Training, "priority")] = 0
    grace_s: Annotated[
        float,
        SameKey(Training, "grace_s"),
        "Time between SIGTERM and SIGKILL, in which a replica finishes its requests.",
    ] = 30.0
    snapshot: Annotated[bool, SameKey(Training, "snapshot")] = True
    engine: Annotated[
        EndpointEngine | None,
        Key("engine", example="kserve", also="controller operator backend runner managed_by platform"),
        "A controller of the cluster that serves it instead of replicas of Fairlead; see engines.md.",
    ] = None
    kubernetes: Annotated[Overlay, SameKey(Training, "kubernetes")] = field(default_factory=Overlay)
    code: str = ""

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def most(self) -> int:
        """Return the maximum number of replicas, without the surge of a rollout."""
        return self.replicas if self.most_replicas is None else self.most_replicas

    @property
    def away_s(self) -> float:
        """Return the seconds for which sites that do not answer are waited for when it stops."""
        return self.waves.deadline_s

    @property
    def in_flight_target(self) -> float:
        """Return the target number of requests in flight per replica, including waiting ones."""
        if self.scale.queue is None or self.max_concurrency is None:
            return self.scale.concurrency
        return float(self.max_concurrency + self.scale.queue)

    @property
    def teams_with_access(self) -> tuple[str, ...]:
        """Return the teams whose keys give access; empty for open access."""
        return () if self.access is None else self.access.teams or (self.team,)

    @property
    def unused(self) -> tuple[str, ...]:
        """Return the attributes that have no effect with the others, and have their defaults."""
        return (
            *(("batching",) if self.predictor is None else ()),
            *(("scale",) if self.most_replicas is None else ()),
        )

    @property
    def probe_path(self) -> str:
        """Return ``probe`` with its default."""
        if self.probe is not None:
            return self.probe
        return "/" if self.predictor is None else PREDICTOR_PROBE

    def tiers(self, replicas: int) -> Mapping[Tier | None, int]:
        """Divide a number of replicas among tiers."""
        if self.capacity.overflow is None:
            return {None: replicas}
        base = min(self.capacity.base or 0, replicas)
        return {Tier.BASE: base, Tier.OVERFLOW: replicas - base}

    def replica(self, revision: str = "r1", tier: Tier | None = None) -> Replica:
        """Return the spec of a replica of a revision, which the submitter names."""
        batching = {
            "max_batch_size": self.batching.max_batch_size,
            "max_latency_ms": self.batching.max_latency_s * 1000,
        }
        return Replica(
            service=self.name, revision=revision, team=self.team, labels=self.labels,
            run=self._command, setup=self.setup, workdir=self.workdir,
            image=self.image, environment=self.environment, env=self.env, secrets=self.secrets, data=self.data,
            resources=self.resources, capacity=self.capacity.of_replica(tier), logs=self.logs,
            priority=self.priority, grace_s=self.grace_s,
            snapshot=self.snapshot, ranks_per_node=1, kubernetes=self.kubernetes, retry=Retry(max_backoff_s=60.0),
            model_path=self.model or "", predictor=self.predictor or "", probe=self.probe_path,
            batching=json.dumps(batching), max_queue=self.max_queue,
            guarded=self.access is not None, signed_by=self.signed_by, code=self.code,
        )  # fmt: skip

    @property
    def _command(self) -> str:
        """Return the command of a replica; with ``signed_by`` that of ``run`` gets the path of the checked files."""
        if self.run is None:
            return PREDICTOR_SERVER
        return self.run if self.signed_by is None else f"{PUBLISHED_MODEL}{self.run}"

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if self.resources.is_auto:
            yield "resources", "`auto` is for runs that end; give replicas an amount, such as `memory: 4Gi`"
        yield from env_problems(self.env)
        yield from secrets_problems(self.secrets, self.env)
        yield from labels_problems(self.labels)
        yield from (("env", f"{quote(name)} is set for each replica; remove it") for name in SET if name in self.env)
        if self.run is None and self.predictor is None:
            yield "run", "missing; give the command of a server, or `predictor`, such as `predict:Classifier`"
        if self.run is not None and self.predictor is not None:
            yield "predictor", "it is either a command (`run`) or a predictor, not both; remove one"
        if self.predictor is None and self.batching != Batching():
            yield "batching", "it is for a `predictor`; the server that `run` starts has settings of its own"
        if self.most_replicas is not None and self.most_replicas <= self.replicas:
            yield "most_replicas", f"{self.most_replicas} is no more than the fewest, {self.replicas}; give more"
        if self.replicas == 0 and self.most_replicas is None:
            yield "replicas", "0 would never serve; give `0..1` for none without requests, or suspend the endpoint"
        if self.most_replicas is None and self.scale != Scale():
            yield "scale", f"the number of replicas is always {self.replicas}; give a span, such as `replicas: 0..8`"
        if self.scale.queue is not None and self.max_concurrency is None:
            yield "scale", "`queue` counts requests that wait, and without `max_concurrency` none does; give that too"
        for name, window in self.scale.schedule.items():
            if self.most_replicas is not None and not self.replicas < window.replicas <= self.most_replicas:
                yield (
                    "scale",
                    f"`schedule.{name}` has {window.replicas} replicas, and there are {self.replicas} to "
                    f"{self.most_replicas}; give {self.replicas + 1} to {self.most_replicas}",
                )
        if self.scale.by is not None and self.engine is not None:
            yield "scale", f"`engine: {self.engine}` scales by itself; leave `by` out"
        if self.scale.by is Autoscaler.HPA and self.replicas == 0:
            yield "replicas", "a HorizontalPodAutoscaler keeps one at least; give `1..N`, or `scale: {by: keda, ...}`"
        if self.canary is not None and self.rollout.max_surge == 0 and self.replicas < 2:
            yield (
                "canary",
                "it has no room beside the old revision; give `rollout: {max_surge: 1}` or 2 replicas",
            )
        if self.canary is not None and self.canary.shadow:
            yield from self._shadow_problems()
        for key, name, latency_s in (
            ("scale", "latency", self.scale.latency_s),
            ("scale", "time_to_first_token", self.scale.first_token_s),
            ("canary", "latency", None if self.canary is None else self.canary.latency_s),
        ):
            if latency_s is not None and latency_s > self.timeout_s:
                yield (
                    key,
                    f"`{name}` is {format_duration(latency_s)}, and by `timeout` every request is over after "
                    f"{format_duration(self.timeout_s)}; give less, such as `{name}: 250ms`, or a longer `timeout`",
                )
        yield from endpoint_engine_problems(self)
        yield from self._site_problems()
        if self.capacity.base is not None and self.capacity.base > self.most:
            yield "capacity", f"`base` is {self.capacity.base}, and there are at most {self.most} replicas; give less"

    def _site_problems(self) -> Iterable[tuple[str, str]]:
        yield from sites_problems(self.sites, self.waves)
        if self.sites and self.engine is not None:
            yield "engine", "each of `sites` serves it by replicas; leave it out"
        if self.signed_by is not None and self.model is None:
            yield "signed_by", "there is no `model` that could be signed; give the URL of a published one"
        if self.signed_by is not None and self.engine is not None:
            yield "signed_by", f"{TITLES[self.engine]} loads the model itself and checks nothing; leave `engine` out"
        if self.sites and self.model is not None and self.signed_by is None:
            yield (
                "model",
                "sites load signed models only; publish it by `fairlead model publish`, give the URL, and the public "
                "key as `signed_by`",
            )

    def _shadow_problems(self) -> Iterable[tuple[str, str]]:
        if not self.idempotent:
            yield (
                "canary",
                "`shadow` has requests answered twice, once by each revision; say that they may be with "
                "`idempotent: true`, or leave `shadow` out",
            )
        if self.rollout.max_surge == 0:
            yield (
                "canary",
                "with `shadow` the old revision answers all requests and keeps its replicas; give "
                "`rollout: {max_surge: 1}` or more for those of the new one",
            )


def scaled_as(spec: WorkloadSpec, before: WorkloadSpec) -> WorkloadSpec:
    """Return an endpoint with the number of replicas that its cluster's autoscaler set; any other spec unchanged."""
    if not isinstance(spec, Serving) or not isinstance(before, Serving):
        return spec
    if spec.scale.by is None or spec.scale.replicas is not None or before.scale.by is None:
        return spec
    return replace(spec, scale=replace(spec.scale, replicas=before.scale.replicas))


def map_runs(spec: Serving, of: Callable[[Training], Training]) -> Serving:
    """Return the endpoint with a function applied to its replica."""
    before = replace(spec.replica(), name=spec.name)
    mapped = of(before)
    if mapped == before:
        return spec
    assert isinstance(mapped, Replica), "what is made of a replica is one"
    model = mapped.model_path or None
    if mapped.run == before.run:
        run = spec.run
    else:
        run = mapped.run
    return replace(
        spec, model=model, run=run, setup=mapped.setup, workdir=mapped.workdir, image=mapped.image,
        environment=mapped.environment, env=mapped.env, data=mapped.data, resources=mapped.resources,
        logs=mapped.logs,
        capacity=replace(spec.capacity, spot=mapped.capacity.spot, max_price=mapped.capacity.max_price),
    )  # fmt: skip
