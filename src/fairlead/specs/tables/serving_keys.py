"""Every key of a Serving."""

from dataclasses import replace

from fairlead.specs import serving
from fairlead.specs.constraints import NAME
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.pool import LABEL_NAME, LABEL_VALUE
from fairlead.specs.tables.field_types import (
    CPU,
    DURATION,
    FACTOR,
    FLAG,
    SHARE,
    SIZE,
    SPAN,
    TEXT,
    WHOLE,
    Key,
    ListField,
    MapField,
    Section,
    SectionMap,
    name_key,
    word,
)
from fairlead.specs.tables.training_keys import CAPACITY as TRAINING_CAPACITY
from fairlead.specs.tables.training_keys import RESOURCES as TRAINING_RESOURCES
from fairlead.specs.tables.training_keys import TRAINING

WINDOW = Section(
    type=serving.Window,
    rules=serving.WINDOW_RULES,
    keys=(
        Key(
            name="cron",
            kind=TEXT,
            doc="When it begins, in UTC: minute, hour, day of the month, month, day of the week.",
            attributes=("cron",),
            example="'0 8 * * mon-fri'",
            required=True,
            also=("start", "at", "schedule"),
        ),
        Key(
            name="duration",
            kind=DURATION,
            doc="How long it lasts.",
            attributes=("duration_s",),
            example="10h",
            required=True,
            also=("for", "length", "end"),
        ),
        Key(
            name="replicas",
            kind=WHOLE,
            doc="Minimum number of replicas in that time.",
            attributes=("replicas",),
            example="4",
            required=True,
            also=("min_replicas", "desired_replicas", "count"),
        ),
    ),
)

PROMETHEUS = Section(
    type=serving.PrometheusQuery,
    rules=serving.PROMETHEUS_RULES,
    keys=(
        Key(
            name="url",
            kind=TEXT,
            doc="URL of a Prometheus, or of a server with its `/api/v1/query`.",
            attributes=("url",),
            example="'http://prometheus.monitoring:9090'",
            required=True,
            also=("server", "server_address", "serverAddress", "address", "host", "endpoint"),
        ),
        Key(
            name="query",
            kind=TEXT,
            doc="PromQL query with a single number as its result.",
            attributes=("query",),
            example="sum(jobs_waiting)",
            required=True,
            also=("promql", "expr", "expression", "metric"),
        ),
        Key(
            name="target",
            kind=FACTOR,
            doc="Target value for each replica.",
            attributes=("target",),
            example="50",
            required=True,
            also=("threshold", "target_value", "targetValue", "value", "averageValue"),
        ),
        Key(
            name="aggregation",
            kind=word(serving.Aggregation),
            doc="Whether the value is a total of all replicas, such as a queue, or their mean, such as utilisation.",
            attributes=("aggregation",),
            example="mean",
            also=("metric_type", "metricType", "type", "aggregate"),
        ),
    ),
)

EXTERNAL_METRIC = Section(
    type=serving.ExternalMetric,
    rules=serving.EXTERNAL_METRIC_RULES,
    keys=(
        Key(
            name="name",
            kind=TEXT,
            doc="Name of the metric in `external.metrics.k8s.io`.",
            attributes=("name",),
            example="DCGM_FI_DEV_GPU_UTIL",
            required=True,
            also=("metric", "metric_name", "metricName"),
        ),
        Key(
            name="target",
            kind=FACTOR,
            doc="Target value for each replica.",
            attributes=("target",),
            example="70",
            required=True,
            also=("threshold", "target_value", "value", "averageValue"),
        ),
        Key(
            name="labels",
            kind=MapField(names=LABEL_NAME, values=LABEL_VALUE, most=serving.SELECTORS_MOST),
            doc="Only series with these labels.",
            attributes=("labels",),
            example="{service: chat}",
            also=("selector", "match_labels", "matchLabels"),
        ),
        Key(
            name="aggregation",
            kind=word(serving.Aggregation),
            doc="Whether the value is a total of all replicas, such as a queue, or their mean, such as utilisation.",
            attributes=("aggregation",),
            example="mean",
            also=("metric_type", "metricType", "type", "aggregate"),
        ),
    ),
)

