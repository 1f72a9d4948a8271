"""Runs with `spot: auto`: when they wait, start and change between spot and on-demand nodes."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.policy.capacity import spot_deadline
from fairlead.policy.decide import decide
from fairlead.policy.placement.node_eligibility import CAPACITY_TYPE_LABEL
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.training import Capacity, Training
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Intent, Node, Phase, Pod, PodPhase, Progress, Snapshot, Status, Workload
from tests.builders import node, status, training

NOW = 1_000_000_000.0
HOUR_S = 3600.0
SPOT = node("spot-0", labels={CAPACITY_TYPE_LABEL: "spot"}, price_per_hour=1.0)
OWN = node("own-0", price_per_hour=3.0)
FULL_CORES = 4000


def spec(**changes: Any) -> Training:
    given = {"deadline_s": 24 * HOUR_S, "expected_duration_s": 8 * HOUR_S, **changes}
    return training(capacity=Capacity(spot=True, auto=True), **given)


def run(asked: Training, told: Status, **changes: Any) -> Workload:
    return Workload(
        uid="r", spec=asked, intent=Intent.RUN, status=told, version=1, **{"created_at": NOW, **changes}
    )  # fmt: skip


def waiting(**changes: Any) -> Status:
    return status(reason=Reason(code=Code.SUBMITTED, message="submitted"), since=NOW, **changes)


def pod(node_name: str, uid: str = "r", cpu_milli: int = 0, at: float = NOW) -> Pod:
    return Pod(
        uid=f"{uid}-0-0", workload_uid=uid, attempt=0, index=0, node=node_name, grant=Grant(cpu_milli=cpu_milli),
        phase=PodPhase.RUNNING, created_at=at, started_at=at,
    )  # fmt: skip


def decided(workload: Workload, nodes: tuple[Node, ...], now: float = NOW, pods: tuple[Pod, ...] = ()) -> Change | None:
    changes = decide(Snapshot(nodes=nodes, workloads=(workload,), pods=pods), now).changes
    assert len(changes) <= 1
    return changes[0] if changes else None


def told(found: Change | None) -> Status:
    assert found is not None
    assert found.status is not None
    return found.status


def test_it_starts_on_spot_while_there_is_room_and_time() -> None:
    found = decided(run(spec(), waiting()), (OWN, SPOT))
    assert found is not None
    assert [each.node for each in found.create] == ["spot-0"]
    assert (told(found).queue.spot_has_room, told(found).queue.spot_since) == (True, NOW)


def test_it_does_not_wait_for_spot_that_it_has_never_seen() -> None:
    found = decided(run(spec(), waiting()), (OWN,))
    assert found is not None
    assert [each.node for each in found.create] == ["own-0"]


def test_it_waits_for_spot_that_has_just_gone_while_its_deadline_is_far() -> None:
    seen = waiting(spot_there=True, spot_since=NOW - HOUR_S)
    told_now = told(decided(run(spec(), seen), (OWN,)))
    assert (told_now.phase, told_now.reason.code) == (Phase.PENDING, Code.WAITING_FOR_SPOT)
    assert (told_now.queue.spot_has_room, told_now.queue.spot_since) == (False, NOW)


def test_it_waits_no_longer_than_its_deadline_allows() -> None:
    seen = waiting(spot_there=False, spot_since=NOW)
    late = NOW + 15.0 * HOUR_S
    found = decided(run(spec(), seen), (OWN,), late)
    assert found is not None
    assert [each.node for each in found.create] == ["own-0"]


def test_without_slack_it_takes_on_demand_though_spot_is_free() -> None:
    tight = spec(deadline_s=8.2 * HOUR_S)
    found = decided(run(tight, waiting()), (OWN, SPOT))
    assert found is not None
    assert [each.node for each in found.create] == ["own-0"]


def test_spot_is_better_than_nothing_where_on_demand_is_full() -> None:
    tight = spec(deadline_s=8.2 * HOUR_S, resources=replace(spec().resources, cpu_milli=FULL_CORES))
    other = replace(pod("own-0", uid="", cpu_milli=FULL_CORES), uid="o")
    found = decided(run(tight, waiting()), (OWN, SPOT), pods=(other,))
    assert found is not None
    assert [each.node for each in found.create] == ["spot-0"]


def running(since: float = NOW, **changes: Any) -> Status:
    return status(Phase.RUNNING, since=since, started_at=since, **changes)


def test_on_on_demand_it_takes_spot_that_has_lasted_and_its_place_is_kept() -> None:
    now = NOW + HOUR_S
    saved = Progress(step=10, checkpoint_step=10, checkpoint_at=now, updated_at=now)
    seen = running(spot_there=True, spot_since=NOW - 4 * HOUR_S)
    found = decided(run(spec(), seen, progress=saved), (OWN, SPOT), now, (pod("own-0"),))
    moving = told(found)
    assert (moving.phase, moving.after_stop.phase, moving.reason.code) == (Phase.STOPPING, Phase.PENDING, Code.MOVED)
    assert [seat.node for seat in moving.migration.seats] == ["spot-0"]


def test_one_that_has_never_saved_stays_where_it_is() -> None:
    seen = running(spot_there=True, spot_since=NOW - 4 * HOUR_S)
    assert decided(run(spec(), seen), (OWN, SPOT), NOW + HOUR_S, (pod("own-0"),)) is None


def test_on_spot_it_leaves_for_on_demand_once_what_it_has_not_saved_could_make_it_late() -> None:
    now = NOW + 15.6 * HOUR_S
    seen = running(spot_there=True, spot_since=NOW)
    found = decided(run(spec(), seen), (OWN, SPOT), now, (pod("spot-0"),))
    assert [seat.node for seat in told(found).migration.seats] == ["own-0"]
    saved = Progress(step=10, checkpoint_step=10, checkpoint_at=now, updated_at=now)
    assert decided(run(spec(), seen, progress=saved), (OWN, SPOT), now, (pod("spot-0"),)) is None


def test_steps_tell_more_than_what_was_declared() -> None:
    half = Progress(step=50, total_steps=100, checkpoint_step=25, updated_at=NOW)
    workload = run(spec(), running(since=NOW - 6 * HOUR_S), progress=half)
    assert spot_deadline.work_left_s(workload, NOW, at_risk=False) == pytest.approx(6 * HOUR_S)
    assert spot_deadline.work_left_s(workload, NOW, at_risk=True) == pytest.approx(9 * HOUR_S)


def test_it_is_told_beforehand_what_it_costs() -> None:
    world = Snapshot(nodes=(OWN, SPOT), workloads=(), pods=())
    found = spot_deadline.expect(spec(), world, NOW)
    assert found.cost is not None
    assert found.saved is not None
    assert 8.0 < found.cost < 24.0
    assert found.cost == pytest.approx((1.0 - found.saved) * 3.0 * (8.0 + 60.0 / HOUR_S))
    assert found.done_by == NOW + 24 * HOUR_S
    unpriced = replace(world, nodes=(replace(OWN, price_per_hour=None), SPOT))
    assert spot_deadline.expect(spec(), unpriced, NOW).cost is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"deadline_s": HOUR_S}, "uses it"),
        ({"capacity": Capacity(spot=True, auto=True)}, "give `deadline`"),
        ({"capacity": Capacity(spot=True, auto=True), "deadline_s": HOUR_S}, "give `expected_duration`"),
        (
            {"capacity": Capacity(spot=True, auto=True), "deadline_s": HOUR_S, "expected_duration_s": 2 * HOUR_S},
            "before the work can be done",
        ),
    ],
)
def test_what_it_needs_to_know_is_asked_for(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BrokenRules, match=words):
        training(**given)
