"""Defines alerts for Prometheus, each with its meaning and remedy. ``tests/metrics`` triggers each by its fault."""

from typing import Any, Literal

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alerting rule.

    Attributes:
        expr: PromQL expression.
        wait: Prometheus' ``for`` duration; ``0m`` if the expression itself has a range.
        summary: One sentence with the labels of the subject.
        remedy: The recommended action, as a sentence.
    """

    name: str
    expr: str
    wait: str
    severity: Literal["critical", "warning", "info"]
    summary: str
    remedy: str


RUN = "{{ $labels.team }}/{{ $labels.run }}"
_OF_RUN = "max by (team, run)"
_LATE = "(fairlead_run_checkpoint_late == 1 unless on (team, run) fairlead_run_failed_saves > 0)"
_BUSY = (
    "sum by (team, run) (fairlead_run_gpu_share * on (node, gpu) group_left () "
    "max by (node, gpu) (avg_over_time(fairlead_gpu_utilization_ratio[15m]))) "
    "/ sum by (team, run) (fairlead_run_gpu_share)"
)
_ASKED = "sum by (service) (increase(fairlead_gateway_requests_total[10m]))"
_BUDGET = "sum by (team) (fairlead_month_cost_dollars) / on (team) max by (team) (fairlead_team_budget_dollars)"


def _share_above(codes: str, share: float) -> str:
    """Return the services of which so many answers had such codes; twenty requests say nothing."""
    such = f'sum by (service) (increase(fairlead_gateway_requests_total{{code=~"{codes}"}}[10m]))'
    return f"{such} / ({_ASKED} > 20) > {share}"


ALERTS = (
    Alert(
        name="FairleadNoLoop",
        expr="max(fairlead_loop_running) == 0 unless on () max(fairlead_unfinished_runs) == 0",
        wait="5m",
        severity="critical",
        summary="No supervisor or operator is running: nothing is started, restarted or stopped.",
        remedy="`fairlead doctor` says why. On one machine the next `fairlead run` starts the supervisor again.",
    ),
    Alert(
        name="FairleadMetricsAbsent",
        expr="absent(fairlead_loop_running)",
        wait="10m",
        severity="warning",
        summary="Fairlead's metrics are not scraped.",
        remedy="Check that `fairlead metrics --port`, or the operator, runs and is a target of Prometheus.",
    ),
    Alert(
        name="FairleadWatchStale",
        expr="max(fairlead_watch_stale_seconds) > 60 or max(fairlead_watch_silent_seconds) > 150",
        wait="0m",
        severity="critical",
        summary="The operator has not heard of some objects for over a minute: it decides on what it last saw.",
        remedy="`fairlead doctor` names the list. Check the API server, and the operator's rights and network.",
    ),
    Alert(
        name="FairleadUnreadableObjects",
        expr="max(fairlead_unreadable_objects) > 0",
        wait="0m",
        severity="warning",
        summary="The operator cannot read {{ $value }} objects; they count as they last could be read.",
        remedy=(
            "`kubectl get events -A --field-selector reason=Unreadable` names them. Correct or delete them; "
            "the objects of others are not affected."
        ),
    ),
    Alert(
        name="FairleadInternalErrors",
        expr="sum(increase(fairlead_internal_errors_total[15m])) > 0",
        wait="0m",
        severity="warning",
        summary="The operator failed at an object, and decides nothing for it; all others are decided as usual.",
        remedy="Its log says `internal error` with the object's name. Report it: it is an error in Fairlead.",
    ),
    Alert(
        name="FairleadDecisionsSlow",
        expr=(
            "sum(rate(fairlead_decision_seconds_sum[15m])) / (sum(rate(fairlead_decision_seconds_count[15m])) > 0) > 2"
        ),
        wait="10m",
        severity="warning",
        summary="A decision takes more than 2 s, which delays starts and restarts.",
        remedy="Check the CPU usage of the supervisor or operator, and how many runs wait.",
    ),
    Alert(
        name="FairleadNodeTakenOut",
        expr="max(fairlead_nodes_taken_out) > 0",
        wait="0m",
        severity="warning",
        summary="{{ $value }} nodes were taken out, since their failures cost more than a repair.",
        remedy="`fairlead nodes` names them, with the price. After a test `fairlead node uncordon NAME` returns one.",
    ),
    Alert(
        name="FairleadFaultyNodesInUse",
        expr="max(fairlead_nodes_faulty_in_use) > 0",
        wait="5m",
        severity="warning",
        summary="{{ $value }} nodes with a fault stay in use, as too many nodes of their kind are away already.",
        remedy="`fairlead nodes` names them. So many faults at once may be a mistake of the detector.",
    ),
    Alert(
        name="FairleadNodeNotReady",
        expr="max by (node, pool) (fairlead_node_ready) == 0",
        wait="5m",
        severity="warning",
        summary="Node {{ $labels.node }} is not ready.",
        remedy="Its runs restart on other nodes if there is room. Repair or remove the node.",
    ),
    Alert(
        name="FairleadNodesFail",
        expr='sum(increase(fairlead_restarts_total{reason=~"NodeLost|PodLost|NodeReclaimed"}[1h])) > 2.5',
        wait="0m",
        severity="warning",
        summary="At least three attempts of runs lost their nodes within an hour.",
        remedy="`fairlead events` names the nodes. Cordon a node that fails repeatedly.",
    ),
    Alert(
        name="FairleadQueueWaitsLong",
        expr="max by (team) (fairlead_queue_oldest_wait_seconds) > 4 * 3600",
        wait="0m",
        severity="info",
        summary="A run of team {{ $labels.team }} has waited for more than four hours.",
        remedy="`fairlead queue` shows why, and when it is expected to start.",
    ),
    Alert(
        name="FairleadWaitsForMoney",
        expr='sum by (team) (fairlead_queued_runs{reason="OverBudget"}) > 0',
        wait="15m",
        severity="info",
        summary="Runs of team {{ $labels.team }} wait because the budget is spent.",
        remedy="Raise the team's `budget`, or give the runs a shorter `max_duration`.",
    ),
    Alert(
        name="FairleadRunStuckStarting",
        expr=f'{_OF_RUN} (fairlead_run_phase_seconds{{phase="Starting"}}) > 900',
        wait="0m",
        severity="warning",
        summary=f"Run {RUN} has held its nodes for 15 minutes without starting.",
        remedy="`fairlead status` shows what it waits for, such as an image, a volume or a node.",
    ),
    Alert(
        name="FairleadRunSilent",
        expr=f"{_OF_RUN} (fairlead_run_silent_seconds) > 1800",
        wait="0m",
        severity="warning",
        summary=f"Run {RUN} has reported no progress for 30 minutes.",
        remedy="`fairlead logs` shows its last lines. `stall_timeout` logs the stacks of such a run and restarts it.",
    ),
    Alert(
        name="FairleadRunRestartsOften",
        expr=f"{_OF_RUN} (max_over_time(fairlead_run_starts[1h]) - min_over_time(fairlead_run_starts[1h])) >= 3",
        wait="0m",
        severity="warning",
        summary=f"Run {RUN} was restarted at least three times within an hour.",
        remedy="`fairlead events` shows the reason of each restart.",
    ),
    Alert(
        name="FairleadRunsFail",
        expr='sum(increase(fairlead_runs_finished_total{phase="Failed"}[1h])) > 2.5',
        wait="0m",
        severity="warning",
        summary="At least three runs failed within an hour.",
        remedy="`fairlead status --phase Failed` lists them. They may have a common cause.",
    ),
    Alert(
        name="FairleadCheckpointLate",
        expr=f"{_OF_RUN} {_LATE}",
        wait="5m",
        severity="warning",
        summary=f"Checkpoints of run {RUN} are overdue by its spec.",
        remedy="`fairlead status` shows how late they are, and why.",
    ),
    Alert(
        name="FairleadSavesFail",
        expr=f"{_OF_RUN} (fairlead_run_failed_saves) > 0",
        wait="5m",
        severity="critical",
        summary=f"Run {RUN} cannot save its checkpoints.",
        remedy="`fairlead status` shows why. The most common cause is a full disk.",
    ),
    Alert(
        name="FairleadGoodputLow",
        expr=(
            f"{_OF_RUN} (fairlead_run_goodput_ratio) < 0.7 "
            "and on (team, run) sum by (team, run) (fairlead_run_pod_seconds) > 3600"
        ),
        wait="15m",
        severity="warning",
        summary=f"Less than 70 % of what run {RUN} held was useful.",
        remedy="`fairlead status` divides the rest into starts, repeated work and stalls.",
    ),
    Alert(
        name="FairleadGpusIdle",
        expr=f'({_BUSY}) < 0.5 and on (team, run) fairlead_run_phase_seconds{{phase="Running"}} > 900',
        wait="0m",
        severity="info",
        summary=f"GPUs of run {RUN} were less than half busy for 15 minutes.",
        remedy="Check data loading first, unless the run also reports no progress or saves checkpoints.",
    ),
    Alert(
        name="FairleadGpuHot",
        expr="max by (node, gpu) (fairlead_gpu_temperature_celsius) > 88",
        wait="10m",
        severity="warning",
        summary="GPU {{ $labels.gpu }} of {{ $labels.node }} is hotter than 88 degrees.",
        remedy="It may reduce its clock. Check the fans and the airflow of the node.",
    ),
    Alert(
        name="FairleadBudgetNearlySpent",
        expr=f"({_BUDGET}) >= 0.8 < 1",
        wait="0m",
        severity="info",
        summary="Team {{ $labels.team }} has spent more than 80 % of its budget for this month.",
        remedy="`fairlead cost --by model` shows for what.",
    ),
    Alert(
        name="FairleadBudgetSpent",
        expr=f"({_BUDGET}) >= 1",
        wait="0m",
        severity="warning",
        summary="Team {{ $labels.team }} has spent its budget for this month.",
        remedy="New runs wait until the next month, or until the `budget` is raised.",
    ),
    Alert(
        name="FairleadRunCostNearLimit",
        expr=(
            f"{_OF_RUN} (fairlead_run_cost_dollars) / on (team, run) {_OF_RUN} (fairlead_run_cost_limit_dollars) > 0.9"
        ),
        wait="0m",
        severity="info",
        summary=f"Run {RUN} has cost more than 90 % of its `max_cost`.",
        remedy="It saves a checkpoint and ends at the limit; `fairlead resume` with `--set max_cost=...` continues it.",
    ),
    Alert(
        name="FairleadPreemptionsMany",
        expr="sum(increase(fairlead_preemptions_total[1h])) > 4.5",
        wait="0m",
        severity="info",
        summary="At least five runs were preempted within an hour.",
        remedy="`fairlead events` shows by which runs. Guarantees, priorities or the size of the cluster may not fit.",
    ),
    Alert(
        name="FairleadEndpointDown",
        expr=(
            f"{_OF_RUN} (fairlead_endpoint_replicas_ready) == 0 "
            f"and on (team, run) {_OF_RUN} (fairlead_endpoint_replicas_wanted) > 0"
        ),
        wait="10m",
        severity="critical",
        summary=f"Endpoint {RUN} has had no ready replica for ten minutes.",
        remedy="`fairlead status` shows why its replicas are not ready; `fairlead rollback` returns to the previous "
        "revision.",
    ),
    Alert(
        name="FairleadEndpointErrors",
        expr=_share_above("5..", 0.05),
        wait="5m",
        severity="warning",
        summary="More than 5 % of the requests of {{ $labels.service }} fail.",
        remedy="`fairlead logs` shows its replicas' output; `fairlead rollback` returns to the previous revision.",
    ),
    Alert(
        name="FairleadEndpointRefuses",
        expr=_share_above("429", 0.05),
        wait="5m",
        severity="warning",
        summary="More than 5 % of the requests of {{ $labels.service }} are refused by its limits, or a team's.",
        remedy="Raise `replicas` or `max_queue`, or the limits in `access`.",
    ),
    Alert(
        name="FairleadGatewayRoutesInvalid",
        expr="min(fairlead_gateway_routes_valid) == 0",
        wait="5m",
        severity="critical",
        summary="A gateway cannot read its routes, and uses the previous ones.",
        remedy="Its log says why. Gateways and operator may have different versions.",
    ),
    Alert(
        name="FairleadRunsLeftOut",
        expr="max(fairlead_runs_left_out) > 0",
        wait="15m",
        severity="info",
        summary="There are more unfinished runs than are exported with series of their own.",
        remedy="Runs that hold resources are exported first; the others wait, and are only counted.",
    ),
)


def rule_groups() -> dict[str, Any]:
    """Return the alerts as the content of a rule file of Prometheus, also the ``spec`` of a PrometheusRule."""
    return {"groups": [{"name": "fairlead", "rules": [_rule(alert) for alert in ALERTS]}]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.remedy},
    }
