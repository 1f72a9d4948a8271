"""What this machine's database knows of money: each pod is charged once, whoever dies when, and stays charged."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.ledger_tables import CostGrouping, Price, month_of
from fairlead.cluster.local import store
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.store import PodObservation
from fairlead.cluster.local.tables import PodRow, training_of
from fairlead.control.budget_balances import balances
from fairlead.errors import NotFound
from fairlead.ledger.usage import WHOLE, Holder, UsageInterval, Use
from fairlead.specs.training import Training
from fairlead.state.plan import CreatePod, Plan
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, RankExit, Spending, Workload
from tests.builders import change, node, status, training

HOUR_S = 3600.0
ENDS_PODS = """
import sys
from dataclasses import replace
from pathlib import Path
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.store import PodObservation
from fairlead.state.snapshot import PodPhase

cluster = LocalCluster.open(Path(sys.argv[1]))
print("ready", flush=True)
for row in cluster.store.live_pods():
    pod = replace(row.pod, phase=PodPhase.SUCCEEDED, started_at=row.pod.created_at)
    cluster.store.observe(PodObservation(row=replace(row, pod=pod)), pod.created_at + 3600.0)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    return LocalCluster.open(tmp_path)


def placed(cluster: LocalCluster, name: str, *, cpu_milli: int | None = None, num_pods: int = 1) -> Workload:
    """A run with pods that hold some of this machine's cores; all of them by default."""
    run = cluster.submit(training(name, nodes=num_pods, labels={"model": "gpt", "project": "p"}), environ={})
    grant = Grant(cpu_milli=cluster.node().cpu_milli if cpu_milli is None else cpu_milli)
    create = tuple(CreatePod(attempt=0, index=index, node="localhost", grant=grant) for index in range(num_pods))
    assert cluster.apply(Plan(changes=(change(run, status=status(Phase.STARTING), create=create),))) == (True,)
    return run


def end(cluster: LocalCluster, pod: Pod, after_s: float = HOUR_S) -> None:
    """The pod succeeds so long after its creation; its rank said so then, and it is seen a day later."""
    at = pod.created_at + after_s
    exits = (RankExit(rank=0, exit_code=0, at=at),)
    over = replace(pod, phase=PodPhase.SUCCEEDED, started_at=pod.created_at, exits=exits)
    cluster.store.observe(PodObservation(row=PodRow(pod=over)), at + 24 * HOUR_S)


def price(cluster: LocalCluster, rate: int = 2_500_000, since: float = 0.0) -> None:
    cluster.set_price(Price(node="localhost", from_ms=round(since * 1000), rate=rate, source="test"))


def charged(cluster: LocalCluster) -> dict[str, tuple[int, int]]:
    """Rows and milliseconds by uid."""
    with sqlite3.connect(cluster.home.database) as database:
        rows = database.execute(
            "SELECT h.uid, count(*), sum(u.end_ms - u.start_ms) FROM usage u JOIN holders h ON h.id = u.holder "
            "GROUP BY h.uid"
        ).fetchall()
    return {uid: (number, length_ms) for uid, number, length_ms in rows}


def test_a_pod_that_ends_is_charged_up_to_its_own_end_and_once(cluster: LocalCluster) -> None:
    price(cluster)
    run = placed(cluster, "a")
    (pod,) = cluster.pods(run.uid)
    end(cluster, pod)
    end(cluster, pod, after_s=2 * HOUR_S)
    assert {uid: length_ms for uid, (_, length_ms) in charged(cluster).items()} == {run.uid: 3_600_000}
    assert cluster.cost_of(run) == 2_500_000
    cluster.close()


def test_a_pod_that_lives_is_charged_up_to_now_in_every_grouping(cluster: LocalCluster) -> None:
    run = placed(cluster, "a")
    (pod,) = cluster.pods(run.uid)
    began = pod.created_at
    price(cluster, since=began - HOUR_S)
    keys = {"run": ("a", run.uid), "model": ("gpt",), "team": ("default",), "project": ("p",), "pool": ("localhost",)}
    for word, key in keys.items():
        found = cluster.store.cost(CostGrouping(word), since=began - HOUR_S, until=began + HOUR_S, now=began + HOUR_S)
        assert found.billed_microusd == 5_000_000
        amounts = {(line.key, line.use): line.microusd for line in found.lines}
        rest = ("localhost",) if word == "pool" else None
        assert amounts == {(key, Use.STARTING): 2_500_000, (rest, Use.IDLE): 2_500_000}
    assert cluster.holders()[run.uid].project == "p"
    cluster.close()


