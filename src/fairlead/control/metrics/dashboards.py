"""Generates Grafana dashboards of the cluster, its cost, the queue, one run, and endpoints.

Queries use only metrics of ``exposition``, of gateways and of replicas; ``tests/metrics`` checks with a real Prometheus
that none returns nothing.
"""

from typing import Any, Literal

from fairlead.frozen import dataclass

RUN = 'team=~"$team", run=~"$run"'
HEIGHT, WIDTH = 8, 12  # of Grafana's grid, 24 wide


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A PromQL query with the legend of its lines, with labels in braces as in Grafana."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel of a dashboard.

    Attributes:
        unit: A unit of Grafana, such as ``percentunit`` for a ratio or ``s`` for seconds.
        stacks: Whether lines are stacked as parts of a whole.
        kind: A curve over time, a current number, or a table of current values.
    """

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    stacks: bool = False
    kind: Literal["timeseries", "stat", "table"] = "timeseries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A page of panels; ``variables`` are labels of the metric ``variables_of`` by which the viewer filters."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[str, ...] = ()
    variables_of: str = "fairlead_run_info"


def _panel(title: str, expr: str, legend: str = "", **more: Any) -> Panel:
    return Panel(title=title, queries=(Query(expr=expr, legend=legend),), **more)


CLUSTER = Dashboard(
    uid="fairlead-cluster",
    title="Fairlead / Cluster",
    panels=(
        _panel("Loop", "max(fairlead_loop_running)", kind="stat"),
        _panel("Runs that are not over", "max(fairlead_unfinished_runs)", kind="stat"),
        Panel(
            title="GPUs held",
            queries=(
                Query(expr="sum by (pool) (max by (node, pool) (fairlead_node_gpus_held))", legend="{{pool}} held"),
                Query(expr="sum by (pool) (max by (node, pool) (fairlead_node_gpus))", legend="{{pool}} there"),
            ),
        ),
        _panel(
            "Part of the GPUs that is held",
            "sum by (node) (fairlead_node_gpus_held) / (sum by (node) (fairlead_node_gpus) > 0)",
            "{{node}}",
            unit="percentunit",
        ),
        Panel(
            title="Cores held",
            queries=(
                Query(
                    expr="sum by (pool) (max by (node, pool) (fairlead_node_cpu_cores_held))", legend="{{pool}} held"
                ),
                Query(expr="sum by (pool) (max by (node, pool) (fairlead_node_cpu_cores))", legend="{{pool}} there"),
            ),
        ),
        _panel("Nodes that are ready", "sum by (pool) (max by (node, pool) (fairlead_node_ready))", "{{pool}}"),
        _panel(
            "Runs by phase", "sum by (phase) (max by (phase, team, kind) (fairlead_runs))", "{{phase}}", stacks=True
        ),
        Panel(
            title="Placements and preemptions an hour",
            queries=(
                Query(expr="sum(increase(fairlead_placements_total[1h]))", legend="placements"),
                Query(expr="sum(increase(fairlead_preemptions_total[1h]))", legend="preemptions"),
            ),
        ),
        _panel(
            "Starts that failed, an hour",
            "sum by (reason) (increase(fairlead_restarts_total[1h]))",
            "{{reason}}",
            stacks=True,
        ),
        _panel(
            "Runs that ended, an hour",
            "sum by (phase, reason) (increase(fairlead_runs_finished_total[1h]))",
            "{{phase}} {{reason}}",
            stacks=True,
        ),
        Panel(
            title="Time of a decision",
            unit="s",
            queries=tuple(
                Query(
                    expr=f"histogram_quantile({share}, sum by (le) (rate(fairlead_decision_seconds_bucket[15m])))",
                    legend=f"{share:.0%}",
                )
                for share in (0.5, 0.99)
            ),
        ),
        _panel(
            "GPU utilization",
            "avg by (node) (max by (node, gpu) (fairlead_gpu_utilization_ratio))",
            "{{node}}",
            unit="percentunit",
        ),
        _panel("GPU power", "sum by (node) (max by (node, gpu) (fairlead_gpu_power_watts))", "{{node}}", unit="watt"),
        _panel(
            "GPU temperature",
            "max by (node, gpu) (fairlead_gpu_temperature_celsius)",
            "{{node}} {{gpu}}",
            unit="celsius",
        ),
    ),
)

COST = Dashboard(
    uid="fairlead-cost",
    title="Fairlead / Cost",
    panels=(
        _panel(
            "Spent this month", "sum(max by (team, use) (fairlead_month_cost_dollars))", unit="currencyUSD", kind="stat"
        ),
        _panel(
            "Idle this month",
            'sum(max by (team, use) (fairlead_month_cost_dollars{use="idle"}))',
            unit="currencyUSD",
            kind="stat",
        ),
        _panel(
            "Dollars an hour by team",
            "max by (team) (fairlead_team_cost_dollars_per_hour)",
            "{{team}}",
            unit="currencyUSD",
            stacks=True,
        ),
        _panel(
            "This month by team",
            "sum by (team) (max by (team, use) (fairlead_month_cost_dollars))",
            "{{team}}",
            unit="currencyUSD",
            stacks=True,
        ),
        _panel(
            "This month by use",
            "sum by (use) (max by (team, use) (fairlead_month_cost_dollars))",
            "{{use}}",
            unit="currencyUSD",
            stacks=True,
        ),
        _panel(
            "This month by model",
            "topk(20, max by (model) (fairlead_model_month_cost_dollars))",
            "{{model}}",
            unit="currencyUSD",
            kind="table",
        ),
        _panel(
            "Part of the budget that is spent",
            "sum by (team) (max by (team, use) (fairlead_month_cost_dollars)) / on (team) "
            "max by (team) (fairlead_team_budget_dollars)",
            "{{team}}",
            unit="percentunit",
        ),
        _panel(
            "Dearest runs",
            "topk(20, max by (team, run) (fairlead_run_cost_dollars))",
            "{{team}}/{{run}}",
            unit="currencyUSD",
            kind="table",
        ),
        _panel(
            "Price of the nodes",
            "sum by (pool) (max by (node, pool) (fairlead_node_price_dollars_per_hour))",
            "{{pool}}",
            unit="currencyUSD",
            stacks=True,
        ),
    ),
)

QUEUE = Dashboard(
    uid="fairlead-queue",
    title="Fairlead / Queue",
    panels=(
        _panel(
            "Runs that wait, by team",
            "sum by (team) (max by (team, reason) (fairlead_queued_runs))",
            "{{team}}",
            stacks=True,
        ),
        _panel(
            "Runs that wait, by reason",
            "sum by (reason) (max by (team, reason) (fairlead_queued_runs))",
            "{{reason}}",
            stacks=True,
        ),
        _panel("Longest wait now", "max by (team) (fairlead_queue_oldest_wait_seconds)", "{{team}}", unit="s"),
        _panel("GPUs held free for a run", "max by (team, run) (fairlead_gpus_held_free)", "{{team}}/{{run}}"),
        _panel("Had beyond its share", "max by (team) (fairlead_team_debt_seconds)", "{{team}}", unit="s"),
        Panel(
            title="Waits of those that were placed",
            unit="s",
            queries=tuple(
                Query(
                    expr=f"histogram_quantile({share}, sum by (le) (rate(fairlead_queue_wait_seconds_bucket[1h])))",
                    legend=f"{share:.0%}",
                )
                for share in (0.5, 0.9, 0.99)
            ),
        ),
        _panel(
            "Mean wait of those that were placed",
            "sum(rate(fairlead_queue_wait_seconds_sum[1h])) / sum(rate(fairlead_queue_wait_seconds_count[1h]))",
            unit="s",
        ),
        _panel("Runs without series of their own", "max(fairlead_runs_left_out)", kind="stat"),
    ),
)

ONE_RUN = Dashboard(
    uid="fairlead-run",
    title="Fairlead / Run",
    variables=("team", "run"),
    panels=(
        _panel(
            "Phase",
            f"max by (team, run, phase) (fairlead_run_phase_seconds{{{RUN}}})",
            "{{phase}}",
            unit="s",
            kind="stat",
        ),
        _panel("Goodput", f"max by (team, run) (fairlead_run_goodput_ratio{{{RUN}}})", unit="percentunit", kind="stat"),
        _panel("Cost", f"max by (team, run) (fairlead_run_cost_dollars{{{RUN}}})", unit="currencyUSD", kind="stat"),
        _panel(
            "Dollars an hour",
            f"max by (team, run) (fairlead_run_cost_dollars_per_hour{{{RUN}}})",
            unit="currencyUSD",
            kind="stat",
        ),
        Panel(
            title="Steps",
            queries=(
                Query(expr=f"max by (team, run) (fairlead_run_step{{{RUN}}})", legend="{{run}}"),
                Query(expr=f"max by (team, run) (fairlead_run_steps_planned{{{RUN}}})", legend="{{run}} planned"),
            ),
        ),
        _panel("Loss", f"max by (team, run) (fairlead_run_loss{{{RUN}}})", "{{run}}"),
        _panel("Throughput", f"max by (team, run) (fairlead_run_throughput{{{RUN}}})", "{{run}}"),
        _panel(
            "Where the time went",
            f"max by (team, run, use) (fairlead_run_pod_seconds{{{RUN}}})",
            "{{run}} {{use}}",
            unit="s",
            stacks=True,
        ),
        _panel("Waited", f"max by (team, run) (fairlead_run_waiting_seconds{{{RUN}}})", "{{run}}", unit="s"),
        _panel("Starts after the first", f"max by (team, run) (fairlead_run_starts{{{RUN}}})", "{{run}}"),
        _panel(
            "Age of the newest checkpoint",
            f"max by (team, run) (fairlead_run_checkpoint_age_seconds{{{RUN}}})",
            "{{run}}",
            unit="s",
        ),
        _panel("Saves that failed", f"max by (team, run) (fairlead_run_failed_saves{{{RUN}}})", "{{run}}"),
        _panel(
            "Since the last sign of life",
            f"max by (team, run) (fairlead_run_silent_seconds{{{RUN}}})",
            "{{run}}",
            unit="s",
        ),
        _panel(
            "GPU utilization",
            f"sum by (team, run) (fairlead_run_gpu_share{{{RUN}}} * on (node, gpu) group_left () "
            f"max by (node, gpu) (fairlead_gpu_utilization_ratio)) "
            f"/ sum by (team, run) (fairlead_run_gpu_share{{{RUN}}})",
            "{{run}}",
            unit="percentunit",
        ),
        _panel(
            "GPU memory",
            f"sum by (team, run) (fairlead_run_gpu_share{{{RUN}}} * on (node, gpu) group_left () "
            "max by (node, gpu) (fairlead_gpu_memory_used_bytes))",
            "{{run}}",
            unit="bytes",
        ),
        _panel(
            "GPU power",
            f"sum by (team, run) (fairlead_run_gpu_share{{{RUN}}} * on (node, gpu) group_left () "
            "max by (node, gpu) (fairlead_gpu_power_watts))",
            "{{run}}",
            unit="watt",
        ),
    ),
)

OF_SERVICE = 'service=~"$service"'
OF_REPLICAS = "(fairlead|vllm)"  # replicas' metrics have vLLM's names, with another prefix


def _quantiles(title: str, buckets: str, *, by: str = "") -> Panel:
    """Return a panel of the quantiles of a histogram, whose buckets are selected by a PromQL selector."""
    labels = f"le, {by}" if by else "le"
    return Panel(
        title=title,
        unit="s",
        queries=tuple(
            Query(
                expr=f"histogram_quantile({share}, sum by ({labels}) (rate({buckets}[5m])))",
                legend=f"{{{{{by}}}}} {share:.0%}" if by else f"{share:.0%}",
            )
            for share in ((0.95,) if by else (0.5, 0.95, 0.99))
        ),
    )


def _of_replicas(name: str) -> str:
    """Return a selector of a metric of replicas."""
    return f'{{__name__=~"{OF_REPLICAS}:{name}"}}'


SERVING = Dashboard(
    uid="fairlead-serving",
    title="Fairlead / Serving",
    variables=("service",),
    variables_of="fairlead_gateway_in_flight",
    panels=(
        _panel(
            "Requests a second",
            f"sum by (service) (rate(fairlead_gateway_requests_total{{{OF_SERVICE}}}[5m]))",
            "{{service}}",
            unit="reqps",
        ),
        _panel(
            "Requests a second by status",
            f"sum by (code) (rate(fairlead_gateway_requests_total{{{OF_SERVICE}}}[5m]))",
            "{{code}}",
            unit="reqps",
            stacks=True,
        ),
        _panel(
            "Errors",
            f'sum by (service) (rate(fairlead_gateway_requests_total{{{OF_SERVICE}, code=~"5.."}}[5m])) '
            f"/ (sum by (service) (rate(fairlead_gateway_requests_total{{{OF_SERVICE}}}[5m])) > 0)",
            "{{service}}",
            unit="percentunit",
        ),
        _quantiles("Latency", f"fairlead_gateway_request_duration_seconds_bucket{{{OF_SERVICE}}}"),
        _quantiles(
            "Latency by revision", f"fairlead_gateway_request_duration_seconds_bucket{{{OF_SERVICE}}}", by="revision"
        ),
        Panel(
            title="Requests present",
            queries=(
                Query(expr=f"sum(fairlead_gateway_in_flight{{{OF_SERVICE}}})", legend="present"),
                Query(expr=f"sum(fairlead_gateway_queued{{{OF_SERVICE}}})", legend="waiting"),
            ),
        ),
        _quantiles("Time in the queue", f"fairlead_gateway_queue_duration_seconds_bucket{{{OF_SERVICE}}}"),
        Panel(
            title="Replicas",
            queries=(
                Query(
                    expr="max by (team, run) (fairlead_endpoint_replicas_wanted)",
                    legend="{{team}}/{{run}} wanted",
                ),
                Query(
                    expr="max by (team, run) (fairlead_endpoint_replicas_ready)",
                    legend="{{team}}/{{run}} ready",
                ),
            ),
        ),
        _panel(
            "Ready replicas by revision",
            f"max by (service, revision) (fairlead_gateway_replicas{{{OF_SERVICE}}})",
            "{{service}} {{revision}}",
        ),
        _panel(
            "Share of requests intended for each revision",
            f"max by (service, revision) (fairlead_gateway_revision_weight{{{OF_SERVICE}}}) "
            "/ on (service) group_left () "
            f"(sum by (service) (max by (service, revision) (fairlead_gateway_revision_weight{{{OF_SERVICE}}})) > 0)",
            "{{service}} {{revision}}",
            unit="percentunit",
            stacks=True,
        ),
        _panel(
            "Requests a second by revision",
            f'sum by (service, revision) (rate(fairlead_gateway_requests_total{{{OF_SERVICE}, revision!=""}}[5m]))',
            "{{service}} {{revision}}",
            unit="reqps",
            stacks=True,
        ),
        _panel(
            "Cold starts an hour",
            f"sum by (service) (increase(fairlead_gateway_cold_start_seconds_count{{{OF_SERVICE}}}[1h]))",
            "{{service}}",
        ),
        _panel(
            "Mean cold start",
            f"sum by (service) (increase(fairlead_gateway_cold_start_seconds_sum{{{OF_SERVICE}}}[1h])) "
            f"/ (sum by (service) (increase(fairlead_gateway_cold_start_seconds_count{{{OF_SERVICE}}}[1h])) > 0)",
            "{{service}}",
            unit="s",
        ),
        Panel(
            title="Refused and retried, a second",
            queries=(
                Query(
                    expr=f'sum(rate(fairlead_gateway_requests_total{{{OF_SERVICE}, code=~"429|503"}}[5m]))',
                    legend="refused",
                ),
                Query(expr=f"sum(rate(fairlead_gateway_retries_total{{{OF_SERVICE}}}[5m]))", legend="retried"),
                Query(expr="sum(rate(fairlead_gateway_turned_away_total[5m]))", legend="connections turned away"),
            ),
        ),
        _panel(
            "Tokens a second",
            f"sum by (model_name) (rate({_of_replicas('generation_tokens_total')}[5m]))",
            "{{model_name}}",
        ),
        _quantiles("Time to the first token", _of_replicas("time_to_first_token_seconds_bucket")),
        _quantiles("Time per output token", _of_replicas("(time_per_output_token|inter_token_latency)_seconds_bucket")),
        Panel(
            title="Requests in replicas",
            queries=(
                Query(expr=f"sum({_of_replicas('num_requests_running')})", legend="running"),
                Query(expr=f"sum({_of_replicas('num_requests_waiting')})", legend="waiting"),
            ),
        ),
        _quantiles("Time in the queue of a replica", _of_replicas("request_queue_time_seconds_bucket")),
        _quantiles("Time of a batch", _of_replicas("request_inference_time_seconds_bucket")),
        _panel(
            "Rows of a batch",
            "sum by (model_name) (rate(fairlead:batch_size_sum[5m])) "
            "/ (sum by (model_name) (rate(fairlead:batch_size_count[5m])) > 0)",
            "{{model_name}}",
        ),
    ),
)

DASHBOARDS = (CLUSTER, COST, QUEUE, ONE_RUN, SERVING)
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def grafana(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard in Grafana's import format, JSON of schema version 39."""
    chosen = [
        {
            "name": label,
            "type": "query",
            "datasource": SOURCE,
            "query": f"label_values({dashboard.variables_of}, {label})",
            "includeAll": True,
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
            "refresh": 2,
        }
        for label in dashboard.variables
    ]
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["fairlead"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}, *chosen]},
        "panels": [_grafana_panel(panel, number) for number, panel in enumerate(dashboard.panels)],
    }


def _grafana_panel(panel: Panel, number: int) -> dict[str, Any]:
    is_now = panel.kind == "table"
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 30} if panel.stacks else {}
    return {
        "id": number + 1,
        "title": panel.title,
        "type": panel.kind,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": number % 2 * WIDTH, "y": number // 2 * HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                **({"instant": True, "format": "table"} if is_now else {}),
            }
            for place, query in enumerate(panel.queries)
        ],
    }
