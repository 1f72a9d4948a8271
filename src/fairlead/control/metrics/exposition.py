"""Renders readings in Prometheus' text format, by its conventions: base units, ``_total``, ratios from 0 to 1.

The number of series is bounded. Label values are from a closed set (phase, reason, use, kind), or name a node, a team,
or an unfinished run. Runs beyond ``MOST_RUNS`` have no series of their own and are counted in
``fairlead_runs_left_out``, and endpoints beyond ``MOST_ENDPOINTS`` have none; nodes beyond ``MOST_NODES``, and teams,
pools and models beyond ``MOST_NAMES``, are summed up as ``(other)``. No output of a program becomes a label.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.control.metrics.readings import Readings, RunUsage, dollars_per_hour, pool_of, shown_runs
from fairlead.control.pass_counts import Histogram
from fairlead.ledger.usage import whole_holders
from fairlead.policy.kinds.checkpoint_health import warning
from fairlead.specs.serving import Replica, Serving
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.reasons import Code
from fairlead.state.shared_limits import by_turns
from fairlead.state.snapshot import WHOLE_MILLI, AnyWorkload, Node, Phase, Pod, Workload
from fairlead.text.money import MICROUSD

MOST_RUNS, MOST_NODES, MOST_NAMES, MOST_ENDPOINTS = 500, 1_000, 50, 500
OTHER = "(other)"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Codes of failed attempts.
FAILURES = tuple(
    code.value
    for code in (
        Code.PROGRAM_FAILED,
        Code.OUT_OF_MEMORY,
        Code.GPU_OUT_OF_MEMORY,
        Code.LOSS_NOT_FINITE,
        Code.KILLED,
        Code.POD_LOST,
        Code.NODE_LOST,
        Code.NODE_RECLAIMED,
        Code.START_FAILED,
        Code.START_TIMED_OUT,
        Code.NODE_SLOW,
        Code.GPU_FAULTY,
        Code.STALLED,
        Code.DEADLINE_EXCEEDED,
        Code.OVER_BUDGET,
        Code.CANNOT_FIT,
        Code.LAST_CHECKPOINT_FAILED,
    )
)
_QUEUED = (Phase.PENDING, Phase.RESTARTING)


def exposition(readings: Readings, *, most_runs: int = MOST_RUNS, further: Iterable[Metric] = ()) -> bytes:
    """Render readings in the text format 0.0.4.

    Args:
        most_runs: Maximum number of runs with series of their own.
        further: Further metrics, rendered after them.
    """
    registry = CollectorRegistry()
    registry.register(_Collected((*metrics_of(readings, most_runs), *further)))
    return generate_latest(registry)


class _Collected(Collector):
    """A collector of finished metrics."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def metrics_of(readings: Readings, most_runs: int) -> Iterator[Metric]:
    """Yield all metrics of a cluster."""
    pods = defaultdict[str, list[Pod]](list)
    for pod in readings.seen.pods:
        if not pod.phase.is_final and pod.workload_uid:
            pods[pod.workload_uid].append(pod)
    yield from _loop(readings)
    yield from _queue(readings)
    yield from _nodes(readings)
    yield from _runs(readings, pods, most_runs)
    yield from _money(readings, pods)
    yield from _gpus(readings, pods, most_runs)
    yield from _endpoints(readings)


def _endpoints(readings: Readings) -> Iterator[Metric]:
    served = [parent for parent in readings.seen.parents if isinstance(parent.spec, Serving)]
    unfinished = [cast("Workload[Any]", endpoint) for endpoint in served if not endpoint.status.phase.is_final]
    unfinished.sort(key=lambda endpoint: (endpoint.created_at, endpoint.uid))
    shown = by_turns(unfinished, lambda endpoint: endpoint.spec.team, MOST_ENDPOINTS)
    details = [(endpoint, detail_of(endpoint)) for endpoint in shown]
    labels = ["team", "run"]
    wanted = {_name(endpoint): float(detail.wanted) for endpoint, detail in details}
    yield _family("endpoint_replicas_wanted", "Replicas that an endpoint is to have.", labels, wanted)
    ready = {_name(endpoint): float(detail.ready) for endpoint, detail in details}
    yield _family("endpoint_replicas_ready", "Ready replicas of an endpoint.", labels, ready)


