"""Who holds the GPUs where the rules choose the whole set: what is promised, and what others keep."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from fairlead.policy.decide import decide
from fairlead.policy.next_decision import next_decision_at
from fairlead.policy.queue.scheduling import SchedulingPass
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.team import Quota, Team
from fairlead.state.reasons import Code
from fairlead.state.scheduling_policy import POLICIES
from fairlead.state.snapshot import Node, Phase, Progress, Snapshot, Status, Workload
from tests.builders import node
from tests.policy.order_world import (
    LINES,
    Line,
    all_come_to_their_end,
    nobody_restarts_in_vain,
    play,
    who_saves_nothing_is_stopped_once,
)
from tests.policy.test_scheduling import NOW, look, running, waiting

RULES = ("least-work", "finish-time")
FOUR = (node("n0", gpus=4, cpu_milli=64_000),)


def became(snapshot: Snapshot, rules: str = "least-work") -> dict[str, Status]:
    plan = decide(replace(snapshot, rules=POLICIES[rules]), NOW)
    return {change.workload_uid: change.status for change in plan.changes if change.status is not None}


def lasting(name: str, gpus: int, left_s: float, **changes: Any) -> Workload:
    return waiting(name, gpus, expected_duration_s=left_s, **changes)


@pytest.mark.parametrize("rules", RULES)
def test_whatever_comes_is_over_in_the_end_and_has_done_its_work(rules: str) -> None:
    @settings(max_examples=30, deadline=None)
    @given(lines=LINES)
    def holds(lines: list[Line]) -> None:
        decided = play(lines, POLICIES[rules])
        assert list(all_come_to_their_end(decided)) == []
        assert list(who_saves_nothing_is_stopped_once(decided)) == []

    holds()


def drawn(seed: int) -> list[Line]:
    """Runs of 1 to 4 GPUs, which do not all divide those of a node."""
    rng = random.Random(seed)
    return [
        Line(100.0 * rng.randint(0, 20), 50.0 * rng.randint(1, 60), rng.randint(1, 4), rng.choice((0, 0, 0, 3)))
        for _ in range(rng.randint(6, 14))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
def test_whoever_restarts_for_a_wider_run_goes_on_elsewhere(rules: str) -> None:
    num_restarts = 0
    for seed in range(20):
        decided = play(drawn(seed), POLICIES[rules], num_nodes=2)
        assert list(all_come_to_their_end(decided)) == [], seed
        assert list(nobody_restarts_in_vain(decided)) == [], seed
        changes = [change for each in decided for change in each.plan.changes if change.status is not None]
        num_restarts += sum("makes room for" in str(change.status) for change in changes)
    assert num_restarts


def test_that_catches_restarts_that_are_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchedulingPass, "_all_come_by", lambda *_: True)
    assert any(list(nobody_restarts_in_vain(play(drawn(seed), POLICIES["least-work"], 2))) for seed in (10, 11, 12))


@pytest.mark.parametrize("rules", RULES)
def test_nobody_waits_beside_gpus_that_would_do(rules: str) -> None:
    queue = (lasting("wide", 4, 100.0), lasting("one", 1, 5000.0), lasting("two", 2, 9000.0))
    for free in range(1, 5):
        held = (running("there", "n0", range(4 - free), expected_duration_s=10.0),) if free < 4 else ()
        found = became(look(held, *queue, nodes=FOUR), rules)
        idle = free - sum(_gpus(each) for each in queue if found[each.uid].phase is Phase.STARTING)
        assert all(_gpus(each) > idle for each in queue if found[each.uid].phase is Phase.PENDING)


def test_a_hole_is_filled_by_the_set_that_is_worth_most() -> None:
    # Alone the wide one is worth most for each GPU; the three beside it are worth more together, for all GPUs.
    wide = lasting("wide", 3, 1000.0)
    others = [lasting(f"half-{letter}", 2, 1050.0) for letter in "ab"]
    found = became(look((), wide, *others, nodes=FOUR))
    assert found["wide"].phase is Phase.PENDING
    assert {found[each.uid].phase for each in others} == {Phase.STARTING}


def test_a_long_run_gives_way_with_its_notice_and_both_are_told_why() -> None:
    long, short = running("long", "n0", range(4), expected_duration_s=90_000.0), lasting("short", 4, 100.0)
    found = became(look((long,), short, nodes=FOUR))
    assert found["long"].phase is Phase.STOPPING
    assert found["long"].reason.message == ("preempted by short, which has less left to do for the GPUs that it needs")
    assert found["short"].reason.message.endswith("starts when long has saved its work and left")


def test_who_is_not_chosen_is_told_why() -> None:
    short, long = running("short", "n0", range(4), expected_duration_s=1000.0), lasting("long", 4, 90_000.0)
    told = became(look((short,), long, nodes=FOUR))["long"].reason
    assert told.code is Code.WAITING_FOR_TURN
    assert told.message == "waits its turn: the GPUs go to runs that have less left to do for the GPUs that they need"


def test_the_gain_has_to_be_more_than_a_restart_costs() -> None:
    there = running("there", "n0", range(4), expected_duration_s=2000.0)
    assert "there" not in became(look((there,), lasting("shorter", 4, 1980.0), nodes=FOUR))


def test_waiting_counts_as_less_left_so_nobody_starves() -> None:
    short, long = lasting("short", 4, 100.0), lasting("long", 4, 1000.0)
    assert became(look((), short, long, nodes=FOUR))["long"].phase is Phase.PENDING
    patient = lasting("long", 4, 1000.0, age_s=300 * 1000.0)
    assert became(look((), short, patient, nodes=FOUR))["long"].phase is Phase.STARTING


def test_a_start_costs_nothing_of_what_was_waited_for_it_however_large_the_cluster() -> None:
    """Both came together and are as long; on 1,000 GPUs a second of waiting is worth 3.3 s of what is left on one."""
    elsewhere = [node(f"m{i}", gpus=8) for i in range(125)]
    h100 = (replace(each, gpus=tuple(replace(gpu, model="H100") for gpu in each.gpus)) for each in elsewhere)
    nodes = (node("n0", gpus=1), *h100)
    on_it: dict[str, Any] = {
        "resources": Resources(gpu=GpuRequest(milli=1000, model="A100")),
        "expected_duration_s": 7200.0,
    }
    held, pod = running("there", "n0", range(1), began_s=1.0, **on_it)
    there = (replace(held, status=replace(held.status, since=NOW - 1.0)), pod)
    assert became(look((there,), waiting("beside", 1, age_s=590.0, **on_it), nodes=nodes)).keys() == {"beside"}
    assert became(look((there,), waiting("before", 1, age_s=1200.0, **on_it), nodes=nodes)).keys() == {
        "there",
        "before",
    }


@pytest.mark.parametrize("rules", RULES)
def test_priority_and_the_weight_of_a_team_put_a_run_to_the_front(rules: str) -> None:
    two = [lasting(name, 4, left_s) for name, left_s in (("short", 500.0), ("long", 600.0))]
    assert became(look((), *two, nodes=FOUR), rules)["long"].phase is Phase.PENDING
    urgent = lasting("long", 4, 600.0, priority=300)
    assert became(look((), two[0], urgent, nodes=FOUR), rules)["long"].phase is Phase.STARTING
    heavy = lasting("long", 4, 600.0, team="heavy")
    teams = (Team(name="heavy", weight=50),)
    assert became(look((), two[0], heavy, nodes=FOUR, teams=teams), rules)["long"].phase is Phase.STARTING


@pytest.mark.parametrize("rules", RULES)
def test_what_a_team_is_guaranteed_goes_before_all_and_is_never_taken(rules: str) -> None:
    teams = (Team(name="owed", guaranteed=Quota(gpu_milli=4000)),)
    long = lasting("long", 4, 90_000.0, team="owed")
    assert (
        became(look((), lasting("short", 4, 60.0), long, nodes=FOUR, teams=teams), rules)["long"].phase
        is Phase.STARTING
    )
    there = running("there", "n0", range(4), expected_duration_s=90_000.0, team="owed")
    assert "there" not in became(look((there,), lasting("short", 4, 60.0), nodes=FOUR, teams=teams), rules)


@pytest.mark.parametrize("rules", RULES)
def test_a_quota_bounds_what_a_team_gets(rules: str) -> None:
    teams = (Team(name="bound", quota=Quota(gpu_milli=2000)),)
    queue = [lasting(f"run-{letter}", 1, 60.0, team="bound") for letter in "abc"]
    found = became(look((), *queue, lasting("other", 2, 9000.0), nodes=FOUR, teams=teams), rules)
    assert sum(found[each.uid].phase is Phase.STARTING for each in queue) == 2
    assert found["other"].phase is Phase.STARTING


@pytest.mark.parametrize("rules", RULES)
def test_a_scavenger_gives_way_to_a_run_that_was_chosen(rules: str) -> None:
    idle = running("idle", "n0", range(4), expected_duration_s=60.0, priority=-1)
    found = became(look((idle,), lasting("long", 4, 9000.0), nodes=FOUR), rules)
    assert found["idle"].reason.message == "preempted by long: it takes only what is idle"


@pytest.mark.parametrize("rules", RULES)
def test_runs_without_gpus_start_where_there_are_cores(rules: str) -> None:
    there = running("there", "n0", range(4), expected_duration_s=60.0)
    beside = replace(waiting("beside", 1), spec=replace(waiting("beside", 1).spec, resources=Resources(cpu_milli=1000)))
    assert became(look((there,), beside, nodes=FOUR), rules)["beside"].phase is Phase.STARTING


@pytest.mark.parametrize("rules", RULES)
def test_nobody_gives_way_where_the_other_cannot_go(rules: str) -> None:
    other = replace(
        node("n1", gpus=4, cpu_milli=64_000), gpus=tuple(replace(gpu, model="H100") for gpu in node("n1", gpus=4).gpus)
    )
    nodes: tuple[Node, ...] = (*FOUR, other)
    on_h100 = running("there", "n1", range(4), expected_duration_s=90_000.0)
    on_a100 = running("short", "n0", range(4), expected_duration_s=30.0)
    only = lasting("only", 4, 600.0)
    gpu = GpuRequest(milli=4000, model="A100")
    only = replace(only, spec=replace(only.spec, resources=replace(only.spec.resources, gpu=gpu)))
    found = became(look((on_a100, on_h100), only, nodes=nodes), rules)
    assert "there" not in found


TWO = tuple(node(name, gpus=4, cpu_milli=64_000) for name in ("n0", "n1"))
SAVED = Progress(step=10, checkpoint_step=10, checkpoint_at=NOW - 30.0)


def test_a_smaller_run_restarts_where_the_chosen_lie_in_the_wrong_places() -> None:
    """By number all three fit; nobody is to be stopped for good."""
    dear = running("dear", "n0", range(2), expected_duration_s=9000.0, progress=replace(SAVED, checkpoint_at=NOW - 600))
    cheap = running("cheap", "n1", range(2), expected_duration_s=9000.0, progress=SAVED)
    found = became(look((dear, cheap), lasting("wide", 4, 5000.0), nodes=TWO))
    assert found.keys() == {"cheap", "wide"}
    assert found["cheap"].phase is Phase.STOPPING
    assert found["cheap"].after_stop.phase is Phase.PENDING
    assert found["cheap"].migration.decided_at == NOW
    assert found["cheap"].reason.message == (
        "makes room for wide, which needs it in one piece; continues from its checkpoint elsewhere"
    )
    assert found["wide"].reason.message.endswith("starts when cheap has saved its work and left")


def test_whoever_was_not_chosen_leaves_the_room_to_which_a_smaller_run_goes() -> None:
    """One that is long lies beside each of two that are short; the node of one of these becomes free as a whole."""
    held = [
        running(f"{name}-{on}", on, gpus, expected_duration_s=left_s, progress=SAVED)
        for on in ("n0", "n1")
        for name, gpus, left_s in (("short", range(2), 2000.0), ("long", range(2, 4), 900_000.0))
    ]
    found = became(look(held, lasting("wide", 4, 5000.0), nodes=TWO))
    gone = {uid: status.reason.message.split()[0] for uid, status in found.items() if status.phase is Phase.STOPPING}
    assert gone in ({f"short-{on}": "makes", f"long-{on}": "preempted"} for on in ("n0", "n1"))


@pytest.mark.parametrize(
    "change",
    [
        {"progress": None},
        {"progress": replace(SAVED, checkpoint_at=NOW - 6000.0)},
        {"left_s": 30.0},
    ],
    ids=["saves nothing", "would redo too much", "is over soon"],
)
def test_nobody_restarts_for_another(change: dict[str, Any]) -> None:
    known: dict[str, Any] = {"progress": SAVED, "left_s": 9000.0, **change}
    held = [
        running(
            on, on, range(2), began_s=7000.0, expected_duration_s=7000.0 + known["left_s"], progress=known["progress"]
        )
        for on in ("n0", "n1")
    ]
    found = became(look(held, lasting("wide", 4, 5000.0), nodes=TWO))
    assert found.keys() == {"wide"}


def test_time_alone_makes_a_run_pressed() -> None:
    there, late = running("there", "n0", range(4), expected_duration_s=5000.0), lasting("late", 4, 4900.0)
    seen = replace(look((there,), late, nodes=FOUR), rules=POLICIES["finish-time"])
    at = next_decision_at(seen, NOW)
    # Nobody is late yet: its due time less twice what is left of it.
    assert NOW < at < NOW + 4900.0 * 1.05
    assert "there" not in became(seen, "finish-time")


def _gpus(workload: Workload) -> int:
    gpu = workload.spec.resources.gpu
    assert gpu is not None
    return gpu.num_devices
