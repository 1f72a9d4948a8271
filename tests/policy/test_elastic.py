"""How many nodes elastic gangs get, when they grow, and whom they make room for: decisions on a row of small nodes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.kinds.defaults import complete
from fairlead.policy.placement.placement import Placement
from fairlead.policy.queue.dominant_shares import ClusterCapacity
from fairlead.policy.queue.quotas import protected
from fairlead.policy.scaling.elastic import PAUSE_S, SETTLE_S, next_look, share_out
from fairlead.specs.resources import Resources
from fairlead.specs.team import Quota, Team
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.scheduling_policy import POLICIES
from fairlead.state.snapshot import (  # fmt: skip
    AfterStop,
    Grant,
    Intent,
    Phase,
    Pod,
    PodPhase,
    Progress,
    RankExit,
    Snapshot,
    Status,
    Workload,
)
from tests.builders import node, status, training

NOW = 1_000_000_000.0
SAVED = Progress(step=900, checkpoint_step=900, checkpoint_at=NOW - 10.0)
Gang = tuple[Workload, tuple[Pod, ...]]


def waiting(name: str, nodes: int, most: int | None = None, *, age_s: float = 1.0, **changes: Any) -> Workload:
    """Each member takes a node of four cores."""
    spec = training(name, nodes=nodes, most_nodes=most, resources=Resources(cpu_milli=3000), grace_s=30.0, **changes)
    reason = Reason(code=Code.SUBMITTED, message="submitted")
    state = status(reason=reason, since=NOW - age_s)
    return Workload(uid=name, spec=spec, intent=Intent.RUN, status=state, version=1, created_at=NOW - age_s)


def running(
    name: str, nodes: int, most: int | None, on: Sequence[int], *, began_s: float = 5000.0, room_s: float | None = None,
    progress: Progress | None = SAVED, **changes: Any,
) -> Gang:  # fmt: skip
    """A gang that runs on these nodes since so many seconds, and could have grown since so many."""
    found = waiting(name, nodes, most, age_s=began_s, **changes)
    room_since = None if room_s is None else NOW - room_s
    held = status(
        Phase.RUNNING, since=NOW - began_s, started_at=NOW - began_s, room_since=room_since,
        nodes=None if most is None else len(on),
    )  # fmt: skip
    pods = tuple(
        Pod(
            uid=f"{name}-0-{index}", workload_uid=name, attempt=0, index=index, node=f"n{number}",
            grant=Grant(cpu_milli=3000), phase=PodPhase.RUNNING, created_at=NOW - began_s, started_at=NOW - began_s,
        )
        for index, number in enumerate(on)
    )  # fmt: skip
    return replace(found, status=held, progress=progress), pods


def stopped(gang: Gang, code: Code = Code.RESIZED) -> Gang:
    """It had been told to stop for another size, and has left."""
    workload, pods = gang
    reason = replace(workload.status.reason, code=code)
    stopping = replace(
        workload.status, phase=Phase.STOPPING, reason=reason, after_stop=AfterStop(phase=Phase.PENDING, reason=reason)
    )
    exits = (RankExit(rank=0, exit_code=0, at=NOW - 1.0),)
    gone = tuple(replace(p, phase=PodPhase.SUCCEEDED, terminating_since=NOW - 2.0, exits=exits) for p in pods)
    return replace(workload, status=stopping), gone


def look(*found: Gang | Workload, num_nodes: int = 4, teams: tuple[Team, ...] = ()) -> Snapshot:
    gangs = [each if isinstance(each, tuple) else (each, ()) for each in found]
    return Snapshot(
        nodes=tuple(node(f"n{number}") for number in range(num_nodes)),
        workloads=tuple(workload for workload, _ in gangs),
        pods=tuple(pod for _, pods in gangs for pod in pods),
        teams=teams,
    )


def changes(snapshot: Snapshot, now: float = NOW) -> dict[str, Change]:
    return {change.workload_uid: change for change in decide(snapshot, now).changes}


def status_of(change: Change) -> Status:
    assert change.status is not None
    return change.status


@pytest.mark.parametrize(("num_nodes", "size"), [(2, 2), (5, 5), (9, 8)])
def test_a_gang_starts_on_as_many_nodes_as_are_free_within_its_bounds(num_nodes: int, size: int) -> None:
    change = changes(look(waiting("e", 2, 8), num_nodes=num_nodes))["e"]
    assert [create.index for create in change.create] == list(range(size))
    assert len({create.node for create in change.create}) == size
    assert status_of(change).size.nodes == size
    assert f"{size} pods with {size} ranks placed on" in status_of(change).reason.message


def test_a_gang_whose_fewest_do_not_fit_waits_whole() -> None:
    change = changes(look(waiting("e", 2, 8), num_nodes=1))["e"]
    assert (change.create, status_of(change).phase) == ((), Phase.PENDING)
    assert "needs 2..8 nodes with 3 CPU each" in status_of(change).reason.message
    taken = running("other", 1, None, [0])
    change = changes(look(taken, waiting("e", 2, 8), num_nodes=2))["e"]
    assert (change.create, status_of(change).phase) == ((), Phase.PENDING)


def test_cores_that_nobody_asked_for_are_shared_out_so_that_the_largest_gang_fits() -> None:
    found = complete(training("e", nodes=2, most_nodes=8, ranks_per_node=1), (node(),))
    assert found.spec.resources.cpu_milli == 500
    assert "resources.cpu: 0.5 CPU for each of 2..8 nodes (an equal share of 4 CPU)" in found.notes


def test_gangs_that_start_together_share_what_is_free_in_proportion() -> None:
    found = changes(look(waiting("a", 1, 8, age_s=3.0), waiting("b", 1, 8, age_s=2.0), waiting("c", 2, 3), num_nodes=8))
    assert {uid: len(change.create) for uid, change in found.items()} == {"a": 3, "b": 3, "c": 2}


def test_a_gang_takes_nothing_that_one_before_it_is_promised() -> None:
    holder = running("holder", 1, None, [0], began_s=10.0, max_duration_s=100.0)
    found = changes(look(holder, waiting("first", 4, age_s=9.0), waiting("e", 1, 4)))
    assert found["e"].create == ()
    short = waiting("e", 1, 4, max_duration_s=20.0)
    found = changes(look(holder, waiting("first", 4, age_s=9.0), short))
    assert len(found["e"].create) == 3


def test_a_gang_grows_no_larger_than_the_quota_of_its_team() -> None:
    teams = (Team(name="vision", quota=Quota(cpu_milli=7000)),)
    change = changes(look(waiting("e", 1, 4, team="vision"), teams=teams))["e"]
    assert len(change.create) == 2


def test_under_first_come_first_served_nothing_is_taken_beside_one_that_waits() -> None:
    snapshot = look(running("holder", 1, None, [0]), waiting("e", 1, 3, age_s=9.0), waiting("large", 4))
    plan = decide(replace(snapshot, rules=POLICIES["fifo"]), NOW)
    assert {change.workload_uid: len(change.create) for change in plan.changes} == {"e": 1, "large": 0}


def test_a_gang_that_lost_a_node_starts_at_once_with_what_is_left() -> None:
    workload, pods = running("e", 2, 4, [0, 1, 2, 3])
    snapshot = look((workload, (*pods[:3], replace(pods[3], phase=PodPhase.LOST))))
    away = replace(snapshot, nodes=(*snapshot.nodes[:3], replace(snapshot.nodes[3], ready=False)))
    change = changes(away)["e"]
    assert status_of(change).phase is Phase.RESTARTING
    assert "node n3, which held pod 3 of 4, is gone; it restarts at once" in status_of(change).reason.message
    over = tuple(replace(pod, phase=PodPhase.FAILED) for pod in pods)
    change = changes(replace(away, workloads=(replace(workload, status=status_of(change)),), pods=over))["e"]
    assert {(create.attempt, create.node) for create in change.create} == {(1, "n0"), (1, "n1"), (1, "n2")}
    assert (status_of(change).phase, status_of(change).size.nodes) == (Phase.STARTING, 3)


def test_a_pod_that_vanished_from_a_gang_is_missed_at_its_size() -> None:
    workload, pods = running("e", 1, 4, [0, 1])
    change = changes(look((workload, pods[:1])))["e"]
    assert status_of(change).reason.message.startswith("1 pod of it vanished")


def test_a_gang_that_runs_says_on_how_many_nodes_and_what_would_give_it_more() -> None:
    workload, pods = running("e", 2, 8, [0, 1, 2])
    starting = replace(workload, status=replace(workload.status, phase=Phase.STARTING))
    change = changes(look((starting, pods), num_nodes=3))["e"]
    assert status_of(change).reason.message == (
        "3 ranks on 3 nodes started; runs on 3 of 2..8 nodes; would grow when 5 more are free"
    )


def test_a_gang_whose_pods_share_a_node_is_not_said_to_be_on_more() -> None:
    workload, pods = running("e", 2, 8, [0, 1, 1])
    starting = replace(workload, status=replace(workload.status, phase=Phase.STARTING))
    change = changes(look((starting, pods), num_nodes=3))["e"]
    assert status_of(change).reason.message.startswith("3 ranks in 3 pods on 2 nodes started; ")


def test_room_is_told_first_then_taken_when_it_has_lasted() -> None:
    told = status_of(changes(look(running("e", 1, 4, [0, 1])))["e"])
    assert (told.phase, told.size.room_since, told.since) == (Phase.RUNNING, NOW, NOW - 5000.0)
    assert told.reason.message == (
        "runs on 2 of 1..4 nodes; 2 more nodes are free, and it grows if they still are in 5m and no run waits for them"
    )
    assert changes(look(running("e", 1, 4, [0, 1], room_s=SETTLE_S - 1))) == {}
    change = changes(look(running("e", 1, 4, [0, 1], room_s=SETTLE_S)))["e"]
    assert [(order.pod_uid, order.grace_s) for order in change.terminate] == [("e-0-0", 30.0), ("e-0-1", 30.0)]
    stopping = status_of(change)
    assert (stopping.phase, stopping.reason.code, stopping.after_stop.phase) == (
        Phase.STOPPING, Code.RESIZED, Phase.PENDING
    )  # fmt: skip
    assert stopping.reason.message == (
        "grows from 2 to 4 of 1..4 nodes, which have been free for 5m; continues from a checkpoint"
    )


def test_room_that_is_gone_again_is_told_and_forgotten() -> None:
    gang, other = running("e", 1, 3, [0, 1], room_s=60.0), running("other", 2, None, [2, 3])
    told = status_of(changes(look(gang, other))["e"])
    assert (told.size.room_since, told.reason.message) == (
        None,
        "runs on 2 of 1..3 nodes; would grow when 1 more is free",
    )


@pytest.mark.parametrize(
    "hindrance",
    [
        {"began_s": PAUSE_S - 1},
        {"progress": None},
        {"progress": Progress(step=900)},
        {"max_duration_s": 5060.0},
        {"most": 2},
        {"progress": replace(SAVED, checkpoint_at=NOW - 4000.0)},
    ],
    ids=["just started", "says nothing", "never saved", "nearly over", "has all", "would lose too much"],
)
def test_a_gang_stays_as_it_is_when_growing_would_not_pay(hindrance: dict[str, Any]) -> None:
    assert changes(look(running(**{"name": "e", "nodes": 1, "most": 4, "on": [0, 1], **hindrance}))) == {}


def test_a_gang_leaves_room_to_those_that_wait_for_more_of_it() -> None:
    gang, holder = running("e", 1, 4, [0], room_s=SETTLE_S), running("holder", 1, None, [1])
    assert "e" in changes(look(gang, holder))
    told = status_of(changes(look(gang, holder, waiting("w", 3)))["e"])
    assert (told.phase, told.size.room_since) == (Phase.RUNNING, None)
    assert status_of(changes(look(gang, holder, waiting("w", 3, priority=-1)))["e"]).phase is Phase.STOPPING


def test_a_gang_that_stopped_to_grow_starts_with_the_next_number_and_keeps_its_first_start() -> None:
    change = changes(look(stopped(running("e", 1, 4, [0, 1]))))["e"]
    assert (status_of(change).phase, len(change.create), status_of(change).attempt) == (Phase.STARTING, 4, 1)
    assert {create.attempt for create in change.create} == {1}
    assert (status_of(change).started_at, status_of(change).size.room_since) == (NOW - 5000.0, None)


def test_a_gang_that_stopped_to_grow_comes_before_older_ones_and_leaves_them_what_it_has_not_got() -> None:
    gang = stopped(running("e", 2, 4, [0, 1], began_s=50.0))
    found = changes(look(gang, waiting("old", 3, age_s=99.0)))
    assert (len(found["e"].create), found["old"].create) == (2, ())


def test_a_gang_that_stopped_to_grow_and_has_no_room_left_waits() -> None:
    change = changes(look(stopped(running("e", 2, 4, [0, 1])), running("other", 3, None, [0, 1, 2])))["e"]
    assert (status_of(change).phase, status_of(change).attempt) == (Phase.PENDING, 1)


def test_a_gang_that_ended_well_before_the_notice_has_succeeded() -> None:
    workload, pods = stopped(running("e", 1, 4, [0, 1]))
    early = tuple(replace(pod, terminating_since=NOW) for pod in pods)
    assert status_of(changes(look((workload, early)))["e"]).phase is Phase.SUCCEEDED


def test_a_gang_gives_nodes_up_to_a_higher_priority_rather_than_another_is_stopped() -> None:
    gang, other = running("e", 1, 3, [0, 1, 2]), running("other", 1, None, [3])
    found = changes(look(gang, other, waiting("urgent", 2, priority=5)))
    assert set(found) == {"e", "urgent"}
    assert status_of(found["e"]).reason.message == (
        "makes room for urgent: of its 3 nodes it keeps at least 1; continues from a checkpoint"
    )
    assert len(found["e"].terminate) == 3
    assert status_of(found["urgent"]).reason.message.endswith("starts when e has saved its work and changed its size")
    found = changes(look(stopped(gang), other, waiting("urgent", 2, priority=5)))
    assert {uid: len(change.create) for uid, change in found.items()} == {"urgent": 2, "e": 1}


def test_whole_gangs_are_stopped_when_giving_nodes_up_is_not_enough() -> None:
    gang, other = running("e", 1, 3, [0, 1, 2]), running("other", 1, None, [3])
    found = changes(look(gang, other, waiting("urgent", 4, priority=5)))
    assert {uid: status_of(change).reason.code for uid, change in found.items() if uid != "urgent"} == {
        "e": Code.PREEMPTED, "other": Code.PREEMPTED
    }  # fmt: skip


def test_a_gang_at_its_smallest_gives_nothing_up_to_one_of_its_own_priority() -> None:
    assert set(changes(look(running("e", 2, 4, [0, 1, 2, 3]), waiting("like", 1)))) == {"like"}


def test_what_is_owed_to_a_team_comes_from_what_a_gang_of_another_has_beyond_its_own_guarantee() -> None:
    teams = (
        Team(name="nlp", guaranteed=Quota(cpu_milli=6000)),
        Team(name="vision", guaranteed=Quota(cpu_milli=6000)),
    )
    gang = running("e", 1, 4, [0, 1, 2, 3], team="nlp")
    found = changes(look(gang, waiting("owed", 2, team="vision"), teams=teams))
    assert "of its 4 nodes it keeps at least 1" in status_of(found["e"]).reason.message
    assert "team vision reclaims" in status_of(found["owed"]).reason.message
    found = changes(look(gang, waiting("more", 4, team="vision"), teams=teams))
    assert "e" not in found


def test_of_a_gang_its_smallest_size_may_be_within_a_guarantee_when_the_whole_is_not() -> None:
    teams = (Team(name="nlp", guaranteed=Quota(cpu_milli=7000)),)
    workload, _ = running("e", 2, 4, [0, 1, 2], team="nlp")
    small, _ = running("small", 1, 4, [3], team="nlp", began_s=1.0)
    assert protected([workload, small], teams, ClusterCapacity(), NOW) == {"e": 2}


def test_what_is_shared_out_goes_to_who_has_least_until_nobody_can_take_more() -> None:
    left = [Placement(index=0, node=f"n{number}", grant=Grant()) for number in range(5)]

    def take(_: Workload) -> tuple[Placement, ...] | None:
        return (left.pop(),) if left else None

    gangs = [(waiting("a", 1, 9), 4), (waiting("b", 1, 3), 1), (waiting("c", 1, 9), 2)]
    found = share_out(gangs, take, lambda team: 0.0)
    assert {uid: [each.node for each in parts] for uid, parts in found.items()} == {
        "b": ["n4", "n3"], "c": ["n2", "n1"], "a": ["n0"]
    }  # fmt: skip


def test_what_is_shared_out_goes_to_the_team_that_holds_least_however_many_gangs_it_has() -> None:
    held = {"a": 0.0, "b": 0.0}

    def take(gang: Workload) -> tuple[Placement, ...] | None:
        if sum(held.values()) > 5.5:
            return None
        held[gang.spec.team] += 1.0
        return (Placement(index=0, node="n", grant=Grant()),)

    gangs = [
        *((waiting(f"a{number}", 1, 300, team="a"), 1) for number in range(5)),
        (waiting("b0", 1, 300, team="b"), 9),
    ]
    found = share_out(gangs, take, held.__getitem__)
    assert {uid: len(parts) for uid, parts in found.items()} == {"a0": 1, "a1": 1, "a2": 1, "b0": 3}


def test_the_next_look_is_when_the_pause_is_over_and_when_room_has_lasted() -> None:
    gang, _ = running("e", 1, 4, [0], began_s=100.0)
    assert next_look(gang, NOW) == NOW - 100.0 + PAUSE_S
    later, _ = running("e", 1, 4, [0], room_s=100.0)
    assert next_look(later, NOW) == NOW - 100.0 + SETTLE_S
    plain, _ = running("p", 1, None, [0])
    assert next_look(plain, NOW) == float("inf")