def _loop(readings: Readings) -> Iterator[Metric]:
    counts = readings.counts
    yield _gauge("loop_running", "1 while a supervisor or operator runs and answers.", float(counts is not None))
    if counts is None:
        return
    yield _histogram("decision_seconds", "Duration of a decision.", counts.decisions)
    yield _histogram("queue_wait_seconds", "Time that a run waited before it was placed.", counts.waits)
    yield CounterMetricFamily("fairlead_placements", "Gangs that were placed.", value=counts.placements)
    yield CounterMetricFamily("fairlead_preemptions", "Runs that were preempted.", value=counts.preemptions)
    restarts = CounterMetricFamily("fairlead_restarts", "Failed attempts that were restarted.", labels=["reason"])
    # `increase` misses the event with which a series first appears, so these series start at 0.
    for reason, number in sorted({**dict.fromkeys(FAILURES, 0), **counts.restarts}.items()):
        restarts.add_metric([reason], number)
    yield restarts
    finished = CounterMetricFamily("fairlead_runs_finished", "Finished runs.", labels=["phase", "reason"])
    begun = {(Phase.FAILED.value, reason): 0 for reason in FAILURES}
    begun |= {(Phase.SUCCEEDED.value, Code.COMPLETED.value): 0, (Phase.STOPPED.value, Code.STOP_REQUESTED.value): 0}
    for (phase, reason), number in sorted({**begun, **counts.finished}.items()):
        finished.add_metric([phase, reason], number)
    yield finished


def _queue(readings: Readings) -> Iterator[Metric]:
    seen = readings.seen
    going: list[AnyWorkload] = [
        workload for workload in (*seen.workloads, *seen.parents) if not workload.status.phase.is_final
    ]
    teams = _bounded(workload.spec.team for workload in going)
    yield _gauge("unfinished_runs", "Unfinished runs of all kinds, pending ones included.", float(len(going)))
    counted = Counter(
        (workload.status.phase.value, teams[workload.spec.team], type(workload.spec).__name__) for workload in going
    )
    yield _family("runs", "Unfinished runs by phase.", ["phase", "team", "kind"], counted)
    waiting = [run for run in seen.workloads if run.status.phase in _QUEUED]
    why = Counter((teams[run.spec.team], run.status.reason.code.value) for run in waiting)
    yield _family("queued_runs", "Runs that wait to be placed, by the reason.", ["team", "reason"], why)
    oldest: dict[tuple[str, ...], float] = {(team,): 0.0 for team in set(teams.values())}
    for run in waiting:
        key = (teams[run.spec.team],)
        oldest[key] = max(oldest[key], readings.now - run.status.since)
    yield _family("queue_oldest_wait_seconds", "Longest wait of a run in the queue now.", ["team"], oldest)
    held = {} if readings.counts is None else readings.counts.held
    by_run = {key: milli / WHOLE_MILLI for key, milli in held.items()}
    yield _family("gpus_held_free", "GPUs held free for a pending run with a promised start.", ["team", "run"], by_run)
    debts = {} if readings.counts is None else readings.counts.debts
    by_team: dict[tuple[str, ...], float] = {(team,): 0.0 for team in set(teams.values())}
    for team, label in teams.items():
        by_team[label,] += debts.get(team, 0.0)
    of_debt = "Seconds of the whole cluster that a team has had beyond its share; below zero for less."
    yield _family("team_debt_seconds", of_debt, ["team"], by_team)