SCALE = Section(
    type=serving.Scale,
    rules=serving.SCALE_RULES,
    shorthand="concurrency",
    keys=(
        Key(
            name="by",
            kind=word(serving.Autoscaler),
            doc="Autoscaler of the Kubernetes cluster that sets the number; Fairlead when left out.",
            attributes=("by",),
            example="hpa",
            also=("autoscaler", "class", "engine", "scaler", "controller"),
        ),
        Key(
            name="cpu",
            kind=SHARE,
            doc="Target CPU utilisation of replicas, with `by: hpa`.",
            attributes=("cpu",),
            example="70%",
            also=("cpu_utilization", "target_cpu", "targetCPUUtilizationPercentage", "utilization"),
        ),
        Key(
            name="external_metric",
            kind=EXTERNAL_METRIC,
            doc="Metric of a metrics adapter of the cluster, with `by: hpa`.",
            attributes=("external_metric",),
            example="{name: DCGM_FI_DEV_GPU_UTIL, target: 70, aggregation: mean}",
            also=("external", "adapter", "object_metric"),
        ),
        Key(
            name="replicas",
            kind=WHOLE,
            doc="Current number of replicas of the autoscaler `by`, which sets it.",
            attributes=("replicas",),
            example="3",
            also=("current", "desired"),
        ),
        Key(
            name="concurrency",
            kind=FACTOR,
            doc="Target of requests in flight for each replica; with `latency`, how many it serves without delay.",
            attributes=("concurrency",),
            example="8",
            also=("target", "target_concurrency", "container_concurrency", "target_ongoing_requests", "requests"),
        ),
        Key(
            name="latency",
            kind=DURATION,
            doc="Target time of answers: sets as many replicas as the forecast demand needs.",
            attributes=("latency_s",),
            example="500ms",
            also=("slo", "latency_slo", "target_latency", "response_time", "p99"),
        ),
        Key(
            name="time_to_first_token",
            kind=DURATION,
            doc="Target time until a text server's answers begin; a simulation gives the number of replicas.",
            attributes=("first_token_s",),
            example="1s",
            also=("ttft", "first_token", "first_token_latency", "time_to_first_token_slo", "target_ttft"),
        ),
        Key(
            name="time_per_token",
            kind=DURATION,
            doc="Target mean time of each further token of an answer; with `time_to_first_token` or alone.",
            attributes=("per_token_s",),
            example="50ms",
            also=("tpot", "time_per_output_token", "inter_token_latency", "itl", "token_latency"),
        ),
        Key(
            name="shed",
            kind=FLAG,
            doc="Refuse requests at once that would take longer than `latency`.",
            attributes=("shed",),
            example="false",
            also=("load_shedding", "gate", "admission_control", "reject_late"),
        ),
        Key(
            name="queue",
            kind=WHOLE,
            doc="Requests that may wait for each replica, beside its `max_concurrency`; replaces `concurrency`.",
            attributes=("queue",),
            example="5",
            also=("queue_length", "queue_size", "backlog", "waiting", "pending"),
        ),
        Key(
            name="prometheus",
            kind=PROMETHEUS,
            doc="Prometheus query that sets the number of replicas; replaces `concurrency`.",
            attributes=("prometheus",),
            example="{url: 'http://prometheus:9090', query: sum(jobs_waiting), target: 20}",
            also=("query", "metric", "metrics", "custom_metric", "gpu_utilization", "trigger", "triggers"),
        ),
        Key(
            name="schedule",
            kind=SectionMap(item=WINDOW, names=serving.WINDOW_NAME, most=serving.WINDOWS_MOST),
            doc="Times with a minimum number of replicas, by names of your own.",
            attributes=("schedule",),
            example="{office: {cron: '0 8 * * mon-fri', duration: 10h, replicas: 4}}",
            also=("cron", "scheduled", "calendar", "windows"),
        ),
        Key(
            name="window",
            kind=DURATION,
            doc="A replica is removed only if it was not needed during this time.",
            attributes=("window_s",),
            example="90s",
            also=("stable_window", "cooldown", "scale_down_delay", "downscale_delay", "stabilization_window"),
        ),
        Key(
            name="idle",
            kind=DURATION,
            doc="Time without requests after which the last replica is removed, with `replicas: 0..N`.",
            attributes=("idle_s",),
            example="10m",
            also=("idle_timeout", "scale_to_zero_after", "scaledown_window", "cooldown_period", "retention"),
        ),
    ),
)

