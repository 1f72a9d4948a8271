"""Who starts, who waits and what for, and who has to give way: whole plans on small clusters."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.pass_cache import PassCache
from fairlead.policy.queue.start_forecast import expected_starts
from fairlead.specs.network import FabricChoice, Network
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.team import Quota, Team
from fairlead.state.plan import Plan
from fairlead.state.reasons import Code
from fairlead.state.scheduling_policy import POLICIES, SchedulingPolicy
from fairlead.state.snapshot import (
    Grant,
    Intent,
    Node,
    Phase,
    Pod,
    PodPhase,
    Progress,
    RankExit,
    Snapshot,
    Status,
    Workload,
)  # fmt: skip
from tests.builders import node, status, training

NOW = 1_000_000_000.0
NODES = (node("n0", gpus=4, cpu_milli=64_000), node("n1", gpus=4, cpu_milli=64_000))


def spec(name: str, gpus: int, **changes: Any) -> Any:
    values = {"resources": Resources(gpu=GpuRequest(milli=1000 * gpus)), "grace_s": 30.0, **changes}
    return training(name, **values)


def waiting(name: str, gpus: int, *, age_s: float = 1.0, **changes: Any) -> Workload:
    state = status(since=NOW - age_s)
    return Workload(
        uid=name, spec=spec(name, gpus, **changes), intent=Intent.RUN, status=state, version=1, created_at=NOW - age_s
    )


def running(
    name: str, on: str, gpus: range, *, began_s: float = 1000.0, progress: Progress | None = None, **changes: Any
) -> tuple[Workload, Pod]:
    """One pod on these devices of a node, since so many seconds."""
    began = NOW - began_s
    workload = Workload(
        uid=name,
        spec=spec(name, len(gpus), **changes),
        intent=Intent.RUN,
        status=status(Phase.RUNNING, started_at=began),
        version=1,
        created_at=began,
        progress=progress,
    )
    grant = Grant(gpu_uuids=tuple(f"{on}-gpu-{i}" for i in gpus), gpu_milli=1000)
    pod = Pod(
        uid=f"{name}-0-0", workload_uid=name, attempt=0, index=0, node=on, grant=grant, phase=PodPhase.RUNNING,
        created_at=began, started_at=began,
    )  # fmt: skip
    return workload, pod


def look(
    held: Sequence[tuple[Workload, Pod]],
    *queue: Workload,
    nodes: tuple[Node, ...] = NODES,
    teams: tuple[Team, ...] = (),
) -> Snapshot:
    return Snapshot(
        nodes=nodes,
        workloads=(*(workload for workload, _ in held), *queue),
        pods=tuple(pod for _, pod in held),
        teams=teams,
    )


def decided(snapshot: Snapshot, rules: str = "default") -> dict[str, str]:
    """What becomes of each run, in a word."""
    return {change.workload_uid: _word(change.status) for change in _plan(snapshot, POLICIES[rules]).changes}


def giving_way(snapshot: Snapshot) -> list[str]:
    """Uids of those that are stopped."""
    return [change.workload_uid for change in _plan(snapshot).changes if change.terminate]


def told(snapshot: Snapshot, name: str) -> Status:
    found = next(change.status for change in _plan(snapshot).changes if change.workload_uid == name)
    assert found is not None
    return found


def _plan(snapshot: Snapshot, rules: SchedulingPolicy = POLICIES["default"]) -> Plan:
    return decide(replace(snapshot, rules=rules), NOW)


def _word(found: Status | None) -> str:
    assert found is not None
    if found.phase is Phase.PENDING and found.reason.code is Code.WAITING_FOR_TURN:
        return "behind"
    return {Phase.STARTING: "starts", Phase.STOPPING: "gives way", Phase.PENDING: "waits"}[found.phase]


FULL = (running("long", "n0", range(4), max_duration_s=4000.0), running("half", "n1", range(2), max_duration_s=1600.0))


@pytest.mark.parametrize(
    ("rules", "outcome"),
    [("fifo", "behind"), ("backfill", "starts"), ("conservative", "starts"), ("default", "starts")],
)
def test_a_short_run_passes_the_first_where_it_is_over_in_time(rules: str, outcome: str) -> None:
    first, short = waiting("first", 4, age_s=9), waiting("short", 2, max_duration_s=500.0)
    assert decided(look(FULL, first, short), rules) == {"first": "waits", "short": outcome}


def test_a_run_that_would_delay_the_first_waits_and_one_beside_it_does_not() -> None:
    first = waiting("first", 3, age_s=9)
    long, beside = waiting("late", 2, max_duration_s=5000.0), waiting("beside", 1, max_duration_s=5000.0)
    assert decided(look(FULL, first, long, beside)) == {"first": "waits", "late": "behind", "beside": "starts"}


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_run_that_takes_any_network_starts_beside_those_like_it_that_wait_for_another(is_cached: bool) -> None:
    fast, plain = node("n0", gpus=4, extended={"rdma/hca": 4}), node("n1", gpus=4)
    rdma = Network(profile=FabricChoice.RDMA)
    runs = (waiting("a", 1, age_s=9, network=rdma), waiting("b", 1, age_s=8, network=rdma), waiting("c", 1))
    snapshot = look((running("long", "n0", range(4)),), *runs, nodes=(fast, plain))
    plan = decide(snapshot, NOW, PassCache() if is_cached else None)
    assert [change.workload_uid for change in plan.changes if change.create] == ["c"]


def test_easy_backfill_lets_a_run_delay_the_second_and_conservative_does_not() -> None:
    # The second is to have n1 from the end of half on; what passes stays longer.
    first, second = waiting("first", 4, age_s=9, nodes=2), waiting("second", 3, age_s=8, max_duration_s=60.0)
    passing = waiting("passing", 2, max_duration_s=2000.0)
    assert decided(look(FULL, first, second, passing), "backfill")["passing"] == "starts"
    assert decided(look(FULL, first, second, passing), "conservative")["passing"] == "waits"


def test_nobody_passes_where_no_end_is_known_except_into_room_that_the_first_can_never_use() -> None:
    held = (running("endless", "n0", range(4)), running("half", "n1", range(2)))
    nodes = (*NODES, node("small", gpus=1, cpu_milli=64_000))
    first = waiting("first", 4, age_s=9)
    runs = first, waiting("short", 2, max_duration_s=5.0), waiting("small", 1, max_duration_s=5.0)
    plan = decided(look(held, *runs, nodes=nodes))
    assert plan == {"first": "waits", "short": "behind", "small": "starts"}


def test_the_first_is_told_when_it_starts_and_so_does_the_forecast_of_all() -> None:
    first, second = waiting("first", 4, age_s=9, max_duration_s=100.0), waiting("second", 4, max_duration_s=100.0)
    snapshot = look(FULL, first, second)
    assert "; starts at 2001-09-09 01:57 UTC at the latest, when half ends" in told(snapshot, "first").reason.message
    starts = expected_starts(snapshot, NOW)
    # half ends after its 1600 s, its grace and a second, 1000 s of which are over; so does first after it.
    assert {name: at - NOW for name, at in starts.items()} == {"first": 631.0, "second": 631.0 + 131.0}


def test_a_higher_priority_of_the_same_team_has_the_cheapest_stopped_and_no_more() -> None:
    saved = Progress(step=5, checkpoint_step=5, checkpoint_at=NOW - 10)
    held = (
        running("dear", "n0", range(4)),
        running("cheap", "n1", range(2), progress=saved),
        running("other", "n1", range(2, 4), progress=saved, priority=5),
    )
    plan = _plan(look(held, waiting("urgent", 2, priority=5)))
    stopped = [change for change in plan.changes if change.terminate]
    assert [(change.workload_uid, change.terminate[0].grace_s) for change in stopped] == [("cheap", 30.0)]
    assert stopped[0].status is not None
    assert stopped[0].status.reason.message == "preempted by urgent, which has priority 5; it has 0"
    assert (stopped[0].status.after_stop.phase, stopped[0].status.reason.code) == (Phase.PENDING, Code.PREEMPTED)


@pytest.mark.parametrize("changes", [{"team": "others", "priority": 5}, {"priority": 0}])
def test_nobody_gives_way_to_another_team_or_to_an_equal(changes: dict[str, Any]) -> None:
    held = (running("a", "n0", range(4)), running("b", "n1", range(4)))
    assert decided(look(held, waiting("urgent", 2, **changes))) == {"urgent": "waits"}


def test_nobody_is_stopped_where_that_would_free_too_little_or_cost_more_than_it_gains() -> None:
    held = (running("a", "n0", range(4), priority=9), running("b", "n1", range(4)))
    assert decided(look(held, waiting("wide", 4, nodes=2, priority=5))) == {"wide": "waits"}
    nearly = (running("a", "n0", range(4), priority=9), running("b", "n1", range(4), max_duration_s=1100.0))
    assert decided(look(nearly, waiting("urgent", 4, priority=5))) == {"urgent": "waits"}


def test_a_run_in_its_guarantee_takes_back_what_others_borrow_and_not_what_they_are_guaranteed() -> None:
    teams = (
        Team(name="vision", guaranteed=Quota(gpu_milli=4000)),
        Team(name="nlp", guaranteed=Quota(gpu_milli=4000)),
    )
    held = (running("kept", "n0", range(4), team="nlp"), running("lent", "n1", range(4), team="nlp", began_s=500.0))
    snapshot = look(held, waiting("owed", 4, team="vision"), teams=teams)
    assert decided(snapshot) == {"owed": "waits", "lent": "gives way"}
    assert "; team vision reclaims 4 GPUs from nlp" in told(snapshot, "owed").reason.message
    assert "which lies within what team vision is guaranteed" in told(snapshot, "lent").reason.message
    more = look(held, waiting("more", 4, team="vision", nodes=2), teams=teams)
    assert decided(more) == {"more": "waits"}


def test_a_scavenger_gives_way_to_any_other_run_and_to_no_scavenger() -> None:
    held = (running("a", "n0", range(4)), running("idle", "n1", range(4), priority=-1, team="others"))
    assert decided(look(held, waiting("work", 2))) == {"work": "waits", "idle": "gives way"}
    assert decided(look(held, waiting("more", 2, priority=-1))) == {"more": "behind"}


def test_a_team_at_its_quota_waits_and_holds_up_nobody() -> None:
    teams = (Team(name="vision", quota=Quota(gpu_milli=2000)),)
    held = (running("own", "n0", range(2), team="vision"),)
    snapshot = look(held, waiting("more", 1, age_s=9, team="vision"), waiting("other", 4), teams=teams)
    assert decided(snapshot) == {"more": "waits", "other": "starts"}
    reason = told(snapshot, "more").reason
    assert reason.code is Code.OVER_QUOTA
    assert reason.message == "needs 1 GPU; team vision holds 2 GPUs and may hold 2 GPUs at most"


def test_nobody_is_stopped_for_room_that_is_kept_for_a_run_further_ahead() -> None:
    """Nobody knows what `big` waits for, so whatever is freed on a node that it could use is kept for it."""
    held = (
        running("scavenger", "n0", range(1), priority=-1, team="idle"),
        running("ending", "n0", range(1, 2), expected_duration_s=1020.0),
        running("stays", "n0", range(2, 4)),
        running("there", "n1", range(4)),
    )
    queue = (waiting("big", 4, age_s=100.0), waiting("behind", 1, nodes=2, max_duration_s=3600.0))
    assert giving_way(look(held, *queue)) == []
    assert giving_way(look(held, *queue[1:])) == ["scavenger"]


def test_nobody_is_stopped_if_the_quota_then_lets_another_go_first() -> None:
    """`ahead` is over its team's quota while `lower` runs; without that it is promised the node that both need."""
    teams = (Team(name="u", quota=Quota(gpu_milli=6000)),)
    held = (running("lower", "n0", range(2), team="u"), running("there", "n1", range(4), team="v"))
    ahead = waiting("ahead", 2, nodes=3, age_s=9 * 600.0, team="u")
    higher = waiting("higher", 4, priority=5, team="u")
    assert giving_way(look(held, higher, teams=teams)) == ["lower"]
    assert giving_way(look(held, ahead, higher, teams=teams)) == []


