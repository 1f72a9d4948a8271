"""Who moves so that a gang finds its room in one piece, and that moves stay within their bounds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fairlead.policy.decide import decide
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.team import Quota, Team
from fairlead.state.plan import Change, Plan
from fairlead.state.reasons import Code, Reason
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
from fairlead.state.snapshot import AfterStop, Phase, Pod, Progress, Reservation, Snapshot, Workload
from tests.builders import changed, node
from tests.policy.test_scheduling import NOW, look, running, waiting

SAVED = Progress(step=10, checkpoint_step=10, checkpoint_at=NOW - 30.0)
FOUR = tuple(node(f"n{number}", gpus=4, cpu_milli=64_000) for number in range(3))


def saving(name: str, on: str, gpus: range, **changes: Any) -> tuple[Workload, Pod]:
    return running(name, on, gpus, **{"progress": SAVED, **changes})


# Each node has two devices free, and none has four.
PIECES = (saving("a", "n0", range(2)), saving("b", "n1", range(2)), saving("c", "n2", range(3)))


def planned(snapshot: Snapshot, rules: SchedulingPolicy = DEFAULT) -> Plan:
    return decide(replace(snapshot, rules=rules), NOW)


def moved(snapshot: Snapshot, rules: SchedulingPolicy = DEFAULT) -> dict[str, list[str]]:
    """Who moves where."""
    return {
        change.workload_uid: [seat.node for seat in change.status.migration.seats]
        for change in planned(snapshot, rules).changes
        if change.status is not None and change.status.phase is Phase.STOPPING
    }


def of(snapshot: Snapshot, name: str) -> Change:
    return next(change for change in planned(snapshot).changes if change.workload_uid == name)


def test_a_run_moves_to_room_that_is_free_so_that_a_gang_has_a_whole_node() -> None:
    assert moved(look(PIECES, waiting("wide", 4), nodes=FOUR)) == {"a": ["n1"]}


def test_both_runs_are_told_why() -> None:
    snapshot = look(PIECES, waiting("wide", 4), nodes=FOUR)
    away, first = of(snapshot, "a"), of(snapshot, "wide")
    assert away.event is not None
    assert away.event.reason.code is Code.MOVED
    assert away.event.reason.message == (
        "moves to n1, where its place is kept, so that wide fits, which needs 1 node; it saves first and continues "
        "from there"
    )
    assert [order.grace_s for order in away.terminate] == [30.0]
    assert first.status is not None
    assert first.status.reason.message.endswith(
        "; starts when a has moved to n1, which leaves its room in one piece"
    )  # fmt: skip


def test_no_more_move_than_it_takes_and_the_cheapest() -> None:
    fresh = replace(SAVED, checkpoint_at=NOW - 1.0)
    pieces = (PIECES[0], saving("b", "n1", range(2), progress=fresh), PIECES[2])
    assert moved(look(pieces, waiting("wide", 4), nodes=FOUR)) == {"b": ["n0"]}


def test_shares_move_together_so_that_a_whole_device_is_free() -> None:
    halves = [_half(name, on) for name, on in (("a", "n0"), ("b", "n1"))]
    one = tuple(node(name, gpus=1, cpu_milli=64_000) for name in ("n0", "n1"))
    assert moved(look(halves, waiting("whole", 1), nodes=one)) == {"a": ["n1"]}


def test_a_gang_of_several_nodes_has_them_freed_one_by_one() -> None:
    nodes = tuple(node(f"n{number}", gpus=4, cpu_milli=64_000) for number in range(4))
    pieces = [saving(f"r{number}", f"n{number}", range(2)) for number in range(4)]
    found = moved(look(pieces, waiting("wide", 4, nodes=2), nodes=nodes))
    assert len(found) == 2
    assert not {f"n{name[1]}" for name in found} & {seat for seats in found.values() for seat in seats}


NEVER_SAVED = saving("a", "n0", range(2), progress=None), saving("b", "n1", range(2), progress=None), PIECES[2]
ONE_BUSY = saving("a", "n0", range(3)), saving("b", "n1", range(3)), PIECES[2]
LATELY = tuple(
    (replace(run, status=changed(run.status, moved_at=NOW - 3600.0 * 3)), pod) for run, pod in PIECES
)  # fmt: skip
SPENT = (
    PIECES[0],
    PIECES[1],
    (
        replace(
            PIECES[2][0],
            status=replace(
                PIECES[2][0].status,
                migration=replace(PIECES[2][0].status.migration, decided_at=NOW - 60.0, cost_s=175.0),
            ),
        ),
        PIECES[2][1],
    ),
)
LONG_AGO = replace(SAVED, checkpoint_at=NOW - 2000.0)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(NEVER_SAVED, id="they have saved no checkpoint"),
        pytest.param(ONE_BUSY, id="there is no room for them elsewhere"),
        pytest.param(LATELY, id="they have moved lately"),
        pytest.param(SPENT, id="moves of this hour have cost enough"),
        pytest.param([saving(p[0].uid, p[1].node, range(2), progress=LONG_AGO, began_s=2000.0) for p in PIECES[:2]]
                     + [PIECES[2]], id="they would lose more than moves may cost in an hour"),
        pytest.param([saving(p[0].uid, p[1].node, range(2), progress=LONG_AGO, max_duration_s=1200.0)
                      for p in PIECES[:2]] + [PIECES[2]], id="they would lose more than the gang gains"),
        pytest.param([saving(p[0].uid, p[1].node, range(2), priority=9) for p in PIECES[:2]]
                     + [PIECES[2]], id="they come before the gang"),
        pytest.param([saving(p[0].uid, p[1].node, range(2), max_duration_s=1030.0) for p in PIECES[:2]] + [PIECES[2]],
                     id="they end soon"),
    ],
)  # fmt: skip
def test_nobody_moves(pieces: Sequence[tuple[Workload, Pod]]) -> None:
    assert moved(look(pieces, waiting("wide", 4, max_duration_s=60.0), nodes=FOUR)) == {}


def test_nobody_moves_by_rules_that_say_so() -> None:
    assert moved(look(PIECES, waiting("wide", 4), nodes=FOUR), replace(DEFAULT, moves=False)) == {}


def test_where_teams_have_guarantees_those_outside_of_them_stay() -> None:
    team = Team(name="vision", guaranteed=Quota(gpu_milli=2000))
    assert moved(look(PIECES, waiting("wide", 4), nodes=FOUR, teams=(team,))) == {}
    inside = (saving("a", "n0", range(2), team="vision"), *PIECES[1:])
    assert moved(look(inside, waiting("wide", 4), nodes=FOUR, teams=(team,))) == {"a": ["n1"]}


def test_a_place_is_kept_while_the_run_leaves_and_then_it_starts_there_first() -> None:
    on_the_way = _leaving(PIECES[0], "n1")
    small = waiting("small", 2, age_s=0.5)
    snapshot = look((on_the_way, *PIECES[1:]), small, waiting("wide", 4), nodes=FOUR)
    assert all(not change.create and not change.terminate for change in planned(snapshot).changes)
    settled = (_arriving(PIECES[0], "n1"), PIECES[1][0], PIECES[2][0])
    after = Snapshot(nodes=FOUR, workloads=(*settled, small), pods=(PIECES[1][1], PIECES[2][1]))
    first, second = planned(after).changes
    assert (first.workload_uid, [(c.node, c.grant.gpu_uuids) for c in first.create]) == (
        "a",
        [("n1", ("n1-gpu-2", "n1-gpu-3"))],
    )
    assert first.status is not None
    assert first.status.migration.seats == ()
    assert [c.node for c in second.create] == ["n0"]


def test_nothing_is_kept_on_a_node_that_has_gone_and_the_run_waits_like_any_other() -> None:
    nodes = (FOUR[0], replace(FOUR[1], ready=False), replace(FOUR[2], ready=False))
    small = waiting("small", 4, age_s=9000.0)
    after = Snapshot(nodes=nodes, workloads=(_arriving(PIECES[0], "n1"), small), pods=())
    assert of(after, "small").create
    late = of(after, "a").status
    assert late is not None
    assert late.reason.code is Code.WAITING_FOR_RESOURCES


def _half(name: str, on: str) -> tuple[Workload, Pod]:
    run, pod = saving(name, on, range(1), resources=Resources(gpu=GpuRequest(milli=500)))
    return run, replace(pod, grant=replace(pod.grant, gpu_milli=500))


def _seats(on: str) -> tuple[Reservation, ...]:
    _, pod = saving("a", on, range(2, 4))
    return (Reservation(node=on, grant=pod.grant),)


def _leaving(pair: tuple[Workload, Pod], to: str) -> tuple[Workload, Pod]:
    run, pod = pair
    why = Reason(code=Code.MOVED, message="moves")
    status = replace(
        run.status,
        phase=Phase.STOPPING,
        reason=why,
        after_stop=AfterStop(phase=Phase.PENDING, reason=why),
        migration=replace(run.status.migration, seats=_seats(to)),
    )
    return replace(run, status=status), replace(pod, terminating_since=NOW - 1.0)


def _arriving(pair: tuple[Workload, Pod], to: str) -> Workload:
    why = Reason(code=Code.MOVED, message="moves")
    return replace(
        pair[0],
        status=replace(
            pair[0].status,
            phase=Phase.PENDING,
            reason=why,
            migration=replace(pair[0].status.migration, seats=_seats(to)),
        ),
    )
