"""Which trials pause at a rung, and which paused ones are promoted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy.kinds import training
from fairlead.policy.kinds.parents import judge_parents
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.sweep import detail_of, judge, trials_of, why_stopped
from fairlead.policy.search.promotion import pauses, promotable
from fairlead.policy.search.pruning import CURVE_PARTS, EarlyCurve, RungReport, followed, has_early_rung, with_rungs
from fairlead.policy.search.trials import TrialState
from fairlead.specs.goal import Goal
from fairlead.specs.search_space import Value
from fairlead.specs.sweep import Prune, Sweep, values_of
from fairlead.state.plan import Change
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Progress, Snapshot, Workload
from tests.builders import BECAUSE, status
from tests.policy.test_sweep import World, spec

THIRD = Prune(after=1, factor=3)
SAVING = "{run: train, checkpoint: {every: 1 steps}}"


def at(rung: int, *values: float) -> list[RungReport]:
    return [RungReport(trial=trial, rung=rung, value=value) for trial, value in enumerate(values)]


def who_pauses(reports: list[RungReport], *, gone: tuple[int, ...] = (), is_last: bool = False) -> list[int]:
    return [
        each.trial
        for each in reports
        if pauses(THIRD, Goal.MINIMIZE, each, reports, gone=gone, is_last=is_last)
    ]  # fmt: skip


def who_goes_on(
    reports: list[RungReport],
    *paused: int,
    gone: tuple[int, ...] = (),
    is_last: bool = False,
    goal: Goal = Goal.MINIMIZE,
) -> list[int]:
    return promotable(THIRD, goal, reports, paused=paused, gone=gone, is_last=is_last)


def test_a_trial_pauses_unless_it_is_in_the_best_third_of_those_at_its_rung() -> None:
    assert who_pauses(at(0, 5.0)) == [0]
    assert who_pauses(at(0, 5.0, 4.0)) == [0, 1]
    assert who_pauses(at(0, 5.0, 4.0, 6.0)) == [0, 2]
    assert who_pauses(at(0, 5.0, 4.0, 6.0, 3.0, 7.0, 8.0)) == [0, 2, 4, 5]
    # Of equals the earlier one is the better one.
    assert who_pauses(at(0, 5.0, 5.0, 5.0)) == [1, 2]


def test_a_paused_trial_goes_on_once_enough_others_are_worse_and_the_furthest_comes_first() -> None:
    assert who_goes_on(at(0, 5.0, 4.0), 0, 1) == []
    assert who_goes_on(at(0, 5.0, 4.0, 6.0), 0, 1, 2) == [1]
    assert who_goes_on(at(0, 5.0, 4.0, 6.0), 0, 1, 2, goal=Goal.MAXIMIZE) == [2]
    assert who_goes_on(at(0, 5.0, 4.0, 6.0), 0, 2) == []
    six = at(0, 5.0, 4.0, 6.0, 3.0, 7.0, 8.0)
    assert who_goes_on(six, 0, 1, 2, 3, 4, 5) == [3, 1]
    # What has been promoted is judged at its next rung alone.
    both = [*at(0, *range(9)), *at(1, 2.0, 1.0, 3.0)]
    assert who_goes_on(both, *range(9)) == [1]
    assert who_goes_on(both[:-1], *range(9)) == [2]


def test_one_that_cannot_go_on_takes_no_place_among_the_best() -> None:
    three = at(0, 5.0, 4.0, 6.0)
    assert who_goes_on(three, 0, 2, gone=(1,)) == [0]
    assert who_pauses(three, gone=(1,)) == [1, 2]


def test_when_no_more_are_to_come_the_best_at_each_rung_goes_on() -> None:
    two = at(0, 5.0, 4.0)
    assert who_pauses(two, is_last=True) == [0]
    assert who_goes_on([*two, *at(1, 7.0)], 0, 1) == []
    assert who_goes_on([*two, *at(1, 7.0)], 0, 1, is_last=True) == [0, 1]


def saving(**changes: str) -> Sweep:
    return spec(**{"trials": "40", "sampler": "random", "prune": "{after: 3, factor: 3}", "trial": SAVING, **changes})


def test_paused_trials_go_on_from_where_they_were_and_each_trial_is_submitted_once() -> None:
    world = World(saving(), saves=True)
    assert world.run() is Phase.SUCCEEDED
    assert sorted(world.trials, key=int) == [str(number) for number in range(40)]
    assert world.most <= 3
    assert world.resumed
    # As many steps as the trials have come to: none took one twice.
    assert world.num_steps == sum(each.progress.step or 0 for each in world.trials.values() if each.progress)
    assert any(
        each.startswith("TrialPaused: ") and "was paused by asha: its loss at step 3 was" in each
        for each in world.events
    )  # fmt: skip
    assert any(each.startswith("TrialPromoted: ") and "continues: its loss at step" in each for each in world.events)
    assert "40 of 40 trials are over (" in world.sweep.status.reason.message
    assert "paused" not in world.sweep.status.reason.message
    states = {each.state for each in trials_of(world.sweep, Family(children=world.trials))}
    assert states == {TrialState.SUCCEEDED, TrialState.PRUNED}


def test_a_sweep_says_which_trials_are_paused_while_it_goes_on() -> None:
    world = World(saving(), saves=True)
    for _ in range(12):
        while world.pass_once() is not None:
            pass
        world.step()
    paused = [each for each in trials_of(world.sweep, Family(children=world.trials)) if each.state is TrialState.PAUSED]
    assert paused
    assert f"({len(paused)} paused" in world.sweep.status.reason.message


def test_one_trial_at_least_comes_to_its_end_however_few_there_are() -> None:
    for trials in ("1", "2", "4"):
        world = World(saving(trials=trials), saves=True)
        assert world.run() is Phase.SUCCEEDED
        assert world.detail.best is not None


@pytest.mark.parametrize("fails", [0, 1, 2, 3])
def test_the_next_best_goes_on_when_the_best_fails_on_its_way(fails: int) -> None:
    world = World(saving(trials="4"), saves=True, fails=lambda number: number == fails)
    assert world.run() is Phase.SUCCEEDED
    assert world.detail.best != fails


def test_trials_without_checkpoints_are_stopped_for_good_as_they_were() -> None:
    for total in (None, 27):
        world, other = (World(each, total=total) for each in (saving(), saving(trial="{run: train}")))
        assert world.run() is Phase.SUCCEEDED
        other.run()
        assert world.events == other.events
        assert world.resumed == []
        assert any("was pruned by asha" in each for each in world.events)
        assert not any("paused" in each for each in world.events)


def test_a_trial_that_left_no_checkpoint_at_its_stop_is_not_resumed() -> None:
    world = World(saving(), saves=True)
    for _ in range(60):
        while world.pass_once() is not None:
            pass
        # Nothing that a trial with an even number saved is found again.
        for name, trial in world.trials.items():
            if int(name) % 2 == 0 and trial.status.phase is Phase.STOPPED and trial.progress is not None:
                world.trials[name] = replace(trial, progress=replace(trial.progress, checkpoint_step=None))
        if world.sweep.status.phase.is_final:
            break
        world.step()
    assert world.resumed
    assert all(number % 2 == 1 for number in world.resumed)


def test_a_trial_with_nothing_left_to_do_is_not_stopped() -> None:
    world = World(saving(prune="{after: 9, factor: 3}"), saves=True, total=27)
    world.run()
    assert all(
        (each.status.phase is Phase.SUCCEEDED) == (each.progress is not None and each.progress.step == 27)
        for each in world.trials.values()
    )


def test_an_order_that_was_lost_is_repeated_and_one_that_came_without_its_record_is_taken_back() -> None:
    world = World(saving(), saves=True)
    while not world.detail.pruned:
        world.pass_once()
        world.step()
    name = str(world.detail.pruned[0])
    paused = world.trials[name]
    # The order to stop did not arrive.
    running = replace(paused, status=status(Phase.RUNNING), intent=Intent.RUN)
    change = judge(world.sweep, Family(children={**world.trials, name: running}), world.now)
    assert change is not None
    assert [(each.uid, each.intent) for each in change.children if each.uid == paused.uid] == [
        (paused.uid, Intent.STOP)
    ]
    # A promotion arrived whose record was not written.
    resumed = replace(paused, status=status(Phase.PENDING), intent=Intent.RUN)
    change = judge(world.sweep, Family(children={**world.trials, name: resumed}), world.now)
    assert change is not None
    assert (paused.uid, Intent.STOP) in [(each.uid, each.intent) for each in change.children]


def test_a_sweep_with_a_target_or_a_time_ends_with_paused_trials_pruned() -> None:
    world = World(saving(trials="200", stop="{duration: 60s}"), saves=True)
    assert world.run() is Phase.SUCCEEDED
    assert "its time, 1m, is over" in world.sweep.status.reason.message
    assert "paused" not in world.sweep.status.reason.message
    assert "pruned" in world.sweep.status.reason.message


def test_the_factor_is_five_where_trials_keep_checkpoints_and_three_elsewhere() -> None:
    def factor(**changes: str) -> int | None:
        pruning = saving(**{"prune": "asha", **changes}).pruning
        return None if pruning is None else pruning.factor

    assert factor() == 5
    assert factor(trial="{run: train}") == 3
    assert factor(prune="median") == 3
    assert factor(prune="{factor: 8}") == 8
    assert factor(prune="") is None


def test_a_trial_that_resumed_at_its_end_has_not_failed() -> None:
    world = World(saving(trials="4"), saves=True)
    world.pass_once()
    world.step()
    told = Progress(step=27, resumed_step=27, checkpoint_step=27)
    ended = replace(world.trials["0"], status=status(Phase.SUCCEEDED), intent=Intent.STOP, progress=told)
    (record,) = (
        each for each in trials_of(world.sweep, Family(children={**world.trials, "0": ended})) if each.number == 0
    )
    assert record.state is TrialState.STOPPED
    assert detail_of(world.sweep).failed == ()


def test_trials_that_were_far_beyond_a_rung_when_it_became_known_take_no_place_there() -> None:
    late = [RungReport(trial=trial, rung=0, value=0.0, is_late=True) for trial in (7, 8)]
    assert who_pauses([*late, *at(0, 5.0)]) == [7, 8]
    assert who_goes_on([*late, *at(0, 5.0, 4.0)], 0, 1) == [1]
    world = World(saving(prune="{factor: 8}"), saves=True)
    assert world.run() is Phase.SUCCEEDED
    assert {each.trial for each in world.detail.rungs if each.is_late} == {0, 1, 2}
    assert all(world.trials[str(number)].status.phase is Phase.SUCCEEDED for number in range(3))
    assert world.resumed


def test_a_paused_trial_that_somebody_deleted_is_not_promoted_and_takes_no_place() -> None:
    world = World(saving(trials="9"), saves=True)
    while len(world.detail.pruned) < 2:
        world.pass_once()
        world.step()
    gone = min(world.detail.pruned, key=lambda number: world.trials[str(number)].progress.loss)  # type: ignore[union-attr,return-value,arg-type]
    del world.trials[str(gone)]
    assert world.run() is Phase.SUCCEEDED
    assert gone not in world.resumed
    assert world.resumed
    assert world.detail.submitted == 9


def stopped(world: World, trial: Workload, *, saves: bool) -> str:
    """Return the reason of a trial whose pods are gone after it was told to stop."""
    assert trial.progress is not None
    snapshot = Snapshot(nodes=(), workloads=(), pods=(), parents=(world.sweep,))
    saved = trial.progress.step if saves else None
    before = replace(trial.progress, checkpoint_step=None)
    trial = replace(trial, intent=Intent.STOP, status=status(Phase.RUNNING), progress=before)
    change = training.judge(trial, (), snapshot, world.now)
    assert change is not None
    assert change.status is not None
    assert change.status.phase is Phase.STOPPING
    trial = replace(trial, status=change.status, progress=replace(before, checkpoint_step=saved))
    change = training.judge(trial, (), snapshot, world.now)
    assert change is not None
    assert change.status is not None
    assert change.status.phase is Phase.STOPPED
    return change.status.reason.message


def test_a_stopped_trial_says_at_which_rung_its_sweep_paused_or_stopped_it() -> None:
    world = World(saving(), saves=True)
    while not world.detail.pruned:
        world.pass_once()
        world.step()
    number = world.detail.pruned[0]
    (report,) = (each for each in world.detail.rungs if each.trial == number)
    trial, rung = world.trials[str(number)], f"by asha at step 3, with loss {report.value:.6g}"
    assert stopped(world, trial, saves=True) == f"paused {rung}; sweep rates may promote it later"
    assert stopped(world, trial, saves=False) == f"stopped early {rung}"
    other = next(each for name, each in world.trials.items() if int(name) not in world.detail.pruned)
    assert stopped(world, other, saves=True) == "stopped on request"


def judged(world: World, sweep: Workload[Sweep]) -> list[Change]:
    ended: tuple[AnyWorkload, ...] = tuple(world.trials.values())
    snapshot = Snapshot(nodes=(), workloads=(), pods=(), parents=(sweep,), ended=ended)
    return judge_parents(snapshot, world.now)


def test_the_trials_that_are_paused_when_their_sweep_ends_say_so_before_it_is_over() -> None:
    world = World(saving(), saves=True)
    while not world.detail.pruned:
        world.pass_once()
        world.step()
    number = str(world.detail.pruned[0])
    said = why_stopped(world.sweep, world.trials[number])
    assert said is not None
    assert said.endswith("; sweep rates may promote it later")
    paused = replace(BECAUSE, message=f"{said}; its checkpoint is of step 3")
    for name, trial in world.trials.items():
        reason = paused if name == number else BECAUSE
        world.trials[name] = replace(trial, intent=Intent.STOP, status=status(Phase.STOPPED, reason=reason))
    # Of a suspended one it is still true, and one that is deleted leaves nobody to read it.
    for intent in (Intent.SUSPEND, Intent.DELETE):
        (change,) = judged(world, replace(world.sweep, intent=intent))
        assert change.workload_uid == world.sweep.uid
    stopped = replace(world.sweep, intent=Intent.STOP)
    (change,) = judged(world, stopped)
    trial = world.trials[number]
    assert (change.workload_uid, change.version, change.intent, change.event) == (trial.uid, trial.version, None, None)
    assert change.status is not None
    over = said.replace("may promote it later", "ended without promoting it")
    told = replace(
        paused,
        message=f"{over}; its checkpoint is of step 3",
        remedy=f"`fairlead resume rates-{number}` continues it.",
    )
    assert change.status == replace(trial.status, reason=told)
    world.trials[number] = replace(trial, status=change.status, version=trial.version + 1)
    (change,) = judged(world, stopped)
    assert change.status is not None
    assert (change.workload_uid, change.status.phase) == (stopped.uid, Phase.STOPPED)
    # A trial that pauses while its sweep ends hears of it at once.
    assert why_stopped(replace(stopped, status=change.status), trial) == over
    ending = replace(
        change.status, phase=Phase.STOPPING, after_stop=replace(change.status.after_stop, phase=Phase.SUCCEEDED)
    )
    assert why_stopped(replace(stopped, status=ending), trial) == over
    assert (
        why_stopped(
            replace(stopped, status=replace(ending, after_stop=replace(ending.after_stop, phase=Phase.SUSPENDED))),
            trial,
        )
        == said
    )


def test_a_trial_that_reached_another_rung_while_it_paused_says_so_too_when_its_sweep_ends() -> None:
    world = World(saving(), saves=True)
    while not world.detail.pruned:
        world.pass_once()
        world.step()
    number = str(world.detail.pruned[0])
    earlier = replace(BECAUSE, message="paused by asha at step 1, with loss 9; sweep rates may promote it later")
    for name, trial in world.trials.items():
        reason = earlier if name == number else BECAUSE
        world.trials[name] = replace(trial, intent=Intent.STOP, status=status(Phase.STOPPED, reason=reason))
    (change,) = judged(world, replace(world.sweep, intent=Intent.STOP))
    assert change.status is not None
    over = earlier.message.replace("may promote it later", "ended without promoting it")
    assert change.status.reason.message == over


LENGTH = 100


def settles(values: Mapping[str, Value], step: int) -> float:
    """Return a loss that falls steadily where x is above a half, and else rises at first and is the lowest later."""
    x = float(values["x"])
    if x > 0.5:
        return 2.0 - x * step / LENGTH
    return 3.0 + step if step <= 4 else x / step


def early(**changes: str) -> World:
    return World(saving(**{"prune": "asha", **changes}), loss=settles, steps=LENGTH, total=LENGTH, saves=True)


def curve_of(
    values: Sequence[float], *, after: int = CURVE_PARTS, goal: Goal = Goal.MINIMIZE, skipped: tuple[int, ...] = ()
) -> EarlyCurve | None:
    """Return the curve of a trial that reports these values at steps 1, 2, ... of which some are not seen."""
    curve = None
    for step, value in enumerate(values, start=1):
        if step not in skipped:
            curve = followed(Prune(after=after), goal, curve, trial=0, step=step, value=value)
    return curve


def test_a_trial_improves_steadily_if_it_is_better_at_the_end_of_each_part_of_its_way() -> None:
    def is_steady(*values: float, after: int = 5, goal: Goal = Goal.MINIMIZE, skipped: tuple[int, ...] = ()) -> bool:
        curve = curve_of(values, after=after, goal=goal, skipped=skipped)
        return curve is not None and curve.is_steady

    assert is_steady(5.0, 4.0, 3.0, 2.0, 1.0)
    assert not is_steady(5.0, 4.0, 4.5, 2.0, 1.0)
    assert not is_steady(5.0, 4.0, 4.0, 2.0, 1.0)
    assert not is_steady(5.0, 4.0, 3.0, 2.0, 2.5)
    assert not is_steady(5.0, 4.0, 3.0, 2.0, 1.0, goal=Goal.MAXIMIZE)
    assert is_steady(1.0, 2.0, 3.0, 4.0, 5.0, goal=Goal.MAXIMIZE)
    # Between the ends of two parts it may get worse.
    assert is_steady(9.0, 8.0, 9.0, 7.0, 8.0, 6.0, 7.0, 5.0, 6.0, 4.0, after=10)
    for one in (1, 2, 3, 4):
        assert is_steady(5.0, 4.0, 3.0, 2.0, 1.0, skipped=(one,))
        assert not is_steady(5.0, 4.0, 3.0, 2.0, 2.0, skipped=(1,))
        for other in set(range(1, 5)) - {one}:
            assert not is_steady(5.0, 4.0, 3.0, 2.0, 1.0, skipped=(one, other))
    # A restart that repeats steps changes nothing.
    curve = curve_of([5.0, 4.0, 3.0])
    assert followed(Prune(after=5), Goal.MINIMIZE, curve, trial=0, step=2, value=9.0) == curve
    assert followed(Prune(after=10), Goal.MINIMIZE, None, trial=0, step=1, value=9.0) is None


@given(st.lists(st.floats(0, 9), min_size=CURVE_PARTS, max_size=CURVE_PARTS))
def test_no_trial_that_ever_got_worse_counts_as_steady(values: list[float]) -> None:
    curve = curve_of(values)
    assert curve is not None
    assert curve.is_steady == all(after < before for before, after in pairwise(values))


def test_trials_that_have_not_settled_do_not_pause_at_an_early_rung_and_are_compared_there() -> None:
    first, last = (
        [RungReport(trial=trial, rung=0, value=value, is_unsettled=True) for trial in (7, 8, 9)] for value in (0.0, 9.0)
    )
    assert who_pauses([*first, *at(0, 5.0, 4.0, 6.0)]) == [0, 1, 2]
    assert who_pauses([*last, *at(0, 5.0, 4.0, 6.0)]) == [2]
    assert who_goes_on([*first, *at(0, 5.0, 4.0, 6.0)], 0, 1, 2) == []
    assert who_goes_on([*last, *at(0, 5.0, 4.0, 6.0)], 0, 1, 2) == [1, 0]


def test_a_rung_comes_before_the_one_at_a_quarter_in_long_trials_if_no_step_is_given() -> None:
    fifth = Prune(factor=5)
    assert not has_early_rung(fifth, 80)
    assert has_early_rung(fifth, 81)
    assert not has_early_rung(replace(fifth, after=20), 1000)
    assert with_rungs(fifth, 1000, is_early=True) == replace(fifth, after=50)
    assert with_rungs(fifth, 1000) == replace(fifth, after=250)


@pytest.mark.parametrize("changes", [{}, {"sampler": "tpe"}, {"parallel": "1"}, {"trials": "15"}])
def test_steady_trials_pause_at_an_early_rung_and_the_others_at_a_quarter(changes: dict[str, str]) -> None:
    world = early(**changes)
    assert world.run() is Phase.SUCCEEDED
    by_step = {5: 0, 25: 0}
    for number in world.detail.pruned:
        trial = world.trials[str(number)]
        assert trial.progress is not None
        assert trial.progress.step is not None
        by_step[trial.progress.step] += 1
        is_slow = float(values_of(trial.spec)["x"]) > 0.5
        assert is_slow or trial.progress.step == 25
    assert min(by_step.values()) > 0
    for each in world.detail.rungs:
        is_slow = float(values_of(world.trials[str(each.trial)].spec)["x"]) > 0.5
        assert each.is_unsettled == (each.rung == 0 and not is_slow)
    assert world.detail.curves == ()
    # Those that were worst at first are best in the end.
    best = world.trials[str(world.detail.best)]
    assert float(values_of(best.spec)["x"]) <= 0.5


def test_the_curves_that_are_kept_are_those_of_running_trials_before_the_early_rung() -> None:
    world = early()
    for _ in range(60):
        while world.pass_once() is not None:
            pass
        running = {
            int(name): each.progress.step
            for name, each in world.trials.items()
            if not each.status.phase.is_final and each.progress is not None
        }
        assert {each.trial: each.parts for each in world.detail.curves} == {
            number: step for number, step in running.items() if step is not None and step < 5
        }
        world.step()


def test_no_trial_is_stopped_for_good_at_an_early_rung() -> None:
    world = early()
    world.saves = False
    assert world.run() is Phase.SUCCEEDED
    assert {each.rung for each in world.detail.rungs} == {0, 1}
    assert world.detail.pruned
    steps = {world.trials[str(number)].progress.step for number in world.detail.pruned}  # type: ignore[union-attr]
    assert steps == {25}


def test_trials_whose_steps_pass_between_two_looks_are_judged_at_a_quarter() -> None:
    world = early()
    while world.sweep.status.phase in (Phase.PENDING, Phase.RUNNING):
        world.pass_once()
        for _ in range(5):
            world.step()
    steps = {world.trials[str(number)].progress.step for number in world.detail.pruned}  # type: ignore[union-attr]
    assert steps == {25}


def test_a_sweep_that_was_begun_without_an_early_rung_goes_on_so() -> None:
    world = early()
    world.pass_once()
    world.step()
    begun = replace(world.detail, length=LENGTH)
    world.sweep = replace(world.sweep, status=replace(world.sweep.status, detail=begun))
    world.run()
    assert {each.rung for each in world.detail.rungs} == {0}
    steps = {world.trials[str(number)].progress.step for number in world.detail.pruned}  # type: ignore[union-attr]
    assert steps == {25}