BATCHING = Section(
    type=serving.Batching,
    rules=serving.BATCHING_RULES,
    shorthand="max_batch_size",
    keys=(
        Key(
            name="max_batch_size",
            kind=WHOLE,
            doc="Maximum number of rows of a batch.",
            attributes=("max_batch_size",),
            example="64",
            also=("batch_size", "max_size", "size", "preferred_batch_size"),
        ),
        Key(
            name="max_latency",
            kind=DURATION,
            doc="Time limit of a request, which limits how long it waits for a batch.",
            attributes=("max_latency_s",),
            example="100ms",
            also=("max_wait", "timeout", "batch_wait_timeout", "max_queue_delay", "wait"),
        ),
    ),
)

ROLLOUT = Section(
    type=serving.Rollout,
    rules=serving.ROLLOUT_RULES,
    shorthand="max_surge",
    keys=(
        Key(
            name="max_surge",
            kind=WHOLE,
            doc="Additional replicas during a rollout; with 0 an old replica is removed first.",
            attributes=("max_surge",),
            example="0",
            also=("surge", "extra", "maxSurge", "max_extra"),
        ),
    ),
)

CANARY_METRIC = Section(
    type=serving.CanaryMetric,
    rules=serving.CANARY_METRIC_RULES,
    keys=(
        Key(
            name="header",
            kind=TEXT,
            doc="Header of the answers that has the number.",
            attributes=("header",),
            example="X-Score",
            required=True,
            also=("name", "field", "key"),
        ),
        Key(
            name="above",
            kind=FACTOR,
            doc="An answer with a greater number is bad.",
            attributes=("above",),
            example="0.8",
            also=("more_than", "max", "upper", "greater_than"),
        ),
        Key(
            name="below",
            kind=FACTOR,
            doc="An answer with a smaller number is bad.",
            attributes=("below",),
            example="0.5",
            also=("less_than", "min", "lower", "smaller_than"),
        ),
        Key(
            name="margin",
            kind=SHARE,
            doc="How much more often than the old revision's the answers may be bad, as a share of requests.",
            attributes=("margin",),
            example="2%",
            also=("tolerance", "threshold", "max_increase"),
        ),
    ),
)

CANARY = Section(
    type=serving.Canary,
    rules=serving.CANARY_RULES,
    keys=(
        Key(
            name="steps",
            kind=ListField(item=SHARE, most=serving.STEPS_MOST),
            doc="Shares of the requests that the new revision gets in turn, compared with as many of the old one's.",
            attributes=("steps",),
            example="[5%, 25%, 50%]",
            also=("weights", "traffic", "step_weight", "percent", "canary_traffic_percent"),
        ),
        Key(
            name="errors",
            kind=SHARE,
            doc="How much more often than the old revision the new one may fail, as a share of requests.",
            attributes=("errors",),
            example="1%",
            also=("error_rate", "max_errors", "failures", "success_rate"),
        ),
        Key(
            name="latency",
            kind=DURATION,
            doc="Requests that take longer are slow; none is when left out.",
            attributes=("latency_s",),
            example="250ms",
            also=("latency_target", "slo", "target", "threshold", "p99"),
        ),
        Key(
            name="slow",
            kind=SHARE,
            doc="How much more often than the old revision the new one may be slow, as a share of requests.",
            attributes=("slow",),
            example="5%",
            also=("max_slow", "slower", "latency_margin"),
        ),
        Key(
            name="metric",
            kind=CANARY_METRIC,
            doc="Your own number in the answers, by which they are good or bad.",
            attributes=("metric",),
            example="{header: X-Score, below: 0.5}",
            also=("metrics", "analysis", "custom_metric", "quality"),
        ),
        Key(
            name="confidence",
            kind=SHARE,
            doc="Confidence of the verdict: at most the rest of good revisions is rolled back, or of bad promoted.",
            attributes=("confidence",),
            example="99%",
            also=("significance", "alpha", "certainty"),
        ),
        Key(
            name="within",
            kind=DURATION,
            doc="Time after which, without a verdict, the old revision stays.",
            attributes=("within_s",),
            example="1d",
            also=("timeout", "deadline", "duration", "max_duration", "progress_deadline"),
        ),
        Key(
            name="shadow",
            kind=FLAG,
            doc="Send the new revision only copies of requests, and drop its answers.",
            attributes=("shadow",),
            example="true",
            also=("mirror", "mirroring", "dark_launch", "copies", "shadow_traffic", "tee"),
        ),
    ),
)