def test_who_was_preempted_is_pending_again_and_says_who_took_its_room() -> None:
    low, pod = running("low", "n1", range(4))
    begin = look((running("a", "n0", range(4), priority=9), (low, pod)), waiting("urgent", 4, priority=5))
    stopping = told(begin, "low")
    gone = Pod(
        uid=pod.uid, workload_uid="low", attempt=0, index=0, node="n1", grant=pod.grant, phase=PodPhase.FAILED,
        created_at=pod.created_at, started_at=pod.started_at, terminating_since=NOW,
        exits=(RankExit(rank=0, signal=15, at=NOW + 1),),
    )  # fmt: skip
    low = Workload(
        uid="low", spec=low.spec, intent=Intent.RUN, status=stopping, version=2, created_at=low.created_at
    )  # fmt: skip
    after = told(look(((low, gone),)), "low")
    assert (after.phase, after.attempt, after.started_at) == (Phase.PENDING, 1, None)
    again = Workload(uid="low", spec=low.spec, intent=Intent.RUN, status=after, version=3, created_at=low.created_at)
    held = (running("a", "n0", range(4), priority=9), running("urgent", "n1", range(4), priority=5))
    message = told(look(held, again), "low").reason.message
    assert "; it was preempted by urgent, which has priority 5; it has 0" in message
