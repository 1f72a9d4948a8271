"""What becomes of a sweep: which trials it submits, which it stops, and how it ends."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from fairlead.policy.kinds import parents
from fairlead.policy.kinds import sweep as sweep_kind
from fairlead.policy.kinds.parents import families_of
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.sweep import SweepDetail, detail_of, judge, trials_of
from fairlead.policy.search import sampling
from fairlead.policy.search.pruning import RungReport, with_rungs
from fairlead.policy.search.trials import TrialRecord, draw, front
from fairlead.specs.formats.reading import parse
from fairlead.specs.search_space import Value
from fairlead.specs.sweep import Objective, Prune, Rule, Sweep, values_of
from fairlead.specs.training import Training
from fairlead.state.plan import Change
from fairlead.state.reasons import Code
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Progress, Snapshot, Workload
from tests.builders import BECAUSE, status
from tests.policy.carrying_out import carried_out

SPACE = "parameters: {x: 0.0..1.0, y: 1..8, z: a | b}"
Loss = Callable[[Mapping[str, Value], int], float]


def spec(**changes: str) -> Sweep:
    keys = {"objective": "loss", "trials": "12", "parallel": "3", "trial": "{run: train}", **changes}
    text = "\n".join(
        ["kind: Sweep", "name: rates", SPACE, *(f"{key}: {value}" for key, value in keys.items() if value)]
    )
    (found,) = parse(text)
    assert isinstance(found, Sweep)
    return found


def bowl(values: Mapping[str, Value], step: int) -> float:
    """A loss that falls with the steps to what the values are worth: best at x 0.3 and y 6."""
    x, y = float(values["x"]), float(values["y"])
    return (x - 0.3) ** 2 + (y - 6) ** 2 / 50 + 1.0 / step


@dataclass
class World:
    """A sweep and its trials, each of which takes a step a round; whatever is decided is done at once."""

    spec: Sweep
    loss: Loss = bowl
    steps: int = 27
    total: int | None = None
    saves: bool = False
    fails: Callable[[int], bool] = lambda _: False
    diverges: Callable[[int], bool] = lambda _: False
    trials: dict[str, Workload] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    now: float = 1_000_000_000.0
    num_steps: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        self.sweep: Workload[Sweep] = Workload(
            uid="parent",
            spec=self.spec,
            intent=Intent.RUN,
            status=status(Phase.PENDING),
            version=1,
            created_at=self.now,
        )

    def pass_once(self) -> Change | None:
        ended: tuple[AnyWorkload, ...] = tuple(self.trials.values())
        snapshot = Snapshot(nodes=(), workloads=(), pods=(), parents=(self.sweep,), ended=ended)
        change = judge(self.sweep, families_of(snapshot)["parent"], self.now)
        if change is None:
            return None
        effect = carried_out(self.sweep, change, self.now, self.trials.values())
        assert effect.after is not None
        self.sweep = effect.after
        if effect.event is not None:
            self.events.append(f"{effect.event.type}: {effect.event.reason.message}")
        for order in effect.submitted:
            assert order.name not in self.trials, "a trial was submitted twice"
            assert isinstance(order.spec, Training)
            self.trials[order.name] = Workload(
                uid=order.uid, spec=order.spec, intent=Intent.RUN, status=status(Phase.RUNNING),
                version=1, created_at=self.now, parent="parent",
            )  # fmt: skip
        for wish in effect.requested:
            (name,) = (name for name, trial in self.trials.items() if trial.uid == wish.uid)
            if wish.intent is Intent.STOP:
                self._end(name, Phase.STOPPED)
                continue
            assert self.trials[name].status.phase is Phase.STOPPED, "a trial goes on that did not pause"
            self.trials[name] = replace(self.trials[name], intent=wish.intent, status=status(Phase.RUNNING))
            self.resumed.append(int(name))
        return change

    def step(self) -> None:
        self.now += 1.0
        for name, trial in list(self.trials.items()):
            if trial.status.phase.is_final:
                continue
            self.num_steps += 1
            step = 1 + (trial.progress.step or 0 if trial.progress is not None else 0)
            values = values_of(trial.spec)
            # What costs little is far from where the loss is best.
            told = {} if "x" not in values else {"cost": 1.0 - float(values["x"])}
            progress = Progress(
                step=step, loss=self.loss(values, step), metrics=told, total_steps=self.total,
                checkpoint_step=step if self.saves else None,
            )  # fmt: skip
            self.trials[name] = replace(trial, progress=progress)
            if self.fails(int(name)):
                self._end(name, Phase.FAILED)
            elif self.diverges(int(name)):
                self._end(name, Phase.FAILED, Code.LOSS_NOT_FINITE)
            elif step >= self.steps:
                self._end(name, Phase.SUCCEEDED)

    def run(self) -> Phase:
        for _ in range(10_000):
            while self.pass_once() is not None:
                self.most = max(self.most, sum(not each.status.phase.is_final for each in self.trials.values()))
                if self.sweep.status.phase not in (Phase.PENDING, Phase.RUNNING):
                    return self.sweep.status.after_stop.phase or self.sweep.status.phase
            self.step()
        raise AssertionError("the sweep does not end")

    def _end(self, name: str, phase: Phase, code: Code = BECAUSE.code) -> None:
        ended = status(phase, reason=replace(BECAUSE, code=code))
        self.trials[name] = replace(self.trials[name], status=ended, intent=Intent.STOP)

    @property
    def detail(self) -> SweepDetail:
        return detail_of(self.sweep)


@pytest.mark.parametrize("changes", [{}, {"sampler": "random"}, {"prune": "asha"}, {"prune": "median"},
                                     {"prune": "{rule: hyperband, steps: 27}"}, {"parallel": "free"}])  # fmt: skip
def test_a_sweep_has_just_so_many_trials_and_never_more_at_once(changes: dict[str, str]) -> None:
    world = World(spec(**changes))
    assert world.run() is Phase.SUCCEEDED
    assert sorted(world.trials, key=int) == [str(number) for number in range(12)]
    assert world.most == 12 if "parallel" in changes else world.most <= 3
    assert "12 of 12 trials are over" in world.sweep.status.reason.message
    assert "best loss" in world.sweep.status.reason.message


def test_another_process_goes_on_as_the_one_before_would_have() -> None:
    first, second = World(spec(prune="asha")), World(spec(prune="asha"))
    first.run()
    second.run()
    assert {name: each.spec for name, each in first.trials.items()} == {
        name: each.spec for name, each in second.trials.items()
    }
    other = World(spec(prune="asha", seed="1"))
    other.run()
    assert other.trials["0"].spec != first.trials["0"].spec


def test_asha_takes_a_part_of_the_steps_and_tells_whom_it_stops() -> None:
    whole, pruned = (
        World(spec(trials="60", sampler="random")),
        World(spec(trials="60", sampler="random", prune="{after: 1}")),
    )
    whole.run()
    pruned.run()
    assert whole.num_steps == 60 * 27
    assert pruned.num_steps < whole.num_steps / 2
    assert whole.detail.best_value is not None
    assert pruned.detail.best_value is not None
    assert pruned.detail.best_value < 1.5 * whole.detail.best_value
    assert any("was pruned by asha: its loss at step 1 was" in each for each in pruned.events)


def test_a_trial_that_is_seen_beyond_a_rung_is_told_with_the_step_of_its_value() -> None:
    world = World(spec(prune="{rule: asha, after: 2, factor: 2}", sampler="random"))
    for _ in range(3):
        world.pass_once()
        for _ in range(3):
            world.step()
    world.pass_once()
    told = [each for each in world.events if "was pruned by asha" in each]
    assert told
    assert all("its loss at step 3 was" in each for each in told), told


def test_tpe_comes_nearer_to_the_best_than_random_values() -> None:
    bests = {
        sampler: [
            World(spec(trials="50", sampler=sampler, seed=str(seed)), steps=1) for seed in range(5)
        ]
        for sampler in ("tpe", "random")
    }  # fmt: skip
    for worlds in bests.values():
        for world in worlds:
            world.run()
    means = {sampler: sum((w.detail.best_value or 9.0) - 1.0 for w in worlds) for sampler, worlds in bests.items()}
    assert means["tpe"] < 0.5 * means["random"]


def test_failed_trials_are_told_and_end_the_sweep_only_beyond_max_failed() -> None:
    world = World(spec(max_failed="2"), fails=lambda number: number in (1, 4))
    assert world.run() is Phase.SUCCEEDED
    assert sum(each.startswith("TrialFailed: rates-") for each in world.events) == 2
    world = World(spec(max_failed="2"), fails=lambda number: number % 2 == 1)
    assert world.run() is Phase.FAILED
    assert "3 trials failed, more than `max_failed`, 2; the first was rates-1" in world.sweep.status.reason.message


def test_a_search_goes_on_when_many_of_its_trials_diverge() -> None:
    world = World(spec(max_failed="2"), diverges=lambda number: number != 7)
    assert world.run() is Phase.SUCCEEDED
    assert len(world.trials) == 12
    assert "12 of 12 trials are over (11 failed); best loss " in world.sweep.status.reason.message
    world = World(spec(max_failed="2"), diverges=lambda number: number % 2 == 0, fails=lambda number: number % 2 == 1)
    assert world.run() is Phase.FAILED
    assert "3 trials failed, more than `max_failed`, 2; the first was rates-1" in world.sweep.status.reason.message
    world = World(spec(max_failed="2"), diverges=lambda _: True)
    assert world.run() is Phase.FAILED
    assert "12 of 12 trials are over (12 failed), and none succeeded" in world.sweep.status.reason.message


def test_a_trial_that_never_reported_its_objective_has_failed() -> None:
    world = World(spec(objective="accuracy", max_failed="0"))
    assert world.run() is Phase.FAILED
    assert "it ended without any value of `accuracy`" in world.sweep.status.reason.message


def test_a_sweep_without_any_value_of_its_objective_says_what_was_reported_instead() -> None:
    world = World(spec(objective="accuracy", max_failed="12"))
    assert world.run() is Phase.FAILED
    message = world.sweep.status.reason.message
    assert "12 of 12 trials are over (12 failed), and none succeeded: 12 trials ended without any value of" in message
    assert message.endswith("`accuracy`; reported: `cost`, `loss`")


def test_a_sweep_ends_at_its_target_and_when_its_time_is_over() -> None:
    world = World(spec(trials="200", stop="{target: 0.2}"))
    assert world.run() is Phase.SUCCEEDED
    assert len(world.trials) < 200
    assert "it reached its target, 0.2" in world.sweep.status.reason.message
    world = World(spec(trials="200", stop="{duration: 60s}"))
    assert world.run() is Phase.SUCCEEDED
    assert len(world.trials) <= 9
    assert "its time, 1m, is over" in world.sweep.status.reason.message


def test_an_array_runs_each_combination_without_any_objective() -> None:
    array = Sweep(name="shards", trial=spec().trial, parameters={"shard": "0..9"}, parallel=4)
    world = World(array, loss=lambda _values, _step: 0.0, steps=2)
    assert world.run() is Phase.SUCCEEDED
    assert [values_of(world.trials[str(number)].spec) for number in range(10)] == [{"shard": n} for n in range(10)]


def test_a_trial_that_somebody_deleted_is_not_submitted_again() -> None:
    world = World(spec())
    for _ in range(40):
        while world.pass_once() is not None:
            pass
        world.step()
        world.trials.pop("0", None)
    world.run()
    assert world.detail.submitted == 12
    assert "0" not in world.trials


def test_draws_are_even_and_follow_from_their_keys() -> None:
    drawn = [draw("seed", number) for number in range(2_000)]
    assert draw("seed", 7) == drawn[7]
    assert all(0.0 <= each < 1.0 for each in drawn)
    assert [sum(part <= each * 4 < part + 1 for each in drawn) > 430 for part in range(4)] == [True] * 4


def test_only_trials_that_have_changed_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    world, read = World(spec(trials="40")), list[int]()
    world.run()
    before = trials_of(world.sweep, Family(children=world.trials))

    def read_record(
        objectives: tuple[Objective, ...], number: int, child: AnyWorkload, is_pruned: bool, may_go_on: bool
    ) -> TrialRecord:
        read.append(number)
        return genuine(objectives, number, child, is_pruned, may_go_on)

    genuine = sweep_kind._read_record
    monkeypatch.setattr(sweep_kind, "_read_record", read_record)
    assert trials_of(world.sweep, Family(children=world.trials)) == before
    assert read == []
    other = replace(world.trials["7"], progress=Progress(step=27, loss=9.0))
    after = trials_of(world.sweep, Family(children={**world.trials, "7": other}))
    assert read == [7]
    assert [each.value for each in after] == [9.0 if each.number == 7 else each.value for each in before]
    # One that is stopped early by now, and one that somebody deleted.
    pruned = replace(world.sweep, status=replace(world.sweep.status, detail=replace(world.detail, pruned=(3,))))
    left = {name: child for name, child in world.trials.items() if name != "5"}
    assert 5 not in [each.number for each in trials_of(pruned, Family(children=left))]
    assert read == [7, 3, 7]
    assert len(sweep_kind._PASTS["parent", world.sweep.spec.judged_by, False].of_moving) == 39


@pytest.mark.parametrize("objectives", [{}, {"objective": "", "objectives": "[loss, 'cost:minimize']"}])
def test_a_sweep_is_judged_the_same_whichever_trials_are_known_to_be_settled(objectives: dict[str, str]) -> None:
    world = World(spec(trials="9", parallel="4", **objectives))
    while not world.sweep.status.phase.is_final:
        ended = [name for name, child in world.trials.items() if child.status.phase.is_final]
        judged = {repr(judge(world.sweep, Family(children=world.trials), 5.0))}
        for known in (len(ended) // 2, len(ended), len(ended)):
            settled = {name: world.trials[name] for name in ended[:known]}
            moving = {name: child for name, child in world.trials.items() if name not in settled}
            judged.add(repr(judge(world.sweep, Family(children=world.trials, settled=settled, moving=moving), 5.0)))
        assert len(judged) == 1
        world.pass_once()
        world.step()
    assert world.detail.over == 9


@pytest.mark.parametrize("parallel", ["1", "4"])
def test_families_are_the_same_whatever_was_known_of_those_that_ended_before(parallel: str) -> None:
    world = World(spec(trials="9", parallel=parallel), steps=2)
    seen: list[tuple[AnyWorkload, ...]] = []
    while not world.sweep.status.phase.is_final:
        world.pass_once()
        world.step()
        seen.append(tuple(child for child in world.trials.values() if child.status.phase.is_final))
    # Others join, some go, one goes on, and one is another than it was.
    last = seen[-1]
    goes_on = replace(last[3], intent=Intent.RUN, status=replace(last[3].status, phase=Phase.FAILED))
    seen += [
        last[2:],
        last[:6],
        (*last[:3], goes_on, *last[4:]),
        last,
        (last[0], replace(last[1], version=9), *last[2:]),
    ]
    for ended in seen:
        snapshot = Snapshot(nodes=(), workloads=(), pods=(), parents=(world.sweep,), ended=ended)
        known = families_of(snapshot)
        parents._LAST_ENDED = ((), (), {})
        fresh = families_of(snapshot)
        assert known == fresh
        assert [list(each.children) for each in known.values()] == [list(each.children) for each in fresh.values()]
        families_of(snapshot)


def test_what_is_foreseen_is_what_is_chosen_when_a_trial_ends_as_most_do() -> None:
    world = World(spec(trials="40", parallel="1"), steps=1)
    other = World(spec(trials="40", parallel="1"), steps=1)
    num_foreseen = 0
    while world.sweep.status.phase in (Phase.PENDING, Phase.RUNNING):
        sweep_kind.foresee(world.sweep, Family(children=world.trials))
        for each in (world, other):
            each.step()
        before = sampling._best_place.cache_info()
        world.pass_once()
        after = sampling._best_place.cache_info()
        num_foreseen += after.hits > before.hits and after.misses == before.misses
        other.pass_once()
    # The same decisions without it.
    assert [values_of(each.spec) for each in world.trials.values()] == [
        values_of(each.spec) for each in other.trials.values()
    ]
    assert num_foreseen >= 5


def test_asha_first_judges_at_a_quarter_of_a_trial_once_one_has_come_to_its_end() -> None:
    world = World(spec(trials="30", prune="asha"))
    assert world.run() is Phase.SUCCEEDED
    assert world.detail.length == 27
    # The first three ran before anybody knew, and count at the last rung that they had passed, with what they had then.
    early = [each for each in world.detail.rungs if each.trial < 3]
    assert {each.rung for each in early} == {1}
    later = {(each.trial, each.rung): each.value for each in world.detail.rungs if each.trial >= 3}
    values = {number: values_of(trial.spec) for number, trial in enumerate(world.trials.values())}
    assert {rung for _, rung in later} == {0, 1}
    assert all(value == bowl(values[trial], 7 * 3**rung) for (trial, rung), value in later.items())
    assert {world.trials[str(number)].progress.step for number in world.detail.pruned} <= {7, 21}  # type: ignore[union-attr]
    assert len(world.detail.pruned) > 12
    assert any("was pruned by asha: its loss at step 7 was" in event for event in world.events)


def test_asha_knows_the_length_at_once_of_trials_that_tell_what_is_before_them() -> None:
    world = World(spec(trials="30", prune="asha"), total=27)
    world.run()
    assert world.detail.length == 27
    assert {each.rung for each in world.detail.rungs if each.trial < 3} == {0, 1}
    # Another length that a later trial tells moves no rung.
    longer = replace(world.trials["29"], progress=Progress(step=3, loss=1.0, total_steps=900))
    sweep = replace(world.sweep, status=replace(world.sweep.status, phase=Phase.RUNNING))
    change = judge(sweep, Family(children={**world.trials, "29": longer}), 5.0)
    assert change is not None
    assert change.status is not None
    assert detail_of(replace(sweep, status=change.status)).length == 27


def test_a_sweep_that_was_begun_when_asha_judged_from_the_first_step_on_goes_on_so() -> None:
    world = World(spec(trials="9", prune="asha"))
    world.pass_once()
    world.step()
    begun = replace(world.detail, rungs=(RungReport(trial=0, rung=0, value=5.0),))
    world.sweep = replace(world.sweep, status=replace(world.sweep.status, detail=begun))
    world.run()
    assert {each.rung for each in world.detail.rungs if each.trial > 3} >= {0, 1}
    assert any("was pruned by asha: its loss at step 1 was" in event for event in world.events)


@pytest.mark.parametrize(("rule", "first"), [("asha", None), ("median", None), ("pbt", 1), ("hyperband", 1)])
def test_the_first_rung_follows_from_the_length_where_the_rule_compares_at_rungs(rule: str, first: int | None) -> None:
    prune = Prune(rule=Rule(rule), steps=40 if rule == "hyperband" else None)
    assert with_rungs(prune, None) == (None if first is None else replace(prune, after=first))
    assert with_rungs(prune, 100) == replace(prune, after=first or 25)
    assert with_rungs(prune, 2) == replace(prune, after=1)
    assert with_rungs(replace(prune, after=9), 100) == replace(prune, after=9)


SEVERAL = {"objective": "", "objectives": "[loss, 'cost:minimize']"}


def test_of_several_objectives_those_trials_count_that_no_other_beats() -> None:
    world = World(spec(trials="60", **SEVERAL))
    assert world.run() is Phase.SUCCEEDED
    history = trials_of(world.sweep, Family(children=dict(world.trials)))
    unbeaten = front(history)
    assert len(history) == 60
    assert 1 < len(unbeaten) < 60
    costs = [each.scores[1] for each in unbeaten]
    assert costs == sorted(costs, reverse=True)
    assert all(each.value is None for each in history)
    assert world.sweep.status.reason.message == f"60 of 60 trials are over; {len(unbeaten)} trials unbeaten"
    assert not any(event.startswith("NewBest") for event in world.events)


def test_a_trial_that_tells_one_of_several_objectives_alone_has_failed() -> None:
    world = World(spec(trials="6", **{**SEVERAL, "objectives": "[loss, speed]"}))
    assert world.run() is Phase.FAILED
    (failed,) = (event for event in world.events if event.startswith("TrialFailed"))
    assert failed.count("it ended without any value of `speed`") == 3


def test_a_density_leaves_out_no_distribution_that_would_change_it() -> None:
    rng = random.Random(3)
    for spread in (0.003, 0.05, 1.0):
        places = [min(1.0, max(0.0, 0.4 + spread * (rng.random() - 0.5))) for _ in range(150)] + [0.0, 1.0]
        mixture = sampling._Mixture.around(places)
        for part in (0.0, 0.2, 0.399, 0.4, 0.405, 0.7, 1.0):
            total = 1.0
            for place, scale, peak in mixture.terms:
                total += peak * math.exp(scale * (part - place) * (part - place))
            assert mixture.log_density(part) == math.log(total / (len(places) + 1))
