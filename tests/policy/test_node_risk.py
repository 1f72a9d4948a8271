"""The posterior of unreliable nodes, what is charged to them, where gangs are placed, and which nodes are taken out."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.contract import environment
from fairlead.policy.decide import decide
from fairlead.policy.health.incidents import blamed_program, failed_on, is_of_program, with_incident
from fairlead.policy.health.node_risk import (
    HEALTHY_PER_DAY,
    LEAST_EVIDENCE,
    charged,
    evidence_bits,
    failure_rate,
    forgotten,
    gang_failures_per_day,
    lemon_chance,
    returned,
    risks_of,
    taken_out,
)
from fairlead.policy.health.node_withdrawal import failure_cost_days, withdrawals
from fairlead.policy.kinds.failures import Blame, Failure
from fairlead.policy.pass_cache import PassCache
from fairlead.policy.placement.packed_capacity import PackedRooms
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.placement.task_mix import TaskMix
from fairlead.specs.training import Checkpoint
from fairlead.state.node_health import FailureCause, Incident, NodeHistory, NodeOutage
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.scheduling_policy import SchedulingPolicy
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, RankExit, Snapshot, Workload
from tests.builders import node, status, training

DAY_S = 86400.0
NOW = 20 * DAY_S
NODES = tuple(node(f"n-{number}", gpus=1, price_per_hour=10.0) for number in range(20))
WHOLE = Shape(num_gpus=1, gpu_milli=1000)


def failing(*days: float, name: str = "n-0") -> dict[str, NodeHistory]:
    """Return the histories after failures of one node on these days, in service since day 0."""
    histories: dict[str, NodeHistory] = {}
    for day in days:
        incident = Incident(at=day * DAY_S, run="train", cause=FailureCause.UNREADY, nodes=(name,))
        histories = charged(histories, incident, {name: 0.0})
    return histories


def gang_on(*names: str, **changes: Any) -> tuple[Workload, tuple[Pod, ...]]:
    """Return a running gang with a pod on each node, and its pods."""
    spec = training(nodes=len(names), checkpoint=Checkpoint(every_s=DAY_S / 2))
    state = status(Phase.RUNNING, **changes)
    run = Workload(uid="w", spec=spec, intent=Intent.RUN, status=state, version=1, created_at=0.0)
    pods = tuple(
        Pod(uid=f"w-0-{index}", workload_uid="w", attempt=0, index=index, node=name, grant=Grant(),
            phase=PodPhase.RUNNING, created_at=0.0)
        for index, name in enumerate(names)
    )  # fmt: skip
    return run, pods


def failure(code: Code, name: str = "") -> Failure:
    return Failure(blame=Blame.INFRASTRUCTURE, reason=Reason(code=code, message="it failed"), node=name)


def snapshot(histories: dict[str, NodeHistory], **changes: Any) -> Snapshot:
    run, pods = gang_on(*(each.name for each in NODES[10:]))
    return Snapshot(**{
        "nodes": NODES, "workloads": (run,), "pods": pods, "node_health": histories, "withdraws_nodes": True, **changes,
    })  # fmt: skip


def test_a_node_without_failures_becomes_less_suspicious_and_one_with_many_certain() -> None:
    new = NodeHistory(node="n", since=0.0)
    assert lemon_chance(new, 0.0) == pytest.approx(0.012)
    assert lemon_chance(new, 60 * DAY_S) < 0.001
    chances = [lemon_chance(failing(*days)["n-0"], NOW) for days in ((18,), (16, 18), (14, 16, 18), (12, 14, 16, 18))]
    assert chances == sorted(chances)
    assert chances[0] < 0.1
    assert chances[3] > 0.99


def test_a_likelihood_ratio_of_two_failures_is_that_of_the_formula() -> None:
    # Gamma(3) / ((d + 2.5) * .0018)^2 with d = 60 days / ln 2 * (1 - 2^(-20 / 60)).
    history = replace(NodeHistory(node="n", since=0.0), failures=2.0, at=NOW)
    assert evidence_bits(history, NOW) == 10  # log2(2 / (20.35 * .0018)^2) = 10.5
    assert evidence_bits(replace(history, failures=0.0), NOW) == 0
    new = replace(history, since=NOW, at=NOW)
    few, enough = (replace(new, failures=factor * LEAST_EVIDENCE) for factor in (0.999, 1.2))
    assert (evidence_bits(few, NOW), evidence_bits(enough, NOW)) == (0, 1)


def test_failures_count_half_after_sixty_days() -> None:
    bits = [evidence_bits(failing(1, 2, 3)["n-0"], day * DAY_S) for day in (3, 63, 183)]
    assert bits == sorted(bits, reverse=True)
    assert bits[-1] < 4 < bits[0]


def test_a_failure_without_a_known_node_is_shared_by_risk() -> None:
    histories = failing(10, 12)
    shared = Incident(at=14 * DAY_S, run="train", cause=FailureCause.HANG, nodes=("n-0", "n-1", "n-2"))
    after = charged(histories, shared, {})
    shares = {name: history.recent[-1].share for name, history in after.items()}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["n-0"] > 0.9
    assert shares["n-1"] == pytest.approx(shares["n-2"])


def test_a_node_that_comes_back_starts_anew_under_more_suspicion() -> None:
    back = returned(failing(10, 12)["n-0"], NOW)
    assert lemon_chance(back, NOW) == pytest.approx(0.1)
    assert len(back.recent) == 2


def test_a_lost_node_is_charged_and_a_kill_is_shared_among_the_gang() -> None:
    run, pods = gang_on("a", "b")
    change = Change(workload_uid="w", version=1)
    lost = with_incident(change, run, failure(Code.NODE_LOST, "b"), pods, 5.0, progressed=True)
    assert lost.incident == Incident(
        at=5.0, team="default", run="train", cause=FailureCause.UNREADY, nodes=("b",), is_charged=True
    )
    killed = with_incident(change, run, failure(Code.KILLED), pods, 5.0, progressed=True)
    assert killed.incident is not None
    assert killed.incident.nodes == ("a", "b")
    assert killed.incident.is_charged
    again = with_incident(change, run, failure(Code.KILLED), pods, 5.0, progressed=False)
    assert again.incident is not None
    assert not again.incident.is_charged, "without progress it may be the program"


def test_an_exit_of_the_program_is_listed_for_the_node_of_its_first_rank_and_charged_to_none() -> None:
    run, pods = gang_on("a", "b")
    change = Change(workload_uid="w", version=1)
    ended = (pods[0], replace(pods[1], exits=(RankExit(rank=1, exit_code=1, at=4.0),)))
    own = replace(failure(Code.PROGRAM_FAILED), blame=Blame.PROGRAM)
    listed = with_incident(change, run, own, ended, 5.0, progressed=True).incident
    assert listed == Incident(
        at=5.0, team="default", run="train", cause=FailureCause.PROGRAM, nodes=("b",), is_charged=False
    )
    assert failed_on(run, own, ended, progressed=False) == (), "it does not make the next kill a program's fault"
    by_itself = replace(failure(Code.KILLED), is_exit_code=True)
    given = with_incident(change, run, by_itself, pods, 5.0, progressed=True).incident
    assert given is not None
    assert (given.cause, given.is_charged) == (FailureCause.PROGRAM, False)
    memory = with_incident(change, run, failure(Code.OUT_OF_MEMORY), ended, 5.0, progressed=True)
    assert memory.incident is None, "a memory limit is nobody's failure"


def test_a_team_cannot_spoil_a_node_by_failing_there() -> None:
    histories: dict[str, NodeHistory] = {}
    for number in range(40):
        kill = Incident(at=float(number), team="a", run=f"r-{number}", cause=FailureCause.UNKNOWN, nodes=("n",))
        histories = charged(histories, kill, {"n": 0.0})
    assert histories["n"].failures == pytest.approx(1.0, rel=1e-3)
    assert not withdrawals(snapshot({**histories, "n-0": replace(histories["n"], node="n-0")}), NOW)
    other = Incident(at=50.0, team="b", run="r", cause=FailureCause.UNKNOWN, nodes=("n",))
    histories = charged(histories, other, {})
    assert histories["n"].failures == pytest.approx(2.0, rel=1e-3), "another team's failure counts by itself"
    lost = Incident(at=60.0, team="a", run="r", cause=FailureCause.UNREADY, nodes=("n",))
    assert charged(histories, lost, {})["n"].failures == pytest.approx(3.0, rel=1e-3), "no program takes a node down"


def test_failures_of_one_run_count_once_for_a_node() -> None:
    histories: dict[str, NodeHistory] = {}
    for at, cause in enumerate((FailureCause.UNKNOWN, FailureCause.HANG, FailureCause.UNKNOWN)):
        histories = charged(histories, Incident(at=float(at), team="a", run="r", cause=cause, nodes=("n",)), {})
    assert histories["n"].failures == pytest.approx(1.0)
    assert [(one.cause, one.at) for one in histories["n"].recent] == [("hang", 1.0), ("unknown", 2.0)]


def test_many_small_shares_do_not_push_a_failure_of_the_node_itself_out_of_its_history() -> None:
    histories = failing(10)
    for number in range(100):
        names = ("n-0", *(f"other-{other}" for other in range(63)))
        kill = Incident(at=11 * DAY_S, team=f"t-{number}", run="r", cause=FailureCause.UNKNOWN, nodes=names)
        histories = charged(histories, kill, dict.fromkeys(names, 0.0))
    assert any(one.cause is FailureCause.UNREADY for one in histories["n-0"].recent)
    assert len(histories["n-0"].recent) == 16
    assert len(histories["n-0"].by_team) == 8


def test_a_history_is_forgotten_when_its_failures_weigh_nothing() -> None:
    histories = failing(10)
    assert forgotten(histories, (), NOW) == histories, "also without its node, which may come back"
    assert forgotten(histories, (), 400 * DAY_S) == {}
    out = {"n-0": taken_out(histories["n-0"], "it failed", NOW)}
    assert forgotten(out, ("n-0",), 400 * DAY_S) == out
    assert forgotten(out, (), 400 * DAY_S) == {}
    many = {f"n-{number}": replace(histories["n-0"], failures=1.0 + number) for number in range(1200)}
    left = forgotten(many, (), NOW)
    assert len(left) == 1000
    assert "n-199" not in left
    assert "n-200" in left


def test_a_run_that_failed_on_three_nodes_in_a_row_is_itself_at_fault() -> None:
    nodes: tuple[str, ...] = ()
    for number, name in enumerate(("a", "b", "c"), 1):
        run, pods = gang_on(name, failed_on=nodes)
        killed = failure(Code.KILLED)
        nodes = failed_on(run, killed, pods, progressed=number == 1)
        assert is_of_program(killed, nodes) is (number == 3)
    assert "it failed on a, b and c in a row" in blamed_program(killed, nodes).reason.message
    change = with_incident(Change(workload_uid="w", version=1), run, killed, pods, 5.0, progressed=False)
    assert change.incident is not None
    assert (change.incident.cause, change.incident.is_charged) == (FailureCause.PROGRAM, False)
    assert failed_on(run, killed, pods, progressed=True) == ("c",), "progress ends the row"


def test_wide_gangs_avoid_nodes_with_failures_and_narrow_ones_take_them() -> None:
    nodes = tuple(node(f"n-{number}", gpus=1) for number in range(64))
    risks = {"n-7": 4, "n-9": 1}
    wide = PackedRooms.of(nodes, (), TaskMix(), risks).place(WHOLE, 62)
    assert wide is not None
    assert {"n-7", "n-9"}.isdisjoint(name for name, _ in wide)
    narrow = PackedRooms.of(nodes, (), TaskMix(), risks).place(WHOLE, 1)
    assert narrow is not None
    assert narrow[0][0] == "n-7"
    whole = PackedRooms.of(nodes, (), TaskMix(), risks).place(WHOLE, 64)
    assert whole is not None, "nothing that fits is refused"


def test_on_few_nodes_every_gang_avoids_failures() -> None:
    for name in ("n-0", "n-1"):
        placed = PackedRooms.of(NODES[:2], (), TaskMix(), {name: 3}).place(WHOLE, 1)
        assert placed is not None
        assert placed[0][0] != name


def test_risks_are_those_of_the_snapshot_unless_the_rules_ignore_them() -> None:
    seen = snapshot(failing(18))
    assert set(risks_of(seen, NOW)) == {"n-0"}
    assert risks_of(replace(seen, rules=SchedulingPolicy(places_by_risk=False)), NOW) == {}


def test_a_node_is_taken_out_before_anything_is_placed_when_its_failures_cost_more_than_its_repair() -> None:
    seen = snapshot(failing(14, 16, 18))
    assert failure_cost_days(seen) == pytest.approx(10 * (600 + DAY_S / 4) / DAY_S)
    (one,) = withdrawals(seen, NOW)
    assert one.node == "n-0"
    assert "3 failures in 6.0 days" in one.why
    assert "against $1200.00" in one.why
    assert decide(seen, NOW).withdrawn == (one,)
    assert decide(seen, NOW, PassCache()).withdrawn == (one,)


@pytest.mark.parametrize("changes", [
    {"node_health": failing(18)},
    {"workloads": (), "pods": ()},
    {"withdraws_nodes": False},
    {"rules": SchedulingPolicy(withdraws_nodes=False)},
    {"node_health": {"n-0": replace(failing(14, 16, 18)["n-0"], out=NodeOutage(since=0.0, why="failed"))}},
], ids=["one failure", "no run to protect", "a cluster that cannot", "rules against it", "out already"])  # fmt: skip
def test_a_node_stays(changes: dict[str, Any]) -> None:
    assert withdrawals(replace(snapshot(failing(14, 16, 18)), **changes), NOW) == ()


def test_never_more_than_a_fifth_of_the_nodes_are_away() -> None:
    names = [f"n-{number}" for number in range(8)]
    histories = {name: failing(14, 16, 18, name=name)[name] for name in names}
    assert len(withdrawals(snapshot(histories), NOW)) == 4
    away = tuple(replace(each, ready=False) if each.name in ("n-18", "n-19") else each for each in NODES)
    assert len(withdrawals(snapshot(histories, nodes=away), NOW)) == 2


def test_the_failures_of_a_gang_are_those_of_its_very_nodes() -> None:
    bad = failing(10, 12, 14, 16)
    seen = snapshot(bad)
    assert gang_failures_per_day(seen, ["n-1", "n-2"], NOW) is None, "of nodes that never failed nothing is known"
    expected = failure_rate(bad["n-0"], NOW) + HEALTHY_PER_DAY
    assert gang_failures_per_day(seen, ["n-0", "n-1"], NOW) == pytest.approx(expected)
    fixed = snapshot(bad, rules=SchedulingPolicy(places_by_risk=False))
    assert gang_failures_per_day(fixed, ["n-0"], NOW) is None


@pytest.mark.parametrize(("every_auto", "is_known"), [(True, True), (None, False)])
def test_a_run_that_chooses_its_interval_gets_the_failures_of_the_nodes_where_it_starts(
    every_auto: bool | None, is_known: bool
) -> None:
    bad = failing(10, 12, 14, 16)
    run = Workload(
        uid="u", spec=training("train", checkpoint=Checkpoint(every_auto=every_auto)), intent=Intent.RUN, version=1,
        created_at=NOW, status=status(),
    )  # fmt: skip
    seen = Snapshot(nodes=(node("n-0"),), workloads=(run,), pods=(), node_health=bad)
    (change,) = decide(seen, NOW).changes
    assert change.status is not None
    rate = change.status.failures.nodes_per_day
    assert rate == (pytest.approx(failure_rate(bad["n-0"], NOW)) if is_known else None)
    variables = environment(
        replace(run, status=change.status), attempt=0, index=0, pod_uid="p", pod_dir="/p", run_dir="/r",
        checkpoint_to=None, master=("m", 1), hosts="m", key_file="/k", data_dir="/d", secrets_dir="/s",
    )  # fmt: skip
    assert ("FAIRLEAD_NODE_FAILURES_PER_DAY" in variables) is is_known