def _nodes(readings: Readings) -> Iterator[Metric]:
    nodes = readings.seen.nodes
    live = [pod for pod in readings.seen.pods if not pod.phase.is_final]
    cpu_held, gpu_held, on_gpu = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for pod in live:
        cpu_held[pod.node] += pod.grant.cpu_milli
    for pod in live:
        for uuid in pod.grant.gpu_uuids:
            on_gpu[pod.node, uuid] += min(pod.grant.gpu_milli, WHOLE_MILLI)
    for node in nodes:
        # A GPU that several pods hold whole counts once.
        held = ((gpu, on_gpu[node.name, gpu.uuid]) for gpu in node.gpus if (node.name, gpu.uuid) in on_gpu)
        gpu_held[node.name] = sum(min(milli, WHOLE_MILLI) if gpu.divisible else gpu.milli for gpu, milli in held)
    names = {node.name: node.name if index < MOST_NODES else OTHER for index, node in enumerate(nodes)}

    pools = _bounded(pool_of(node) for node in nodes)

    def metric(name: str, sentence: str, value: Callable[[Node], float | None]) -> Metric:
        sums: Counter[tuple[str, ...]] = Counter()
        for node in nodes:
            if (figure := value(node)) is not None:
                sums[names[node.name], pools[pool_of(node)]] += figure  # type: ignore[assignment]  # a sum of floats
        return _family(name, sentence, ["node", "pool"], sums)

    yield metric("node_ready", "1 while a node is ready.", lambda node: float(node.ready))
    yield metric("node_cpu_cores", "CPU cores of a node.", lambda node: node.cpu_milli / 1000)
    yield metric("node_cpu_cores_held", "CPU cores of a node that pods hold.", lambda node: cpu_held[node.name] / 1000)
    yield metric("node_gpus", "GPUs of a node.", lambda node: sum(gpu.milli for gpu in node.gpus) / WHOLE_MILLI)
    yield metric("node_gpus_held", "GPUs of a node that pods hold.", lambda node: gpu_held[node.name] / WHOLE_MILLI)
    yield metric("node_price_dollars_per_hour", "Price of a node.", lambda node: node.price_per_hour)


def _held_milli(pod: Pod, node: Node) -> int:
    """Return the thousandths of GPUs that a pod holds of its node."""
    shared = min(pod.grant.gpu_milli, WHOLE_MILLI)
    return sum(shared if gpu.divisible else gpu.milli for gpu in node.gpus if gpu.uuid in pod.grant.gpu_uuids)