def test_gpus_that_several_hold_are_divided_among_them_while_they_do(cluster: LocalCluster) -> None:
    cluster._node = replace(node("localhost", gpus=4), name="localhost")
    price(cluster, rate=4_000_000)
    first, second = (gpu.uuid for gpu in cluster.node().gpus[:2])
    runs = {name: cluster.submit(training(name), environ={}) for name in ("a", "b", "alone")}
    for name, devices in (("a", (first,)), ("b", (first,)), ("alone", (second,))):
        create = (CreatePod(attempt=0, index=0, node="localhost", grant=Grant(gpu_uuids=devices, gpu_milli=1000)),)
        change_ = change(runs[name], status=status(Phase.STARTING), create=create)
        assert cluster.apply(Plan(changes=(change_,))) == (True,)
    (pod,), (other,), (third,) = (cluster.pods(run.uid) for run in runs.values())
    began = max(each.created_at for each in (pod, other, third))
    for each, ended in ((other, began + HOUR_S), (pod, began + 2 * HOUR_S), (third, began + HOUR_S)):
        end(cluster, each, after_s=ended - each.created_at)
    # An hour of a GPU costs a dollar: shared for one hour, alone for the next.
    costs = {name: cluster.cost_of(run) or 0 for name, run in runs.items()}
    assert costs == pytest.approx({"a": 1_500_000, "b": 500_000, "alone": 1_000_000}, abs=3_000)
    found = cluster.store.cost(CostGrouping.RUN, since=began, until=began + HOUR_S, now=began + 30 * HOUR_S)
    assert sum(line.microusd for line in found.lines) == found.billed_microusd == 4_000_000
    idle = sum(line.microusd for line in found.lines if line.use is Use.IDLE)
    assert idle == pytest.approx(2_000_000, abs=3_000)
    cluster.close()


def test_what_a_deleted_run_cost_stays(cluster: LocalCluster) -> None:
    price(cluster)
    run = placed(cluster, "a")
    (pod,) = cluster.pods(run.uid)
    end(cluster, pod)
    now = cluster.get(run.uid)
    cluster.apply(Plan(changes=(change(now, status=status(Phase.STOPPED), intent=Intent.STOP),)))
    assert cluster.forget([cluster.get(run.uid)]) == (True,)
    found = cluster.store.cost(
        CostGrouping.RUN, since=pod.created_at, until=pod.created_at + HOUR_S, now=pod.created_at + HOUR_S
    )
    assert [(line.key, line.microusd) for line in found.lines] == [(("a", run.uid), 2_500_000)]
    cluster.close()


def test_nothing_is_billed_without_a_price_and_only_this_machine_has_one(cluster: LocalCluster) -> None:
    run = placed(cluster, "a")
    assert cluster.cost_of(run) is None
    now = time.time()
    assert cluster.costs(CostGrouping.RUN, since=now - HOUR_S, until=now).billed_microusd == 0
    assert cluster.snapshot().nodes[0].price_per_hour == 0.0
    price(cluster)
    assert cluster.snapshot().nodes[0].price_per_hour == 2.5
    with pytest.raises(NotFound, match="the only one is 'localhost'"):
        cluster.set_price(Price(node="elsewhere", from_ms=0, rate=1, source="test"))
    cluster.close()


def test_pods_of_an_older_database_get_their_shares_and_are_charged(tmp_path: Path) -> None:
    cluster = LocalCluster.open(tmp_path)
    over, going = placed(cluster, "over", cpu_milli=1), placed(cluster, "going", cpu_milli=1)
    end(cluster, cluster.pods(over.uid)[0])
    cluster.close()
    with sqlite3.connect(tmp_path / "fairlead.db") as database:
        for table in ("usage", "usage_days", "holders", "prices"):
            database.execute(f"DROP TABLE {table}")
        database.execute("ALTER TABLE pods DROP COLUMN share")
        database.execute("PRAGMA user_version = 3")
    cluster = LocalCluster.open(tmp_path)
    assert charged(cluster) == {}
    for _ in range(2):
        cluster.store.settle_shares(cluster.share_of)
    assert {uid: length_ms for uid, (_, length_ms) in charged(cluster).items()} == {over.uid: 3_600_000}
    end(cluster, cluster.pods(going.uid)[0])
    assert {uid: length_ms for uid, (_, length_ms) in charged(cluster).items()} == dict.fromkeys(
        (over.uid, going.uid), 3_600_000
    )
    cluster.close()


@pytest.mark.parametrize("num_kills", [3, pytest.param(200, marks=pytest.mark.long)])
def test_a_process_that_is_killed_while_pods_end_loses_and_doubles_no_second(tmp_path: Path, num_kills: int) -> None:
    draw = random.Random(7)
    for number in range(num_kills):
        home = tmp_path / str(number)
        cluster = LocalCluster.open(home)
        price(cluster)
        runs = [placed(cluster, f"run-{n}", cpu_milli=1, num_pods=10) for n in range(20)]
        cluster.close()
        worker = subprocess.Popen(
            [sys.executable, "-c", ENDS_PODS, str(home)], stdout=subprocess.PIPE, start_new_session=True
        )
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        time.sleep(draw.uniform(0.0, 0.1))
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(60)
        worker.stdout.close()
        cluster = LocalCluster.open(home)
        ended = {run.uid: sum(pod.phase.is_final for pod in cluster.pods(run.uid)) for run in runs}
        found = charged(cluster)
        assert {uid: found.get(uid, (0, 0))[1] for uid in ended} == {uid: n * 3_600_000 for uid, n in ended.items()}
        for row in cluster.store.live_pods():
            end(cluster, row.pod)
        assert {uid: length_ms for uid, (_, length_ms) in charged(cluster).items()} == dict.fromkeys(ended, 36_000_000)
        share = cluster.share_of(Grant(cpu_milli=1))
        with sqlite3.connect(home / "fairlead.db") as database:
            (total,) = database.execute("SELECT sum(unit_ms) FROM usage_days").fetchone()
        assert total == 200 * 3_600_000 * share < WHOLE * 10**12
        cluster.close()