ACCESS = Section(
    type=serving.Access,
    rules=serving.ACCESS_RULES,
    keys=(
        Key(
            name="teams",
            kind=ListField(item=TEXT, most=serving.TEAMS_MOST, rule=NAME),
            doc="Teams whose keys are accepted; its own team when left out.",
            attributes=("teams",),
            example="[search, ads]",
            also=("team", "allow", "allowed", "allowed_teams", "users", "keys", "api_keys"),
        ),
        Key(
            name="requests_per_minute",
            kind=WHOLE,
            doc="Requests that each team may begin within any minute.",
            attributes=("requests_per_minute",),
            example="600",
            also=("rpm", "requests", "rate_limit", "rate", "qps", "requests_per_second"),
        ),
        Key(
            name="tokens_per_minute",
            kind=WHOLE,
            doc="Tokens of requests and answers that each team may have in a minute before its next request begins.",
            attributes=("tokens_per_minute",),
            example="100000",
            also=("tpm", "tokens", "token_limit", "token_rate", "max_tokens_per_minute"),
        ),
    ),
)

_OF_RUNS = {key.name: key for key in TRAINING_CAPACITY.keys}
SPOT = replace(
    _OF_RUNS["spot"], kind=FLAG, doc="Whether capacity that can be reclaimed may be used.", attributes=("spot",)
)
CAPACITY = Section(
    type=serving.EndpointCapacity,
    rules=serving.CAPACITY_RULES,
    keys=(
        SPOT,
        _OF_RUNS["max_price"],
        Key(
            name="base",
            kind=WHOLE,
            doc="Replicas on on-demand nodes, with `overflow` for those above them.",
            attributes=("base",),
            example="2",
            also=("base_ondemand_fallback_replicas", "on_demand", "min_on_demand", "on_demand_base", "base_capacity"),
        ),
        Key(
            name="overflow",
            kind=word(serving.OverflowCapacity),
            doc="Nodes of replicas above the base: spot nodes if they have room, else on-demand nodes.",
            attributes=("overflow",),
            example="spot",
            also=("burst", "above", "rest", "dynamic_ondemand_fallback"),
        ),
    ),
)

# Replicas do not end, so that nothing is learnt of what they use; nor do they report a pace.
RESOURCES = replace(
    TRAINING_RESOURCES,
    keys=tuple(
        replace(key, kind=plain, doc=f"{key.doc.partition('; `auto`')[0]}.", attributes=key.attributes[:1])
        if (plain := {"cpu": CPU, "memory": SIZE}.get(key.name)) is not None
        else key
        for key in TRAINING_RESOURCES.keys
        if key.name != "colocate"
    ),
)

_DOCS = {
    "labels": "Names and values of your own, which its replicas have too.",
    "setup": "Shell commands run once for each replica before its first start.",
    "run": "The command of a server, as for a shell, that listens on `$PORT`; or give `predictor`.",
    "resources": "What each replica gets.",
    "grace": "Time between SIGTERM and SIGKILL, in which a replica finishes its requests.",
}
_EXAMPLES = {"name": "chat", "run": "'vllm serve $FAIRLEAD_MODEL --port $PORT'", "setup": "pip install vllm"}


def _of_a_run(*names: str) -> tuple[Key, ...]:
    """Keys that mean for each replica what they mean for a run."""
    found = {key.name: key for key in TRAINING.keys}
    return tuple(
        replace(
            found[name],
            kind=RESOURCES if name == "resources" else found[name].kind,
            doc=_DOCS.get(name, found[name].doc),
            example=_EXAMPLES.get(name, found[name].example),
            required=False,
        )
        for name in names
    )