def _runs(readings: Readings, pods: Mapping[str, list[Pod]], most_runs: int) -> Iterator[Metric]:
    runs, left_out = shown_runs(readings.seen, most_runs)
    now, nodes = readings.now, {node.name: node for node in readings.seen.nodes}
    held = whole_holders(readings.seen.pods)
    yield _gauge("runs_left_out", f"Runs beyond {most_runs}, which have no series of their own.", float(left_out))
    info = GaugeMetricFamily(
        "fairlead_run_info", "Labels of an unfinished run.", labels=["team", "run", "kind", "uid", "model", "project"]
    )
    for run in runs:
        labels = run.spec.labels
        model, project = labels.get("model") or run.spec.name, labels.get("project", "")
        info.add_metric([run.spec.team, run.spec.name, type(run.spec).__name__, run.uid, model, project], 1)
    yield info
    phases = {(*_name(run), run.status.phase.value): now - run.status.since for run in runs}
    yield _family("run_phase_seconds", "Time that a run has been in its phase.", ["team", "run", "phase"], phases)

    def metric(name: str, sentence: str, value: Callable[[Workload], float | None]) -> Metric:
        figures = ((_name(run), value(run)) for run in runs)
        return _family(
            f"run_{name}", sentence, ["team", "run"], {key: figure for key, figure in figures if figure is not None}
        )

    def progress_metric(name: str, sentence: str, field: str) -> Metric:
        return metric(name, sentence, lambda run: None if run.progress is None else getattr(run.progress, field))

    def used(run: Workload) -> RunUsage:
        return readings.usage.get(run.uid, RunUsage())

    yield progress_metric("step", "Completed steps, as reported by the program.", "step")
    yield progress_metric("steps_planned", "Total steps, as reported by the program.", "total_steps")
    yield progress_metric("loss", "Last reported loss.", "loss")
    yield progress_metric("throughput", "Last reported throughput, in the program's own unit per second.", "throughput")
    yield metric(
        "silent_seconds", "Time since the last report of a running program.", lambda run: _silence(run, pods, now)
    )
    yield metric("starts", "Attempts of a run after the first.", lambda run: float(run.status.attempt))
    yield metric(
        "gpus_held", "GPUs that a run holds.",
        lambda run: sum(_held_milli(pod, nodes[pod.node]) for pod in pods[run.uid] if pod.node in nodes) / WHOLE_MILLI,
    )  # fmt: skip
    yield metric(
        "checkpoint_age_seconds", "Age of the newest complete checkpoint.", lambda run: _checkpoint_age(run, now)
    )
    yield progress_metric("failed_saves", "Failed saves since the last complete one.", "saves_failed")
    yield metric(
        "checkpoint_late", "1 while a checkpoint is overdue by the spec.",
        lambda run: float(warning(run, now) is not None) if run.status.phase is Phase.RUNNING else None,
    )  # fmt: skip
    yield metric("goodput_ratio", "Goodput: the useful part of what a run held.", lambda run: _ratio(used(run)))
    spent = {
        (*_name(run), use): seconds
        for run in runs
        if (goodput := used(run).goodput) is not None
        for use, seconds in goodput.seconds.items()
    }
    yield _family("run_pod_seconds", "Pod seconds of a run by use.", ["team", "run", "use"], spent)
    yield metric(
        "waiting_seconds", "Time since submission in which a run held nothing.",
        lambda run: None if (goodput := used(run).goodput) is None else goodput.waiting_s,
    )  # fmt: skip
    yield metric("cost_dollars", "Cost of a run so far.", lambda run: _dollars(used(run).cost_microusd))
    yield metric(
        "cost_dollars_per_hour", "Cost of an hour of what a run holds.",
        lambda run: dollars_per_hour(pods[run.uid], nodes, held) if pods[run.uid] else None,
    )  # fmt: skip
    yield metric("cost_limit_dollars", "The `max_cost` of a run.", lambda run: run.spec.max_cost)


def _name(run: AnyWorkload) -> tuple[str, str]:
    return run.spec.team, run.spec.name


def _silence(run: Workload, pods: Mapping[str, list[Pod]], now: float) -> float | None:
    if run.status.phase is not Phase.RUNNING or isinstance(run.spec, Replica):
        return None  # a server without requests reports nothing
    heard = [pod.active_at for pod in pods[run.uid] if pod.active_at is not None]
    return now - max([run.status.since, *heard])


def _checkpoint_age(run: Workload, now: float) -> float | None:
    saved_at = None if run.progress is None else run.progress.checkpoint_at
    return None if saved_at is None else now - saved_at


def _ratio(usage: RunUsage) -> float | None:
    return None if usage.goodput is None else usage.goodput.ratio


def _money(readings: Readings, pods: Mapping[str, list[Pod]]) -> Iterator[Metric]:
    budgets = {team.name: team.budget.monthly for team in readings.seen.teams if team.budget is not None}
    spent = Counter[str]()
    for (team, _), amount in readings.month.items():
        spent[team] += amount
    # A team with a budget keeps its own series regardless of its spending.
    first = sorted({*spent, *budgets}, key=lambda team: (team not in budgets, -spent[team], team))
    teams = {team: team if index < MOST_NAMES else OTHER for index, team in enumerate(first)}
    by_use: Counter[tuple[str, ...]] = Counter()
    for (team, use), amount in readings.month.items():
        by_use[teams[team], use] += amount
    sentence = "Cost of a team in this calendar month (UTC) by use; idle time has an empty team."
    yield _family("month_cost_dollars", sentence, ["team", "use"], {key: _usd(cost) for key, cost in by_use.items()})
    dearest = sorted(readings.models, key=lambda model: (-readings.models[model], model))
    by_model: Counter[tuple[str, ...]] = Counter()
    for index, model in enumerate(dearest):
        by_model[(model if index < MOST_NAMES else OTHER,)] += readings.models[model]
    sentence = "Cost of a model in this calendar month (UTC)."
    yield _family("model_month_cost_dollars", sentence, ["model"], {key: _usd(cost) for key, cost in by_model.items()})
    limits = {(teams[team],): amount for team, amount in budgets.items() if teams[team] != OTHER}
    yield _family("team_budget_dollars", "Budget of a team for a calendar month.", ["team"], limits)
    nodes, rates = {node.name: node for node in readings.seen.nodes}, Counter[tuple[str, ...]]()
    names, held = _bounded(run.spec.team for run in readings.seen.workloads), whole_holders(readings.seen.pods)
    for run in readings.seen.workloads:
        rate = dollars_per_hour(pods[run.uid], nodes, held) if pods.get(run.uid) else None
        if rate is not None:
            rates[(names[run.spec.team],)] += rate  # type: ignore[assignment]  # a sum of floats
    yield _family("team_cost_dollars_per_hour", "Cost of an hour of what a team holds.", ["team"], rates)


