"""A team gets no more than its share by any number that it may choose, each tried beside a team that chooses none."""

from collections.abc import Sequence
from typing import Any

import pytest

from fairlead.cluster.simulated.programs import SimulatedProgram
from fairlead.specs.resources import Resources
from fairlead.specs.team import Team
from fairlead.specs.training import Capacity
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase
from tests.builders import node, training
from tests.policy.world import Job, Move, Scenario, Sleep, Submit, Wait, World, play

NODE_MILLI = 1000
DAY_S = 86_400.0


def job(name: str, *, duration_s: float = 100_000.0, **spec: Any) -> Job:
    values = {"resources": Resources(cpu_milli=NODE_MILLI), "grace_s": 5.0, **spec}
    return Job(spec=training(name, run=name, **values), programs=(SimulatedProgram(duration_s=duration_s),))


def played(num_nodes: int, *moves: Move, jobs: Sequence[Job], teams: tuple[Team, ...] = ()) -> World:
    nodes = tuple(node(f"node-{number}", cpu_milli=NODE_MILLI) for number in range(num_nodes))
    return play(Scenario(nodes=nodes, jobs=tuple(jobs), moves=moves, teams=teams))


def starts(world: World) -> list[str]:
    """The names of runs in the order in which they start."""
    found = list[str]()
    for decision in world.decisions:
        begun = [workload.spec.name for workload, change in decision.done() if change.create]
        found += [name for name in begun if name not in found]
    return found


def preempted(world: World, until: float) -> set[str]:
    return {
        workload.spec.name
        for decision in world.decisions
        if decision.at < until
        for workload, change in decision.done()
        if change.status is not None
        and change.status.phase is Phase.STOPPING
        and change.status.reason.code is Code.PREEMPTED
    }


def started_at(world: World, name: str) -> float:
    return next(
        decision.at
        for decision in world.decisions
        for workload, change in decision.done()
        if change.create and workload.spec.name == name
    )


def test_a_team_with_the_whole_cluster_keeps_no_other_out_by_preempting_its_own_run() -> None:
    begun: tuple[Move, ...] = (Submit(0), Submit(1), Wait(0.0), Wait(0.0), Sleep(60.0))
    world = played(
        4, *begun, Submit(2), Wait(0.0), Sleep(5.0), Submit(3), Wait(0.0), Wait(10.0), Wait(10.0),
        jobs=(
            job("half-a", nodes=2, team="evil", duration_s=400.0),
            job("half-b", nodes=2, team="evil", duration_s=600.0),
            job("fair", nodes=2, team="nlp"),
            job("greedy", nodes=2, team="evil", priority=1000),
        ),
    )  # fmt: skip
    assert starts(world) == ["half-a", "half-b", "fair", "greedy"]
    assert preempted(world, until=started_at(world, "fair")) == set()
    # Then the team holds its share, and its run of a higher priority replaces the other.
    assert preempted(world, until=started_at(world, "greedy") + 1.0) == {"half-b"}


def test_a_team_within_its_share_replaces_its_own_run_though_others_wait() -> None:
    world = played(
        4, Submit(0), Submit(1), Wait(0.0), Wait(0.0), Submit(2), Submit(3), Wait(0.0), Wait(10.0),
        jobs=(
            job("other", nodes=2, team="nlp"),
            job("low", nodes=2, team="vision"),
            job("waits", nodes=2, team="nlp"),
            job("urgent", nodes=2, team="vision", priority=5),
        ),
    )  # fmt: skip
    assert preempted(world, until=started_at(world, "urgent") + 1.0) == {"low"}
    assert starts(world)[:3] == ["other", "low", "urgent"]


# Each makes the run of a team that holds half of four nodes, and asks for one more, look more urgent.
CHOICES: dict[str, dict[str, Any]] = {
    "priority": {"priority": 1000},
    "a short max_duration": {"max_duration_s": 50.0, "duration_s": 40.0},
    "a short expected_duration": {"expected_duration_s": 1.0},
    "a deadline": {"expected_duration_s": 10.0, "deadline_s": DAY_S, "capacity": Capacity(auto=True)},
    "nodes from one on": {"most_nodes": 300},
    "labels": {"labels": {"project": "a", "priority": "1000"}},
    "an early name": {"name": "0"},
    "its age": {"first": True},
}


