"""Readings as metrics: names by the conventions, figures those of the ledger, and a bounded number of series."""

import re
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from fairlead.control.metrics.exposition import MOST_NAMES, MOST_NODES, MOST_RUNS, OTHER, exposition
from fairlead.control.metrics.readings import GpuReading, Readings, RunUsage, pool_of
from fairlead.control.pass_counts import PassCounts
from fairlead.ledger.goodput import Goodput
from fairlead.specs.serving import Replica
from fairlead.specs.team import Budget, Team
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Progress, Snapshot, Workload
from tests.builders import node, status, training

NOW = 1_000_000_100.0
GUIDE = Path(__file__).parents[2] / "docs" / "monitoring.md"


def run(name: str, phase: Phase = Phase.RUNNING, *, team: str = "default", **changes: object) -> Workload:
    return Workload(
        uid=name, spec=training(name, team=team, **changes), intent=Intent.RUN, status=status(phase), version=1,
        created_at=1_000_000_000.0,
    )  # fmt: skip


def pod(uid: str, grant: Grant, *, on: str = "node-0") -> Pod:
    return Pod(
        uid=f"{uid}-0-0", workload_uid=uid, attempt=0, index=0, node=on, grant=grant, phase=PodPhase.RUNNING,
        created_at=NOW - 90, started_at=NOW - 80, active_at=NOW - 7,
    )  # fmt: skip