def test_the_snapshot_says_what_was_spent_where_somebody_has_a_limit(cluster: LocalCluster) -> None:
    run = cluster.submit(training("bounded", max_cost=5.0), environ={})
    assert cluster.snapshot().spending is None
    price(cluster)
    assert cluster.snapshot().spending == Spending(by_run={run.uid: 0})
    (cluster.home.path / "teams.yaml").write_text("kind: Team\nname: default\nbudget: {monthly: 10}\n")
    spending = cluster.snapshot().spending
    assert spending is not None
    assert spending.by_team == {}
    cluster.close()


def test_what_a_run_spent_is_read_from_its_own_pods(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [placed(cluster, name, cpu_milli=100, num_pods=2) for name in ("a", "b", "c")]
    now = time.time() + HOUR_S
    price(cluster)
    amounts = {run.uid: cluster.store.cost_of(run.uid, now) for run in runs}
    assert all(amounts.values())
    read: list[object] = []

    def counted(text: object) -> Training:
        read.append(text)
        return training_of(text)

    monkeypatch.setattr(store, "training_of", counted)
    assert cluster.store.cost_of(runs[1].uid, now) == amounts[runs[1].uid]
    assert len(read) == 2, "one for each of its own pods"
    cluster.close()


def test_a_team_is_told_once_a_month_how_much_of_its_budget_is_spent(cluster: LocalCluster) -> None:
    run = cluster.submit(training("a"), environ={})
    month = month_of(time.time())[1]
    with cluster.store._transaction():
        cluster.store._ledger.add(
            [
                UsageInterval(
                    node="localhost",
                    holder=Holder(uid="u", run="r", team="default", model="m"),
                    use=Use.PRODUCTIVE,
                    start_ms=round(month * 1000),
                    end_ms=round(month * 1000) + 1000,
                    share=WHOLE,
                )
            ]
        )
    price(cluster, rate=6 * 3600 * 1_000_000, since=month - 1)
    teams = cluster.home.path / "teams.yaml"
    for monthly in (20, 10, 10, 7, 5, 20):
        teams.write_text(f"kind: Team\nname: default\nbudget: {{monthly: {monthly}}}\n# {'x' * monthly}\n")
        os.utime(teams, (monthly, monthly))
        cluster.tell_budgets()
    told = [event.type for event in cluster.events(run.uid) if event.type.startswith("Budget")]
    assert told == ["Budget50", "Budget80", "Budget100"]
    teams.write_text("kind: Team\nnonsense: 1\n")
    cluster.tell_budgets()
    cluster.close()


def test_runs_of_a_project_alone_are_told_how_much_of_its_budget_is_spent(cluster: LocalCluster) -> None:
    same, other = cluster.submit(training("a", labels={"project": "search"}), environ={}), training("b")
    run = cluster.submit(other, environ={})
    since = month_of(time.time())[1]
    held = UsageInterval(
        node="localhost", holder=Holder(uid="u", run="r", team="default", model="m", project="search"),
        use=Use.PRODUCTIVE, start_ms=round(since * 1000), end_ms=round(since * 1000) + 1000, share=WHOLE,
    )  # fmt: skip
    with cluster.store._transaction():
        cluster.store._ledger.add([held, replace(held, holder=Holder(uid="v", run="s", team="default", model="m"))])
    price(cluster, rate=6 * 3600 * 1_000_000, since=since - 1)
    (cluster.home.path / "teams.yaml").write_text(
        "kind: Team\nname: default\nbudget: {monthly: 100}\nproject_budgets: {search: {monthly: 7}}\n"
    )
    spent = cluster.store.spent_this_month(time.time())
    assert spent.by_team == {"default": 12_000_000}
    assert spent.by_project == {("default", "search"): 6_000_000, ("default", ""): 6_000_000}
    cluster.tell_budgets()
    cluster.tell_budgets()
    told = [[each for each in cluster.events(of.uid) if each.type.startswith("Budget")] for of in (same, run)]
    assert [len(each) for each in told] == [1, 0]
    assert "project search of team default has spent 80 % of its budget" in told[0][0].reason.message
    assert [str(each) for each in balances(cluster, time.time())] == [
        "team default has spent $12.00 of $100.00 this month (12%)",
        "project search of team default has spent $6.00 of $7.00 this month (86%)",
    ]
    cluster.close()
