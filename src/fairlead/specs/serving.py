"""The spec of an endpoint: replicas of one server behind one address, in a fixed or a load-dependent number."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from urllib.parse import urlsplit

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, PATH, Constraints, Limit, Text, broken, enforce, quote
from fairlead.specs.cron import parse_cron
from fairlead.specs.endpoint_engines import EndpointEngine, endpoint_engine_problems
from fairlead.specs.overlay import Overlay
from fairlead.specs.pool import LABEL_NAME, LABEL_VALUE
from fairlead.specs.quantities import format_duration
from fairlead.specs.resources import Resources
from fairlead.specs.training import CAPACITY_RULES as TRAINING_CAPACITY_RULES
from fairlead.specs.training import (
    DAY_S,
    DEFAULT_TEAM,
    TRAINING_RULES,
    Capacity,
    Logs,
    Retry,
    Tier,
    Training,
    env_problems,
    labels_problems,
)
from fairlead.specs.workload import WorkloadSpec

# Leaves room for the revision and the number of a replica in names.
NAME_MOST = 35
MAX_REPLICAS = 1_000
# Command of a replica with a predictor, and its readiness path.
PREDICTOR_SERVER = "python -m fairlead.runtime.serving"
PREDICTOR_PROBE = "/v2/health/ready"
# Variables set in a replica in addition to those of every run.
SET = (
    "HOST", "PORT", "FAIRLEAD_MODEL", "FAIRLEAD_PREDICTOR", "FAIRLEAD_SERVICE", "FAIRLEAD_REVISION", "FAIRLEAD_REPLICA",
    "FAIRLEAD_BATCHING", "FAIRLEAD_GRACE", "FAIRLEAD_MAX_QUEUE",
)  # fmt: skip

SERVING_RULES: Constraints = {
    "name": replace(NAME, max_length=NAME_MOST),
    "team": NAME,
    "model": PATH,
    "run": TRAINING_RULES["run"],
    "predictor": Text(
        max_length=500,
        pattern=r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*",
        what="a predictor; give its module and its class, such as `predict:Classifier`",
    ),
    "probe": Text(max_length=1_000, pattern=r"/[!-~]*", what="a path; it begins with `/` and has no spaces"),
    "replicas": Limit(low=0, high=MAX_REPLICAS, whole=True),
    "most_replicas": Limit(low=1, high=MAX_REPLICAS, whole=True),
    "setup": TRAINING_RULES["setup"],
    "workdir": TRAINING_RULES["workdir"],
    "image": TRAINING_RULES["image"],
    "priority": TRAINING_RULES["priority"],
    "grace_s": TRAINING_RULES["grace_s"],
    "timeout_s": Limit(low=0.01, high=DAY_S),
    "ready_within_s": Limit(low=1, high=DAY_S),
    "max_concurrency": Limit(low=1, high=100_000, whole=True),
    "max_queue": Limit(low=0, high=1_000_000, whole=True),
}
SCALE_RULES: Constraints = {
    "cpu": Limit(low=0.01, high=10),
    "replicas": Limit(low=0, high=MAX_REPLICAS, whole=True),
    "concurrency": Limit(low=0.01, high=100_000),
    "queue": Limit(low=0, high=100_000, whole=True),
    "latency_s": Limit(low=0.001, high=3_600),
    "first_token_s": Limit(low=0.001, high=3_600),
    "per_token_s": Limit(low=0.001, high=60),
    # The gateway keeps the last 120 seconds.
    "window_s": Limit(low=1, high=110),
    "idle_s": Limit(low=1, high=DAY_S),
}
CAPACITY_RULES: Constraints = {
    "max_price": TRAINING_CAPACITY_RULES["max_price"],
    "base": Limit(low=0, high=MAX_REPLICAS, whole=True),
}
PROMETHEUS_RULES: Constraints = {
    "url": Text(max_length=1_000, pattern=r"https?://[!-~]+", what="the address of a Prometheus, http:// or https://"),
    "query": Text(max_length=4_000, lines=True, what="a query"),
    "target": Limit(low=1e-9, high=1e15),
}
EXTERNAL_METRIC_RULES: Constraints = {
    "name": Text(
        max_length=253,
        pattern=r"[A-Za-z_:][-A-Za-z0-9_:.|]*",
        what="the name of a metric, such as `DCGM_FI_DEV_GPU_UTIL`",
    ),
    "target": Limit(low=1e-3, high=1e15),
}
SELECTORS_MOST = 20
WINDOW_RULES: Constraints = {
    "cron": Text(max_length=200, what="a time"),
    "duration_s": Limit(low=60, high=7 * DAY_S),
    "replicas": Limit(low=1, high=MAX_REPLICAS, whole=True),
}
WINDOW_NAME = NAME
WINDOWS_MOST = 20
BATCHING_RULES: Constraints = {
    "max_batch_size": Limit(low=1, high=65_536, whole=True),
    "max_latency_s": Limit(low=0.0001, high=60),
}
ROLLOUT_RULES: Constraints = {"max_surge": Limit(low=0, high=MAX_REPLICAS, whole=True)}
MARGIN = Limit(low=0.0001, high=0.5)
CANARY_RULES: Constraints = {
    "errors": MARGIN,
    "latency_s": Limit(low=0.001, high=DAY_S),
    "slow": MARGIN,
    "confidence": Limit(low=0.5, high=0.9999),
    "within_s": Limit(low=1, high=30 * DAY_S),
}
CANARY_METRIC_RULES: Constraints = {
    "header": Text(max_length=100, pattern=r"[A-Za-z][-A-Za-z0-9]*", what="the name of a header, such as `X-Score`"),
    "above": Limit(low=-1e12, high=1e12),
    "below": Limit(low=-1e12, high=1e12),
    "margin": MARGIN,
}
ACCESS_RULES: Constraints = {
    "requests_per_minute": Limit(low=1, high=10_000_000, whole=True),
    "tokens_per_minute": Limit(low=1, high=1_000_000_000, whole=True),
}
TEAMS_MOST = 100
# A step has at least one request in a thousand, and at most half of all, since the old revision gets an equal share.
LEAST_STEP, MOST_STEP, STEPS_MOST = 0.001, 0.5, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A recurring time with a minimum number of replicas.

    Attributes:
        cron: Start in UTC: minute, hour, day of the month, month and day of the week.
        duration_s: Duration in seconds.
    """

    cron: str
    duration_s: float
    replicas: int

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, WINDOW_RULES)
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
    """A Prometheus query that determines the number of replicas.

    Attributes:
        url: URL of the server, without ``/api/v1/query``.
        query: PromQL query with a single number as result.
        target: Target value per replica.
        aggregation: Whether the result is a sum or a mean.
    """

    url: str
    query: str
    target: float
    aggregation: Aggregation = Aggregation.SUM

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, PROMETHEUS_RULES)
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
    """An external metric from an adapter of the cluster, such as Prometheus', for its HorizontalPodAutoscaler.

    Attributes:
        name: Name of the metric in the adapter.
        target: Target value per replica.
        labels: Labels that select series.
        aggregation: Whether the value is a sum or a mean.
    """

    name: str
    target: float
    labels: Mapping[str, str] = field(default_factory=dict)
    aggregation: Aggregation = Aggregation.SUM

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, EXTERNAL_METRIC_RULES)
        if len(self.labels) > SELECTORS_MOST:
            yield "labels", f"{len(self.labels)} labels; give at most {SELECTORS_MOST}"
        for name, value in self.labels.items():
            problem = LABEL_NAME.problem(name) or LABEL_VALUE.problem(value)
            if problem is not None:
                yield "labels", problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The scaling rule of an endpoint with a variable number of replicas.

    Attributes:
        by: Autoscaler of the cluster that sets the number; None for Fairlead.
        cpu: Target CPU utilization as a share of the request; None for no CPU target.
        external_metric: Metric from an adapter; None for none.
        replicas: Number set by the cluster's autoscaler, its only writer; None until it is set.
        concurrency: Target number of requests in flight per replica.
        latency_s: Target latency of requests in seconds, which determines the number; None for ``concurrency``.
        first_token_s: Target seconds until the first token of an answer; None for no target.
        per_token_s: Target mean seconds per further token; None for no target.
        shed: Refuse requests at once that would exceed ``latency_s``.
        queue: Target number of waiting requests per replica, besides those in progress; None for ``concurrency``.
        prometheus: Prometheus query that determines the number; None for ``concurrency``.
        schedule: Times with a minimum number of replicas, by name.
        window_s: Seconds over which the maximum of the needed replicas is kept.
        idle_s: Seconds without requests before the last replica is removed, if the minimum is 0.
    """

    by: Autoscaler | None = None
    cpu: float | None = None
    external_metric: ExternalMetric | None = None
    replicas: int | None = None
    concurrency: float = 4.0
    latency_s: float | None = None
    first_token_s: float | None = None
    per_token_s: float | None = None
    queue: int | None = None
    prometheus: PrometheusQuery | None = None
    schedule: Mapping[str, Window] = field(default_factory=dict)
    shed: bool = True
    window_s: float = 60.0
    idle_s: float = 300.0

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, SCALE_RULES)
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
            for key, given in (("cpu", self.cpu), ("external_metric", self.external_metric)):
                if given is not None:
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
        for key, given in (("cpu", self.cpu), ("external_metric", self.external_metric)):
            if given is not None:
                yield key, "KEDA scales by `prometheus` here; leave it out, or give `by: hpa`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """The limits of request batches for a predictor.

    Attributes:
        max_batch_size: Maximum rows of a batch.
        max_latency_s: Seconds from arrival within which a batched request must finish, which limits its wait.
    """

    max_batch_size: int = 32
    max_latency_s: float = 0.05

    def __post_init__(self) -> None:
        enforce(broken(self, BATCHING_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The rollout from one revision to the next.

    Attributes:
        max_surge: Maximum replicas above the desired number during a rollout; with 0 an old one is removed first.
    """

    max_surge: int = 1

    def __post_init__(self) -> None:
        enforce(broken(self, ROLLOUT_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryMetric:
    """A number in a response header, and its bad range. Exactly one of ``above`` and ``below`` is given.

    Attributes:
        header: Name of the header. A response without it, or without a number in it, does not count.
        above: Larger numbers are bad.
        below: Smaller numbers are bad.
        margin: Tolerated excess of bad responses, as a share of requests.
    """

    header: str
    above: float | None = None
    below: float | None = None
    margin: float = 0.05

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, CANARY_METRIC_RULES)
        if (self.above is None) == (self.below is None):
            given = "neither" if self.above is None else "both"
            yield (
                "header",
                f"of `above` and `below`, which say when its number is bad, there are {given}; give one, such as "
                "`below: 0.5`",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The trial of a new revision on a slice of the requests, against an equal slice of the old one.

    Attributes:
        steps: Increasing shares of the requests; the trial advances as evidence grows.
        errors: Tolerated excess of failed requests, as a share of requests.
        latency_s: Seconds beyond which a request is slow; None to ignore latency.
        slow: Tolerated excess of slow requests, as a share of requests.
        metric: Additional criterion; None for none.
        confidence: 1 minus the rate of each of the two errors of the test.
        within_s: Seconds after which the old revision stays if the test is inconclusive.
        shadow: The new revision gets copies of these requests, and its responses are discarded.
    """

    steps: tuple[float, ...] = (0.05, 0.25, 0.5)
    errors: float = 0.01
    latency_s: float | None = None
    slow: float = 0.05
    metric: CanaryMetric | None = None
    confidence: float = 0.95
    within_s: float = 3_600.0
    shadow: bool = False

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def margins(self) -> Mapping[str, float]:
        """Return the tolerated excess of bad requests of the new revision over the old one, by criterion."""
        found = {"failed": self.errors}
        if self.latency_s is not None:
            found["slow"] = self.slow
        if self.metric is not None:
            found["metric"] = self.metric.margin
        return found

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, CANARY_RULES)
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
        base: Number of replicas on on-demand nodes; None for 0 with an overflow, and without meaning otherwise.
        overflow: Capacity of replicas above the base while it is available, with on-demand nodes as fallback; None
            if all replicas are alike.
    """

    spot: bool = False
    max_price: float | None = None
    base: int | None = None
    overflow: OverflowCapacity | None = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    def of_replica(self, tier: Tier | None) -> Capacity:
        """Return the capacity of a replica of a tier."""
        return Capacity(spot=self.spot or tier is Tier.OVERFLOW, max_price=self.max_price, tier=tier)

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, CAPACITY_RULES)
        if self.base is not None and self.overflow is None:
            yield (
                "base",
                "it needs `overflow`, the capacity beyond `base`; give `overflow: spot` too, or leave `base` out",
            )
        if self.spot and self.overflow is not None:
            yield "spot", "`overflow` already says which replicas use spot; leave `spot` out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The teams with access to an endpoint, by keys that a command creates and no spec contains.

    Attributes:
        teams: Teams whose keys give access; empty for its own team.
        requests_per_minute: Maximum requests that each team starts in any minute; None for no limit.
        tokens_per_minute: Tokens per minute of each team above which no further request starts; None for no limit.
    """

    teams: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, ACCESS_RULES)
        if len(self.teams) > TEAMS_MOST:
            yield "teams", f"there are {len(self.teams)}; give at most {TEAMS_MOST}"
        for number, team in enumerate(self.teams):
            problem = NAME.problem(team)
            if problem is not None:
                yield "teams", problem
            elif team in self.teams[:number]:
                yield "teams", f"{quote(team)} is listed twice; remove one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica(Training):
    """One server of an endpoint: a gang whose program is not meant to end.

    Attributes:
        service: Name of the endpoint.
        revision: Name of the revision of the endpoint.
        model_path: Path of the model; empty for none.
        predictor: ``module:Class`` if the program is Fairlead's server; empty for another program.
        probe: Path that responds with a status below 400 once it can serve.
        batching: JSON for Fairlead's server.
        max_queue: Maximum waiting requests in Fairlead's server.
        guarded: Only gateways, which check access, may send requests.
        code: Stored snapshot of its directory that it runs; empty for none.
    """

    name: str = "replica"
    service: str = "service"
    revision: str = "r1"
    model_path: str = ""
    predictor: str = ""
    probe: str = "/"
    batching: str = "{}"
    max_queue: int = 0
    guarded: bool = False
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
        model: Path, ``NAME@production``, or ``run://NAME@best``; None if the server needs none.
        run: Command of the server, which listens on ``$PORT``; None with a predictor.
        predictor: ``module:Class`` that Fairlead's server loads; None with a command.
        probe: Path that responds once a replica is ready; None for the default.
        replicas: Number of replicas; the minimum if ``most_replicas`` is larger.
        most_replicas: Maximum number of replicas; None for a fixed number.
        scale: Scaling rule for a variable number; its default otherwise.
        batching: Batching of a predictor; its default with a command.
        canary: Trial of a new revision before it takes over; None for none.
        access: Teams with access; None for open access.
        timeout_s: Timeout of a request in seconds.
        ready_within_s: Seconds within which a replica of a new revision must be ready.
        max_concurrency: Maximum concurrent requests of a replica; None for no limit.
        max_queue: Maximum requests that wait for a replica; more are refused.
        idempotent: A request may be resent even if a replica has started to process it.
        routing: How the replica of a request is chosen.
        engine: Controller of a cluster that serves it; None for Fairlead's replicas.
        code: Snapshot of its directory that its replicas run, on a cluster that stores any; not written by users.
    """

    name: str
    team: str = DEFAULT_TEAM
    labels: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    run: str | None = None
    predictor: str | None = None
    probe: str | None = None
    replicas: int = 1
    most_replicas: int | None = None
    scale: Scale = field(default_factory=Scale)
    batching: Batching = field(default_factory=Batching)
    rollout: Rollout = field(default_factory=Rollout)
    canary: Canary | None = None
    access: Access | None = None
    timeout_s: float = 60.0
    ready_within_s: float = 600.0
    max_concurrency: int | None = None
    max_queue: int = 100
    idempotent: bool = False
    routing: Routing = Routing.LEAST_OUTSTANDING
    setup: str | None = None
    workdir: str | None = None
    image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    capacity: EndpointCapacity = field(default_factory=EndpointCapacity)
    logs: Logs = field(default_factory=Logs)
    priority: int = 0
    grace_s: float = 30.0
    snapshot: bool = True
    engine: EndpointEngine | None = None
    kubernetes: Overlay = field(default_factory=Overlay)
    code: str = ""

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def most(self) -> int:
        """Return the maximum number of replicas, without the surge of a rollout."""
        return self.replicas if self.most_replicas is None else self.most_replicas

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
            run=PREDICTOR_SERVER if self.run is None else self.run, setup=self.setup, workdir=self.workdir,
            image=self.image, env=self.env, resources=self.resources,
            capacity=self.capacity.of_replica(tier), logs=self.logs, priority=self.priority, grace_s=self.grace_s,
            snapshot=self.snapshot, ranks_per_node=1, kubernetes=self.kubernetes, retry=Retry(max_backoff_s=60.0),
            model_path=self.model or "", predictor=self.predictor or "", probe=self.probe_path,
            batching=json.dumps(batching), max_queue=self.max_queue,
            guarded=self.access is not None, code=self.code,
        )  # fmt: skip

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, SERVING_RULES)
        if self.resources.is_auto:
            yield "resources", "`auto` is for runs that end; give replicas an amount, such as `memory: 4Gi`"
        yield from env_problems(self.env)
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
        if self.capacity.base is not None and self.capacity.base > self.most:
            yield "capacity", f"`base` is {self.capacity.base}, and there are at most {self.most} replicas; give less"

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
        spec, model=model, run=run, setup=mapped.setup, workdir=mapped.workdir, image=mapped.image, env=mapped.env,
        resources=mapped.resources, logs=mapped.logs,
        capacity=replace(spec.capacity, spot=mapped.capacity.spot, max_price=mapped.capacity.max_price),
    )  # fmt: skip
