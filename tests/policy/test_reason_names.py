"""Reasons name runs of other teams as TEAM/NAME or not at all, and no command for them; over all reasons of a queue."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.simulated.programs import SimulatedProgram
from fairlead.policy import decide as deciding
from fairlead.policy.queue.run_names import Reader
from fairlead.policy.start_outlook import outlook
from fairlead.specs.resources import Resources
from fairlead.specs.team import Quota, Team
from fairlead.state.reasons import Reason
from fairlead.state.scheduling_policy import POLICIES
from fairlead.state.snapshot import Snapshot
from tests.builders import node, training
from tests.policy.move_mutants import MOVE_MUTANTS
from tests.policy.world import Job, Move, Scenario, Sleep, Submit, Wait, play

HIDDEN = "a run of another team"


def job(name: str, team: str, num_nodes: int = 1, **spec: Any) -> Job:
    values = {"resources": Resources(cpu_milli=1000), "grace_s": 5.0, **spec}
    built = training(f"{team}-{name}", run=name, team=team, nodes=num_nodes, **values)
    return Job(spec=built, programs=(SimulatedProgram(duration_s=5000.0, step_s=1.0, checkpoint_s=5.0),))


def story(*jobs: Job, teams: tuple[Team, ...] = (), num_nodes: int = 4) -> Scenario:
    moves: list[Move] = []
    for number in range(len(jobs)):
        moves += [Submit(number), Wait(0.0), Wait(0.0), Sleep(30.0), Wait(0.0)]
    nodes = tuple(node(f"node-{number}", cpu_milli=1000) for number in range(num_nodes))
    return Scenario(nodes=nodes, jobs=jobs, moves=(*moves, Wait(5.0), Wait(5.0)), teams=teams)


OWED = (Team(name="nlp", guaranteed=Quota(cpu_milli=4000)),)
STORIES = {
    "waits for others": story(job("a", "vision", 3), job("b", "nlp", 1), job("c", "nlp", 4), job("d", "vision")),
    "waits for a known end": story(job("a", "vision", 4, max_duration_s=900.0), job("c", "nlp", 4)),
    "guaranteed": story(job("a", "vision", 2), job("b", "vision", 2), job("c", "nlp", 3), teams=OWED),
    "scavenger": story(job("a", "vision", 4, priority=-1), job("c", "nlp", 3)),
    "shrinks": story(job("a", "vision", 1, most_nodes=4), job("c", "nlp", 3), teams=OWED),
    "shrinks for its own": story(job("a", "vision", 1, most_nodes=4), job("c", "vision", 3, priority=9)),
    "behind": story(job("a", "vision", 4), job("b", "nlp", 4), job("c", "vision", 1), job("d", "nlp", 1)),
    "move": MOVE_MUTANTS[0][3],
}


def reasons(scenario: Scenario, *, shows_names: bool) -> list[tuple[str, str, Reason]]:
    """All reasons that are given, with the team and the name of the run: decided, told as events, and forecast."""
    found = []

    def named(snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, rules=replace(snapshot.rules, shows_names=shows_names))

    for decision in play(scenario).decisions:
        before = named(decision.before)
        by_uid = {workload.uid: workload.spec for workload in before.workloads}
        for change in deciding.decide(before, decision.now).changes:
            spec = by_uid[change.workload_uid]
            said = [] if change.status is None else [change.status.reason, change.status.after_stop.reason]
            found += [(spec.team, spec.name, each) for each in (*said, change.event and change.event.reason) if each]
            if change.status is not None and change.status.queue.preempted_by:
                found.append(
                    (
                        spec.team,
                        spec.name,
                        Reason(code=change.status.reason.code, message=change.status.queue.preempted_by),
                    )
                )
        ahead = outlook(before, decision.now)
        for uid, status in ahead.statuses.items():
            found.append((by_uid[uid].team, by_uid[uid].name, status.reason))
        for each in ahead.queue:
            reason = replace(each.run.status.reason, message=each.unknown, remedy=None)
            found.append((each.run.spec.team, each.run.spec.name, reason))
    return found


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("shows_names", [True, False], ids=["names", "no names"])
def test_no_reason_gives_the_bare_name_of_another_teams_run_nor_a_command_for_it(name: str, shows_names: bool) -> None:
    scenario = STORIES[name]
    team_of = {each.spec.name: each.spec.team for each in scenario.jobs}
    given = reasons(scenario, shows_names=shows_names)
    assert given
    for team, _, reason in given:
        for other, its_team in team_of.items():
            if its_team == team:
                continue
            message = reason.message.replace(f"{its_team}/{other}", "") if shows_names else reason.message
            assert other not in message.replace(",", " ").replace(":", " ").split(), reason
            assert f" {other}`" not in (reason.remedy or ""), reason
            if not shows_names:
                assert other not in (reason.remedy or "").split()


def test_names_of_others_are_seen_where_they_are_allowed_and_counted_where_not() -> None:
    runs = [("nlp", "b"), ("nlp", "a"), ("vision", "z"), ("vision", "y")]
    assert Reader("nlp").names(runs) == "a, b, vision/y, vision/z"
    assert Reader("nlp", shows_others=False).names(runs) == "a, b and 2 runs of other teams"
    assert Reader("audio", shows_others=False).names(runs) == "4 runs of other teams"
    assert Reader("audio", shows_others=False).names(runs[:1]) == HIDDEN
    assert Reader("nlp").names([]) == ""
    many = [("nlp", f"r{number}") for number in range(7)]
    assert Reader("nlp", shows_others=False).names([*many, *runs[2:]]) == (
        "r0, r1, r2, r3, r4 and 2 more and 2 runs of other teams"
    )
    assert Reader("nlp").own(runs) == "a"
    assert Reader("audio").own(runs) is None


def test_every_story_gives_reasons_about_other_teams() -> None:
    """Else the test above would hold of anything."""
    told = {name: reasons(scenario, shows_names=False) for name, scenario in STORIES.items()}
    assert {name for name, given in told.items() if any("other team" in each.message for *_, each in given)} >= {
        "waits for others", "waits for a known end", "guaranteed", "scavenger", "shrinks", "behind",
    }  # fmt: skip


def test_a_remedy_names_a_command_only_for_a_run_of_the_team() -> None:
    given = reasons(STORIES["waits for others"], shows_names=True)
    commands = {(team, each.remedy) for team, _, each in given if each.remedy and "`fairlead suspend" in each.remedy}
    assert commands
    assert all(f"`fairlead suspend {team}-" in remedy for team, remedy in commands)


def test_all_policies_show_names_unless_an_installation_hides_them() -> None:
    assert all(policy.shows_names for policy in POLICIES.values())
