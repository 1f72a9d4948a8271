"""A sweep that is over continues with more trials, as if it had had them from the beginning, or says why it cannot."""

from dataclasses import replace

import pytest

from fairlead.errors import Conflict
from fairlead.policy.kinds.lifecycle import check_intent, is_over
from fairlead.policy.kinds.parents import judge_parents
from fairlead.policy.kinds.spec_updates import check_update
from fairlead.specs.sweep import Stop, Sweep
from fairlead.state.plan import Change
from fairlead.state.snapshot import Intent, Phase, Snapshot, Status
from tests.policy.test_sweep import World, spec


def seen_again(world: World) -> Change:
    """Judge the sweep of a world after its end, while it is to run."""
    world.sweep = replace(world.sweep, intent=Intent.RUN)
    snapshot = Snapshot(
        nodes=(), workloads=(), pods=(), parents=(world.sweep,), ended=tuple(world.trials.values())
    )  # fmt: skip
    (change,) = judge_parents(snapshot, world.now)
    return change


def settle(world: World) -> None:
    """End a sweep whose running trials were stopped with it."""
    if world.sweep.status.phase is Phase.STOPPING:
        world.sweep = replace(world.sweep, status=replace(world.sweep.status, phase=Phase.SUCCEEDED))


def continued(world: World, changed: Sweep) -> None:
    """Give the ended sweep of a world another spec, and let it run to its end again."""
    assert check_update(world.sweep, changed)
    world.sweep = replace(world.sweep, spec=changed)
    change = seen_again(world)
    assert not is_over(world.sweep), "who waits for it would take it for finished"
    assert change.status is not None
    assert change.status.phase is Phase.PENDING
    assert "resumed after it had succeeded" in change.status.reason.message
    world.sweep = replace(world.sweep, status=change.status, version=change.version + 1)
    for order in change.children:
        (name,) = (name for name, trial in world.trials.items() if trial.uid == order.uid)
        world.trials[name] = replace(world.trials[name], intent=Intent.RUN, status=_running(world, name))
        world.resumed.append(int(name))


def _running(world: World, name: str) -> Status:
    return replace(world.trials[name].status, phase=Phase.RUNNING)


@pytest.mark.parametrize("sampler", ["tpe", "random", "gp", "cma-es"])
def test_trials_that_are_added_get_the_values_that_they_would_have_had_from_the_beginning(sampler: str) -> None:
    whole = World(spec(trials="16", parallel="1", sampler=sampler), steps=2)
    whole.run()
    world = World(spec(trials="12", parallel="1", sampler=sampler), steps=2)
    assert world.run() is Phase.SUCCEEDED
    continued(world, spec(trials="16", parallel="1", sampler=sampler))
    assert world.run() is Phase.SUCCEEDED
    assert {name: run.spec for name, run in world.trials.items()} == {
        name: run.spec for name, run in whole.trials.items()
    }
    assert "16 of 16 trials are over" in world.sweep.status.reason.message


def test_failed_trials_of_a_sweep_that_succeeded_are_not_repeated() -> None:
    world = World(spec(trials="6"), fails=lambda number: number == 2, steps=2)
    world.run()
    continued(world, spec(trials="8"))
    assert world.resumed == []
    assert world.run() is Phase.SUCCEEDED
    assert "8 of 8 trials are over (1 failed)" in world.sweep.status.reason.message


def test_a_sweep_at_its_target_continues_towards_a_better_one() -> None:
    world = World(spec(trials="200", stop="{target: 0.2}"))
    world.run()
    num_before = len(world.trials)
    with pytest.raises(Conflict, match=r"is good enough; give a better `stop.target`, or none"):
        check_update(world.sweep, spec(trials="300", stop="{target: 0.2}"))
    continued(world, spec(trials="200", stop="{target: 0.1}"))
    assert world.run() is Phase.SUCCEEDED
    assert len(world.trials) > num_before


def test_a_sweep_whose_time_was_over_has_the_rest_of_a_longer_time_with_the_trials_that_stopped_with_it() -> None:
    world = World(spec(trials="200", stop="{duration: 60s}"))
    world.run()
    settle(world)
    with pytest.raises(Conflict, match=r"has run for 1m; give a longer `stop.duration`"):
        check_update(world.sweep, spec(trials="300", stop="{duration: 60s}"))
    num_before, halted = len(world.trials), world.sweep.status.halted
    world.now += 86_400  # a day in which it does not run
    continued(world, spec(trials="200", stop="{duration: 120s}"))
    assert halted
    assert [world.trials[str(number)].uid for number in world.resumed] == list(halted)
    began = world.now
    assert world.run() is Phase.SUCCEEDED
    assert num_before < len(world.trials) <= 2 * num_before
    assert 58 <= world.now - began <= 62


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stop": "{target: 0.2}", "trials": "200"},
        {"stop": "{duration: 60s}", "trials": "200"},
        {"prune": "asha"},
        {"parallel": "free"},
    ],
)
def test_a_sweep_that_has_just_succeeded_stays_so(changes: dict[str, str]) -> None:
    world = World(spec(**changes))
    assert world.run() is Phase.SUCCEEDED
    settle(world)
    change = seen_again(world)
    assert (change.intent, change.status) == (Intent.STOP, None)
    assert is_over(world.sweep)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"trials": "11"}, r"rates: trials: 11 is fewer than it has had, 12 trials\."),
        ({"parallel": "5"}, r"rates has succeeded: it has had 12 trials; give more `trials`, such as 24\."),
        ({"seed": "1", "trials": "24"}, r"rates: seed cannot change \(0 -> 1\): its trials could not be compared"),
        ({"trial": "{run: train2}", "trials": "24"}, r"rates: trial.run cannot change \(train -> train2\)"),
    ],
)
def test_a_change_of_an_ended_sweep_that_cannot_be_is_refused(changed: dict[str, str], problem: str) -> None:
    world = World(spec(), steps=1)
    world.run()
    with pytest.raises(Conflict, match=problem):
        check_update(world.sweep, spec(**changed))


def test_a_grid_that_had_all_of_its_combinations_has_no_more() -> None:
    array = Sweep(name="shards", trial=spec().trial, parameters={"shard": "0..5"}, parallel=2)
    world = World(array, loss=lambda _values, _step: 0.0, steps=1)
    world.run()
    assert seen_again(world).intent is Intent.STOP
    with pytest.raises(Conflict, match=r"it has had 6 trials, and its grid has no more; `fairlead run` begins anew"):
        check_update(world.sweep, replace(world.sweep.spec, trials=9))
    with pytest.raises(Conflict, match=r"nothing left to do. `fairlead run` submits it as a new run\."):
        check_intent(world.sweep, Intent.RUN)


def test_a_sweep_that_succeeded_names_the_command_for_more_trials() -> None:
    world = World(spec(), steps=1)
    world.run()
    with pytest.raises(Conflict, match=r"`fairlead resume rates --set trials=24` tries more of the same search\."):
        check_intent(world.sweep, Intent.RUN)


def test_a_running_sweep_takes_more_trials_without_a_pause() -> None:
    world = World(spec(trials="12"), steps=2)
    while world.detail.over < 6:
        world.pass_once()
        world.step()
    assert check_update(world.sweep, spec(trials="20", stop="{duration: 1h}"))
    world.sweep = replace(world.sweep, spec=spec(trials="20", stop="{duration: 1h}"))
    assert world.run() is Phase.SUCCEEDED
    assert len(world.trials) == 20
    assert Stop() != world.sweep.spec.stop
