"""What teams and runs may spend: a limit is kept by many that come at once, and by those that run."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy.decide import decide
from fairlead.policy.next_decision import next_decision_at
from fairlead.policy.queue.budgets import RESERVED_S, Account, accounts_of, rate_of, reached_notice
from fairlead.specs.gang import GangSpec
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.team import Budget, Team, WhenSpent
from fairlead.state.plan import Change
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Snapshot, Spending, Status, Workload
from tests.builders import node, status, training

NOW = 1_000_000_000.0
MILLION = 1_000_000
# Four GPUs at a dollar an hour each.
NODE = node(gpus=4, price_per_hour=4.0)
ONE_GPU = Resources(gpu=GpuRequest(milli=1000), cpu_milli=100)


def run(uid: str, state: Status | None = None, **changes: Any) -> Workload:
    spec = training(uid, **{"team": "vision", "resources": ONE_GPU, **changes})
    return Workload(uid=uid, spec=spec, intent=Intent.RUN, status=state or status(), version=1, created_at=NOW - 100)


def pod(uid: str, device: int = 0) -> Pod:
    return Pod(
        uid=f"{uid}-0-0", workload_uid=uid, attempt=0, index=0, node=NODE.name, phase=PodPhase.RUNNING,
        grant=Grant(cpu_milli=100, gpu_uuids=(NODE.gpus[device].uuid,), gpu_milli=1000), created_at=NOW - 60,
        started_at=NOW - 60,
    )  # fmt: skip


def going(uid: str, **changes: Any) -> Workload:
    return run(uid, status(Phase.RUNNING, since=NOW - 60, started_at=NOW - 60), **changes)


def team(monthly: float, when_spent: WhenSpent = WhenSpent.WAIT) -> Team:
    return Team(name="vision", budget=Budget(monthly=monthly, when_spent=when_spent))


def decided(
    *runs: Workload, pods: tuple[Pod, ...] = (), teams: tuple[Team, ...] = (), spending: Spending | None = None
) -> dict[str, Change]:
    snapshot = Snapshot(nodes=(NODE,), workloads=runs, pods=pods, teams=teams, spending=spending)
    return {change.workload_uid: change for change in decide(snapshot, NOW).changes}


def phases(changes: dict[str, Change]) -> dict[str, Phase]:
    return {uid: change.status.phase for uid, change in changes.items() if change.status is not None}


def test_a_run_waits_for_which_its_team_has_no_money_left() -> None:
    waits = run("a", max_duration_s=7200.0, grace_s=0.0)
    found = decided(waits, teams=(team(10.0),), spending=Spending(by_team={"vision": 9 * MILLION}))
    assert found["a"].create == ()
    assert found["a"].status is not None
    reason = found["a"].status.reason
    assert reason.code is Code.OVER_BUDGET
    assert reason.message == "team vision has spent $9.00 of $10.00 this month, and this run would cost $2.00"
    starts = decided(waits, teams=(team(10.0),), spending=Spending(by_team={"vision": 7 * MILLION}))
    assert phases(starts) == {"a": Phase.STARTING}


@given(
    st.floats(0.05, 12.0),
    st.integers(0, 6 * MILLION),
    st.lists(st.tuples(st.floats(60.0, 20_000.0), st.sampled_from([250, 500, 1000, 2000])), min_size=1, max_size=12),
)
def test_many_that_come_at_once_do_not_pass_the_limit_together(
    monthly: float, spent: int, asked: list[tuple[float, int]]
) -> None:
    runs = [
        run(f"run-{n}", max_duration_s=seconds, grace_s=0.0, resources=Resources(gpu=GpuRequest(milli=milli)))
        for n, (seconds, milli) in enumerate(asked)
    ]
    found = decided(*runs, teams=(team(monthly),), spending=Spending(by_team={"vision": spent}))
    started = [each for each in runs if found[each.uid].create]
    cost = sum(rate_of(each.spec, [NODE]) * (each.spec.max_duration_s or 0.0) for each in started)
    assert not started or spent + cost <= monthly * MILLION + len(runs)


def test_what_runs_has_money_set_aside() -> None:
    waits = run("a", max_duration_s=3600.0, grace_s=0.0)
    runs = going("b", max_duration_s=3660.0, grace_s=0.0)
    spending = Spending(by_team={"vision": MILLION})
    assert phases(decided(waits, runs, pods=(pod("b"),), teams=(team(3.1),), spending=spending)) == {
        "a": Phase.STARTING
    }
    found = decided(waits, runs, pods=(pod("b"),), teams=(team(2.9),), spending=spending)
    assert found["a"].status is not None
    assert "$1.00 is set aside for what runs" in found["a"].status.reason.message


def test_of_a_run_of_which_nobody_knows_how_long_it_takes_an_hour_is_set_aside() -> None:
    assert RESERVED_S == 3600.0
    for monthly, phase in ((1.01, Phase.STARTING), (0.99, Phase.PENDING)):
        found = decided(run("a"), teams=(team(monthly),), spending=Spending())
        assert phases(found).get("a", Phase.PENDING) is phase


def test_no_more_is_set_aside_than_a_run_may_cost() -> None:
    waits = run("a", max_cost=0.5, grace_s=0.0)
    assert phases(decided(waits, teams=(team(0.6),), spending=Spending())) == {"a": Phase.STARTING}


def test_a_run_that_has_cost_what_it_may_stops_with_a_checkpoint_and_has_failed() -> None:
    runs = going("a", max_cost=2.0, grace_s=36.0)
    assert decided(runs, pods=(pod("a"),), spending=Spending(by_run={"a": 1_980_000})) == {}
    found = decided(runs, pods=(pod("a"),), spending=Spending(by_run={"a": 1_990_000}))["a"]
    assert found.status is not None
    assert [notice.grace_s for notice in found.terminate] == [36.0]
    assert (found.status.phase, found.status.after_stop.phase) == (Phase.STOPPING, Phase.FAILED)
    assert "--set max_cost=4" in str(found.status.reason.remedy)
    waits = run("a", max_cost=2.0)
    assert phases(decided(waits, spending=Spending(by_run={"a": 2_000_000}))) == {"a": Phase.FAILED}


def test_runs_stop_and_wait_where_their_team_says_so_just_before_all_is_spent() -> None:
    runs = going("a", grace_s=36.0)
    spending = Spending(by_team={"vision": 9_995_000})
    assert decided(runs, pods=(pod("a"),), teams=(team(10.0),), spending=spending) == {}
    stops = (team(10.0, WhenSpent.STOP),)
    assert decided(runs, pods=(pod("a"),), teams=stops, spending=Spending(by_team={"vision": 9_980_000})) == {}
    found = decided(runs, pods=(pod("a"),), teams=stops, spending=spending)["a"]
    assert found.status is not None
    assert (found.status.phase, found.status.after_stop.phase) == (Phase.STOPPING, Phase.PENDING)
    waits = replace(run("a"), status=status(Phase.PENDING))
    again = decided(waits, teams=stops, spending=spending)["a"]
    assert again.status is not None
    assert again.status.reason.code is Code.OVER_BUDGET


def test_a_limit_that_cannot_be_kept_is_refused_and_not_ignored() -> None:
    for waits, teams in ((run("a", max_cost=5.0), ()), (run("a"), (team(5.0),))):
        found = decided(waits, teams=teams, spending=None)["a"]
        assert found.status is not None
        assert (found.create, found.status.reason.code) == ((), Code.OVER_BUDGET)
        assert "what runs cost is not known here" in found.status.reason.message


def test_who_waits_looks_again_when_a_limit_is_reached() -> None:
    # A GPU costs a dollar an hour, so that a cent is 36 seconds of a run.
    run_of = going("a", max_cost=2.0, grace_s=36.0)
    snapshot = Snapshot(
        nodes=(NODE,), workloads=(run_of,), pods=(pod("a"),), spending=Spending(by_run={"a": 1_970_000})
    )
    assert next_decision_at(snapshot, NOW) == NOW + 72.0
    stops = replace(
        snapshot,
        workloads=(going("a", grace_s=36.0), going("b", grace_s=36.0)),
        pods=(pod("a"), pod("b", 1)),
        teams=(team(10.0, WhenSpent.STOP),),
        spending=Spending(by_team={"vision": 9_900_000}),
    )
    assert next_decision_at(stops, NOW) == NOW + 144.0
    assert next_decision_at(replace(stops, teams=(team(10.0),)), NOW) == math.inf
    assert next_decision_at(replace(stops, spending=None), NOW) == math.inf


def test_other_teams_are_not_concerned() -> None:
    spending = Spending(by_team={"vision": 100 * MILLION})
    assert phases(decided(run("a", team="text"), teams=(team(1.0),), spending=spending)) == {"a": Phase.STARTING}


def test_half_four_fifths_and_all_of_a_budget_are_told_of() -> None:
    (account,) = accounts_of([team(10.0)])
    found = [
        reached_notice(account, Spending(by_team={"vision": spent * MILLION})) for spent in (4, 5, 7, 8, 9, 10, 12)
    ]
    assert [None if each is None else each[0] for each in found] == [None, 50, 50, 80, 80, 100, 100]
    assert found[3] is not None
    assert found[3][1].message == "team vision has spent 80 % of its budget this month: $8.00 of $10.00"
    assert accounts_of([Team(name="vision")]) == ()


def projects(monthly: float | None = None, **of: Budget) -> Team:
    return Team(name="vision", budget=None if monthly is None else Budget(monthly=monthly), project_budgets=of)


def spent_of(**amounts: float) -> Spending:
    by_project = {("vision", name): round(amount * MILLION) for name, amount in amounts.items()}
    return Spending(by_team={"vision": sum(by_project.values())}, by_project=by_project)


def test_a_run_waits_for_which_its_project_has_no_money_left_and_others_of_the_team_start() -> None:
    teams = (projects(100.0, search=Budget(monthly=10.0)),)
    same: dict[str, Any] = {"max_duration_s": 7200.0, "grace_s": 0.0}
    found = decided(
        run("a", labels={"project": "search"}, **same), run("b", labels={"project": "ads"}, **same), run("c", **same),
        teams=teams, spending=spent_of(search=9.0),
    )  # fmt: skip
    assert phases(found) == {"a": Phase.PENDING, "b": Phase.STARTING, "c": Phase.STARTING}
    assert found["a"].status is not None
    reason = found["a"].status.reason
    assert reason.code is Code.OVER_BUDGET
    assert reason.message == (
        "project search of team vision has spent $9.00 of $10.00 this month, and this run would cost $2.00"
    )
    assert reason.remedy is not None
    assert "`project_budgets` of team vision" in reason.remedy


def test_many_of_a_project_that_come_at_once_do_not_pass_its_limit_nor_that_of_the_team() -> None:
    same: dict[str, Any] = {"max_duration_s": 3600.0, "grace_s": 0.0, "labels": {"project": "search"}}
    runs = [run(f"run-{number}", **same) for number in range(4)]
    for teams in (projects(None, search=Budget(monthly=2.5)), projects(2.5, search=Budget(monthly=100.0))):
        found = phases(decided(*runs, teams=(teams,), spending=spent_of()))
        assert sorted(found.values()).count(Phase.STARTING) == 2


def test_only_runs_of_a_project_stop_whose_budget_is_spent() -> None:
    stops = Budget(monthly=10.0, when_spent=WhenSpent.STOP)
    runs = (going("a", labels={"project": "search"}, grace_s=60.0), going("b", labels={"project": "ads"}))
    held, teams = (pod("a", 0), pod("b", 1)), (projects(1000.0, search=stops),)
    # A checkpoint of a minute costs a sixtieth of a dollar.
    found = decided(*runs, pods=held, teams=teams, spending=spent_of(search=9.99))
    assert set(found) == {"a"}
    assert found["a"].status is not None
    assert "project search of team vision has spent $9.99 of $10.00" in found["a"].status.reason.message
    before = Snapshot(nodes=(NODE,), workloads=runs, pods=held, teams=teams, spending=spent_of(search=9.0))
    assert decide(before, NOW).changes == ()
    # A dollar less the checkpoint, at a dollar an hour.
    at = next_decision_at(before, NOW)
    assert at is not None
    assert at == pytest.approx(NOW + 3600.0 - 60.0)
    notice = reached_notice(accounts_of(teams)[1], spent_of(search=9.99))
    assert notice is not None
    assert notice[1].message.startswith("project search of team vision has spent 80 % of its budget")


def test_a_thousand_that_are_submitted_at_once_do_not_pass_the_limit() -> None:
    nodes = tuple(node(f"node-{n}", gpus=8, price_per_hour=8.0, cpu_milli=64_000) for n in range(125))
    runs = tuple(run(f"run-{n}", max_duration_s=3600.0, grace_s=0.0) for n in range(1_000))
    spent = Spending(by_team={"vision": 40 * MILLION})
    seen = Snapshot(nodes=nodes, workloads=runs, pods=(), teams=(team(100.0),), spending=spent)
    started = [change for change in decide(seen, NOW).changes if change.create]
    # There is room for all of them, and money for an hour, and a second to end in, of fifty-nine.
    assert len(started) == 59


def test_a_pass_reads_the_price_of_each_running_run_a_few_times_however_many_share_a_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    charged = list[str]()
    charges = Account.charges

    def counted(account: Account, spec: GangSpec) -> bool:
        charged.append(spec.name)
        return charges(account, spec)

    monkeypatch.setattr(Account, "charges", counted)
    runs = [going(f"run-{number}") for number in range(60)]
    spent = Spending(by_team={"vision": 5 * MILLION})
    decided(*runs, pods=tuple(pod(run.uid) for run in runs), teams=(team(100.0, WhenSpent.STOP),), spending=spent)
    assert 60 <= len(charged) <= 5 * 60