@pytest.mark.parametrize("choice", CHOICES)
def test_no_number_that_a_team_chooses_puts_it_before_a_team_that_asks_for_its_share(choice: str) -> None:
    values = dict(CHOICES[choice])
    name, first = values.pop("name", "chosen"), values.pop("first", False)
    submits: tuple[Move, ...] = (Submit(3), Wait(0.0), Sleep(3 * DAY_S), Submit(2)) if first else (Submit(2), Submit(3))
    world = played(
        4, Submit(0), Submit(1), Wait(0.0), Wait(0.0), *submits, Wait(0.0),
        jobs=(
            # At the end of the first there is room for one.
            job("ends", team="nlp", duration_s=3 * DAY_S + 1000.0 if first else 1000.0),
            job("holds", nodes=3, team="evil", duration_s=9 * DAY_S),
            job("plain", team="nlp", duration_s=5 * DAY_S),
            job(name, team="evil", **values),
        ),
    )  # fmt: skip
    assert starts(world)[2] == "plain"


def test_many_runs_of_one_team_leave_the_others_their_share() -> None:
    many = [job(f"many-{number}", team="evil", duration_s=100.0 + number) for number in range(40)]
    few = [job(f"few-{number}", team="nlp", duration_s=100.0 + number) for number in range(8)]
    begun: tuple[Move, ...] = (*(Submit(number) for number in range(40)), Wait(0.0), Sleep(10.0))
    world = played(
        4, *begun, *(Submit(40 + number) for number in range(8)), Wait(0.0), jobs=(*many, *few)
    )  # fmt: skip
    order = starts(world)
    # It held all four nodes when the others came; from then on each gets two.
    last = max(order.index(f"few-{number}") for number in range(8))
    assert sum(name.startswith("many") for name in order[4:last]) <= 8


@pytest.mark.parametrize(
    ("team", "limits", "passes"),
    [
        ("nlp", {"expected_duration_s": 10.0}, True),
        ("evil", {"expected_duration_s": 10.0}, False),
        ("evil", {"max_duration_s": 300.0}, True),
    ],
    ids=["an estimate, in its own team", "an estimate, before another team", "a limit, before another team"],
)
def test_a_run_passes_the_promised_start_of_another_team_by_a_limit_and_not_by_an_estimate(
    team: str, limits: dict[str, Any], passes: bool
) -> None:
    world = played(
        8, Submit(0), Wait(0.0), Wait(0.0), Submit(1), Wait(0.0), Submit(2), Wait(0.0),
        jobs=(
            job("holds", nodes=5, team="vision", max_duration_s=500.0, duration_s=400.0),
            job("wide", nodes=6, team="nlp"),
            job("passing", nodes=3, team=team, **limits),
        ),
        teams=(Team(name="nlp", weight=8),),
    )  # fmt: skip
    assert (started_at(world, "passing") == started_at(world, "holds")) is passes


@pytest.mark.parametrize(("weight", "is_held"), [(1, False), (8, True)], ids=["wider than its share", "within it"])
def test_nothing_is_held_free_for_a_run_that_is_wider_than_its_teams_share_while_others_wait(
    weight: int, is_held: bool
) -> None:
    world = played(
        8, Submit(0), Wait(0.0), Wait(0.0), Submit(1), Wait(0.0), Submit(2), Wait(0.0),
        jobs=(
            job("holds", nodes=5, team="vision", max_duration_s=500.0, duration_s=400.0),
            job("wide", nodes=6, team="nlp"),
            job("other", nodes=3, team="evil"),
        ),
        teams=(Team(name="nlp", weight=weight),),
    )  # fmt: skip
    assert (started_at(world, "other") > started_at(world, "holds")) is is_held