def values(readings: Readings) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Samples by name and labels."""
    families = text_string_to_metric_families(exposition(readings).decode())
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def value(readings: Readings, name: str, **labels: str) -> float | None:
    return values(readings).get((f"fairlead_{name}", frozenset(labels.items())))


def test_a_run_has_progress_goodput_money_and_its_part_of_a_gpu() -> None:
    a = replace(run("a"), progress=Progress(step=5, loss=0.5, checkpoint_at=NOW - 30, updated_at=NOW))
    seen = Snapshot(
        nodes=(node(gpus=4, price_per_hour=8.0),),
        workloads=(a,),
        pods=(pod("a", Grant(cpu_milli=1000, gpu_uuids=("node-0-gpu-1",), gpu_milli=250)),),
    )
    usage = RunUsage(
        goodput=Goodput(ratio=0.75, seconds={"productive": 60.0, "redone": 20.0}, waiting_s=10.0),
        cost_microusd=1_500_000,
    )
    gpus = (GpuReading(node="node-0", uuid="node-0-gpu-1", utilization=0.4, power_watts=100.0),)
    readings = Readings(now=NOW, seen=seen, usage={"a": usage}, gpus=gpus)
    own = {"team": "default", "run": "a"}
    assert value(readings, "run_step", **own) == 5
    assert value(readings, "run_checkpoint_age_seconds", **own) == 30
    assert value(readings, "run_silent_seconds", **own) == 7
    assert value(readings, "run_goodput_ratio", **own) == 0.75
    assert value(readings, "run_pod_seconds", **own, use="redone") == 20
    assert value(readings, "run_waiting_seconds", **own) == 10
    assert value(readings, "run_cost_dollars", **own) == 1.5
    assert value(readings, "run_cost_dollars_per_hour", **own) == 0.5
    assert value(readings, "run_gpus_held", **own) == 0.25
    assert value(readings, "run_gpu_share", **own, node="node-0", gpu="node-0-gpu-1") == 0.25
    assert value(readings, "gpu_power_watts", node="node-0", gpu="node-0-gpu-1") == 100
    assert value(readings, "node_gpus_held", node="node-0", pool="node") == 0.25
    assert value(readings, "gpu_temperature_celsius", node="node-0", gpu="node-0-gpu-1") is None


def test_the_queue_is_told_by_team_and_reason() -> None:
    seen = Snapshot(nodes=(node(),), workloads=(run("a", Phase.PENDING, team="x"), run("b", team="y")), pods=())
    readings = Readings(now=NOW, seen=seen)
    assert value(readings, "queued_runs", team="x", reason="Reported") == 1
    assert value(readings, "queue_oldest_wait_seconds", team="x") == 100
    assert value(readings, "queue_oldest_wait_seconds", team="y") == 0
    assert value(readings, "runs", phase="Pending", team="x", kind="Training") == 1
    assert value(readings, "unfinished_runs") == 2
    assert value(readings, "loop_running") == 0


def test_a_server_that_nobody_asks_is_not_silent() -> None:
    replica = replace(run("a"), spec=Replica(name="a", run="serve", ranks_per_node=1))
    seen = Snapshot(nodes=(node(),), workloads=(replica, run("b")), pods=())
    readings = Readings(now=NOW, seen=seen)
    assert value(readings, "run_silent_seconds", team="default", run="a") is None
    assert value(readings, "run_silent_seconds", team="default", run="b") == 100
    assert value(readings, "runs", phase="Running", team="default", kind="Replica") == 1


def test_runs_that_are_over_have_no_series() -> None:
    found = values(Readings(now=NOW, seen=Snapshot(nodes=(), workloads=(run("a", Phase.SUCCEEDED),), pods=())))
    assert not [labels for _, labels in found if ("run", "a") in labels]


def test_the_number_of_series_is_bounded() -> None:
    def series(size: int) -> int:
        runs = tuple(run(f"r{n}", team=f"t{n}", labels={"model": f"m{n}"}) for n in range(size))
        teams = tuple(Team(name=f"t{n}", budget=Budget(monthly=1.0)) for n in range(size))
        seen = Snapshot(nodes=tuple(node(f"n{n:05}x") for n in range(size)), workloads=runs, pods=(), teams=teams)
        month = {(f"t{n}", use): 1 for n in range(size) for use in ("productive", "idle")}
        return len(values(Readings(now=NOW, seen=seen, month=month, models={f"m{n}": n for n in range(size)})))

    many = max(MOST_RUNS, MOST_NODES, MOST_NAMES) + 1
    assert series(many) == series(many + 500)


def test_what_is_beyond_a_bound_is_summed_up_or_counted() -> None:
    runs = tuple(run(f"r{n}") for n in range(MOST_RUNS + 3))
    month = {(f"t{n}", "productive"): 1_000_000 for n in range(MOST_NAMES + 2)}
    nodes = tuple(node(f"n{n}x") for n in range(MOST_NODES + 4))
    seen = Snapshot(nodes=nodes, workloads=runs, pods=(pod("r500", Grant(cpu_milli=1), on="n1x"),))
    found = values(Readings(now=NOW, seen=seen, month=month))
    assert found["fairlead_runs_left_out", frozenset()] == 3
    assert found["fairlead_month_cost_dollars", frozenset({("team", OTHER), ("use", "productive")})] == 2
    ready = {labels: each for (name, labels), each in found.items() if name == "fairlead_node_ready"}
    assert sum(ready.values()) == MOST_NODES + 4
    # Those that hold something go first, or nobody would see what they do.
    assert (
        "fairlead_run_phase_seconds",
        frozenset({("team", "default"), ("run", "r500"), ("phase", "Running")}),
    ) in found


def test_names_follow_the_conventions_and_are_in_the_guide() -> None:
    seen = Snapshot(nodes=(node(gpus=1),), workloads=(run("a"),), pods=())
    text = exposition(Readings(now=NOW, seen=seen, counts=PassCounts())).decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert kinds
    for name, kind in kinds.items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"(_ms|_milli|_percent|_minutes|_microusd)(_|$)", name), name
    told = set(re.findall(r"`(fairlead_\w+)`", GUIDE.read_text().split("## All metrics")[1].split("\n\nTo get GPU")[0]))
    assert told == set(kinds)


def test_a_hostile_label_stays_one_value() -> None:
    model = 'a"} 1\nfairlead_evil 2'
    seen = Snapshot(nodes=(node(),), workloads=(), pods=())
    found = values(Readings(now=NOW, seen=seen, models={model: 1_000_000}))
    assert found["fairlead_model_month_cost_dollars", frozenset({("model", model)})] == 1
    assert "fairlead_evil" not in {name for name, _ in found}


def test_a_pool_is_a_label_or_else_the_name_without_its_number() -> None:
    assert pool_of(node("a-3")) == "a"
    assert pool_of(node("localhost")) == "localhost"
    assert pool_of(node("ip-10-0-0-1.internal", labels={"karpenter.sh/nodepool": "spot"})) == "spot"