SERVING = Section(
    type=serving.Serving,
    rules=serving.SERVING_RULES,
    keys=(
        name_key(example="chat", most=serving.NAME_MOST, also=("service", "service_name", "endpoint", "title", "id")),
        *_of_a_run("team", "labels"),
        Key(
            name="model",
            kind=TEXT,
            doc="A path, a model such as `churn@production`, or a run's checkpoint, `run://NAME@best`.",
            attributes=("model",),
            example="run://train@best",
            also=("checkpoint", "model_path", "model_uri", "storage_uri", "weights", "artifact"),
        ),
        Key(
            name="predictor",
            kind=TEXT,
            doc="Module and class that loads the model and predicts on batches; or give `run`.",
            attributes=("predictor",),
            example="predict:Classifier",
            also=("class", "handler", "import_path", "model_class", "deployment"),
        ),
        *_of_a_run("run"),
        Key(
            name="probe",
            kind=TEXT,
            doc="Path that a ready replica answers with success; `/`, or that of the open inference protocol.",
            attributes=("probe",),
            example="/health",
            also=("readiness_probe", "health", "health_check", "healthcheck", "ready", "readiness"),
        ),
        Key(
            name="replicas",
            kind=SPAN,
            doc="Number of replicas; `0..8` for as many as requests need within these bounds.",
            attributes=("replicas", "most_replicas"),
            example="0..8",
            also=("num_replicas", "min_replicas", "max_replicas", "instances", "workers", "nodes", "scaling"),
        ),
        Key(
            name="scale",
            kind=SCALE,
            doc="How the number of replicas is chosen; a number alone is `concurrency`.",
            attributes=("scale",),
            example="{concurrency: 8}",
            also=("autoscaling", "autoscaler", "autoscale", "scaling_policy"),
        ),
        Key(
            name="batching",
            kind=BATCHING,
            doc="Batching of requests to a predictor; a number alone is `max_batch_size`.",
            attributes=("batching",),
            example="{max_batch_size: 64, max_latency: 100ms}",
            also=("batch", "batcher", "dynamic_batching"),
        ),
        Key(
            name="rollout",
            kind=ROLLOUT,
            doc="Rollout of a changed spec; a number alone is `max_surge`.",
            attributes=("rollout",),
            example="{max_surge: 0}",
            also=("strategy", "update", "update_policy", "rolling_update", "upgrade"),
        ),
        Key(
            name="canary",
            kind=CANARY,
            doc="A new revision first gets a share of the requests, and is rolled back if it does worse.",
            attributes=("canary",),
            example="{steps: [5%, 25%, 50%], latency: 250ms}",
            also=("canaries", "progressive", "analysis", "canary_traffic_percent", "canaryTrafficPercent"),
        ),
        Key(
            name="access",
            kind=ACCESS,
            doc="Require keys of teams, and limit their requests; `{}` for its own team.",
            attributes=("access",),
            example="{teams: [search], requests_per_minute: 600}",
            also=("auth", "authentication", "api_keys", "keys", "rate_limit", "rate_limits", "quota"),
        ),
        Key(
            name="timeout",
            kind=DURATION,
            doc="Time limit of a request; the gateway ends it then.",
            attributes=("timeout_s",),
            example="30s",
            also=("request_timeout", "timeout_seconds", "response_timeout", "timeout_s"),
        ),
        Key(
            name="ready_within",
            kind=DURATION,
            doc="Time in which a replica of a new revision must be ready; else the old revision stays.",
            attributes=("ready_within_s",),
            example="10m",
            also=("startup_timeout", "initial_delay", "progress_deadline", "start_timeout", "initial_delay_seconds"),
        ),
        Key(
            name="max_concurrency",
            kind=WHOLE,
            doc="Maximum number of requests at a replica; others wait at the gateway.",
            attributes=("max_concurrency",),
            example="16",
            also=("max_ongoing_requests", "container_concurrency", "concurrency_limit", "max_connections"),
        ),
        Key(
            name="max_queue",
            kind=WHOLE,
            doc="Maximum number of waiting requests; further ones are refused.",
            attributes=("max_queue",),
            example="50",
            also=("max_queued_requests", "queue", "queue_size", "max_pending"),
        ),
        Key(
            name="idempotent",
            kind=FLAG,
            doc="Retry requests that a replica had begun when it died.",
            attributes=("idempotent",),
            example="true",
            also=("retry", "retries", "retryable", "safe_to_retry"),
        ),
        Key(
            name="routing",
            kind=word(serving.Routing),
            doc="How a request's replica is chosen; `prefix` for text servers that cache prefixes or load adapters.",
            attributes=("routing",),
            example="prefix",
            also=("load_balancing", "balancing", "affinity", "session_affinity", "routing_logic", "lb_policy"),
        ),
        Key(
            name="engine",
            kind=word(EndpointEngine),
            doc="A controller of the cluster that serves it instead of replicas of Fairlead; see engines.md.",
            attributes=("engine",),
            example="kserve",
            also=("controller", "operator", "backend", "runner", "managed_by", "platform"),
        ),
        Key(
            name="capacity",
            kind=CAPACITY,
            doc="Kinds of capacity to use.",
            attributes=("capacity",),
            example="{spot: true}",
            also=("capacity_type", "provisioning"),
        ),
        *_of_a_run(
            "image", "workdir", "setup", "env", "resources", "logs", "priority", "grace", "snapshot", "kubernetes"
        ),
    ),
)