def _gpus(readings: Readings, pods: Mapping[str, list[Pod]], most_runs: int) -> Iterator[Metric]:
    def metric(name: str, sentence: str, field: str) -> Metric:
        figures = {(gpu.node, gpu.uuid): getattr(gpu, field) for gpu in readings.gpus}
        return _family(
            name, sentence, ["node", "gpu"], {key: figure for key, figure in figures.items() if figure is not None}
        )

    yield metric("gpu_utilization_ratio", "GPU utilization, 0 to 1.", "utilization")
    yield metric("gpu_memory_used_bytes", "GPU memory in use.", "memory_used_bytes")
    yield metric("gpu_power_watts", "Power draw of a GPU.", "power_watts")
    yield metric("gpu_temperature_celsius", "Temperature of a GPU.", "temperature_celsius")
    told_of = {gpu.uuid for gpu in readings.gpus}
    nodes = {node.name: node for node in readings.seen.nodes}
    shares: Counter[tuple[str, ...]] = Counter()
    for run in shown_runs(readings.seen, most_runs)[0]:
        for (node, uuid), uid in readings.held.items():
            if uid == run.uid:
                shares[(*_name(run), node, uuid)] = 1
        for pod in pods[run.uid]:
            shared = min(pod.grant.gpu_milli, WHOLE_MILLI)
            for gpu in nodes[pod.node].gpus if pod.node in nodes else ():
                if gpu.uuid in pod.grant.gpu_uuids and gpu.uuid in told_of:
                    part = (shared if gpu.divisible else gpu.milli) / WHOLE_MILLI
                    shares[(*_name(run), pod.node, gpu.uuid)] += part  # type: ignore[assignment]  # a sum of floats
    sentence = "Part of a GPU that a run holds; multiply fairlead_gpu_* by it."
    yield _family("run_gpu_share", sentence, ["team", "run", "node", "gpu"], shares)


def _bounded(names: Iterable[str]) -> dict[str, str]:
    """Map names to labels: the most frequent to themselves, the others to a single label."""
    counted = Counter(names)
    first = sorted(counted, key=lambda name: (-counted[name], name))
    return {name: name if index < MOST_NAMES else OTHER for index, name in enumerate(first)}


def _family(name: str, sentence: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(f"fairlead_{name}", sentence, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(list(key), value)
    return family


def _gauge(name: str, sentence: str, value: float) -> Metric:
    return GaugeMetricFamily(f"fairlead_{name}", sentence, value=value)


def _histogram(name: str, sentence: str, distribution: Histogram) -> Metric:
    total, buckets = 0, []
    for bound, number in zip((*map(str, distribution.bounds), "+Inf"), distribution.counts, strict=True):
        total += number
        buckets.append((bound, total))
    return HistogramMetricFamily(f"fairlead_{name}", sentence, buckets=buckets, sum_value=distribution.total)


def _dollars(microusd: int | None) -> float | None:
    return None if microusd is None else _usd(microusd)


def _usd(microusd: int) -> float:
    return microusd / MICROUSD
