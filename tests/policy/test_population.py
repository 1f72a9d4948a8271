"""Population-based training: whoever is behind goes on as a changed copy of who is ahead."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from fairlead.errors import InvalidSpec
from fairlead.policy.kinds.parents import families_of
from fairlead.policy.kinds.sweep import detail_of, judge, trials_of
from fairlead.policy.search.population import best_part, explore, gives_way
from fairlead.specs.formats.reading import parse
from fairlead.specs.goal import Goal
from fairlead.specs.search_space import Value, read_parameters
from fairlead.specs.sweep import Prune, Rule, Sweep, values_of
from fairlead.specs.training import Training
from fairlead.state.snapshot import Intent, Phase, Progress, Snapshot, Workload
from tests.builders import BECAUSE, status
from tests.policy.carrying_out import carried_out

STEPS = 60
PBT = Prune(rule=Rule.PBT, after=5, factor=4)


def spec(**changes: str) -> Sweep:
    keys = {
        "parameters": "{a: 0.0..1.0, b: 0.0..1.0}", "objective": "{metric: score, goal: maximize}", "trials": "60",
        "parallel": "8", "sampler": "random", "prune": "{rule: pbt, after: 5, factor: 4}",
        "trial": "{run: train, checkpoint: {every: 5 steps}}", **changes,
    }  # fmt: skip
    text = "\n".join(["kind: Sweep", "name: grow", *(f"{key}: {value}" for key, value in keys.items() if value)])
    (found,) = parse(text)
    assert isinstance(found, Sweep)
    return found


@dataclass
class Population:
    """Trials of which each step adds what its values are worth at that time, to what it began with.

    Early ``a`` is of use, later ``b``: no values are the best from beginning to end, which is what populations are for.
    """

    spec: Sweep
    saves: bool = True
    trials: dict[str, Workload] = field(default_factory=dict)
    began: dict[str, tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sweep: Workload[Sweep] = Workload(
            uid="parent", spec=self.spec, intent=Intent.RUN, status=status(Phase.PENDING), version=1, created_at=0.0
        )

    def run(self) -> "Population":
        for now in range(10_000):
            while self._pass(float(now)):
                if self.sweep.status.phase not in (Phase.PENDING, Phase.RUNNING):
                    return self
            self._step()
        raise AssertionError("the sweep does not end")

    @property
    def scores(self) -> list[float]:
        return [each.value or 0.0 for each in trials_of(self.sweep, families_of(self._snapshot())["parent"])]

    def _snapshot(self) -> Snapshot:
        ended = tuple(self.trials.values())
        return Snapshot(nodes=(), workloads=(), pods=(), parents=(self.sweep,), ended=ended)

    def _pass(self, now: float) -> bool:
        change = judge(self.sweep, families_of(self._snapshot())["parent"], now)
        if change is None:
            return False
        effect = carried_out(self.sweep, change, now, self.trials.values())
        assert effect.after is not None
        self.sweep = effect.after
        for order in effect.submitted:
            run = order.spec
            assert isinstance(run, Training)
            origin = run.checkpoint.origin
            progress = None
            if origin is not None:
                donor = self.trials[origin.removeprefix("grow-")].progress
                assert donor is not None
                progress = Progress(step=donor.checkpoint_step, resumed_step=donor.checkpoint_step)
                self.began[order.name] = donor.checkpoint_step or 0, donor.metrics["saved"]
            self.trials[order.name] = Workload(
                uid=order.uid, spec=run, intent=Intent.RUN, status=status(Phase.RUNNING),
                version=1, created_at=0.0, parent="parent", progress=progress,
            )  # fmt: skip
        for wish in effect.requested:
            name = next(name for name, trial in self.trials.items() if trial.uid == wish.uid)
            self._end(name, Phase.STOPPED)
        return True

    def _step(self) -> None:
        for name, trial in list(self.trials.items()):
            if trial.status.phase.is_final:
                continue
            before, values = trial.progress, values_of(trial.spec)
            step = 1 + (before.step or 0 if before is not None else 0)
            score = self.began.get(name, (0, 0.0))[1] if before is None else before.metrics.get("score")
            score = self.began[name][1] if score is None else score
            score += worth(values, step)
            saved, at = (score, step) if step % 5 == 0 and self.saves else (0.0, None)
            if at is None and before is not None and self.saves:
                saved, at = before.metrics.get("saved", self.began.get(name, (0, 0.0))[1]), before.checkpoint_step
            metrics = {"score": score, "saved": saved}
            self.trials[name] = replace(trial, progress=Progress(step=step, metrics=metrics, checkpoint_step=at))
            if step >= STEPS:
                self._end(name, Phase.SUCCEEDED)

    def _end(self, name: str, phase: Phase) -> None:
        self.trials[name] = replace(self.trials[name], status=status(phase, reason=BECAUSE), intent=Intent.STOP)


def worth(values: Mapping[str, Value], step: int) -> float:
    a, b = float(values["a"]), float(values["b"])
    return 1.0 - abs(a - step / STEPS) - abs(b - (1 - step / STEPS))


def test_a_population_is_ahead_of_values_that_stay_for_the_same_steps() -> None:
    gains = []
    for seed in range(8):
        grown = Population(spec(seed=str(seed))).run()
        plain = Population(spec(seed=str(seed), prune="", trials="8")).run()
        assert len(grown.trials) > 8
        gains.append(max(grown.scores) - max(plain.scores))
    assert min(gains) >= 0.0
    assert sum(gains) / len(gains) > 1.0


def test_who_gives_way_is_followed_by_a_changed_copy_of_one_of_the_best() -> None:
    grown = Population(spec()).run()
    detail = detail_of(grown.sweep)
    followers = range(8, len(grown.trials))
    assert len(detail.pruned) == len(followers) > 0
    for number in followers:
        run = grown.trials[str(number)].spec
        origin = run.checkpoint.origin
        assert origin is not None
        donor = grown.trials[origin.removeprefix("grow-")]
        assert int(origin.removeprefix("grow-")) not in detail.pruned[: number - 7]
        assert values_of(run) != values_of(donor.spec)
    assert grown.sweep.status.phase is Phase.SUCCEEDED


def test_at_most_so_many_trials_are_begun_as_were_asked_for() -> None:
    grown = Population(spec(trials="10")).run()
    assert len(grown.trials) == 10
    assert len(detail_of(grown.sweep).pruned) == 2


def test_without_a_checkpoint_to_go_on_from_nobody_gives_way() -> None:
    grown = Population(spec(), saves=False).run()
    assert len(grown.trials) == 8
    assert detail_of(grown.sweep).pruned == ()


def test_another_process_decides_the_same() -> None:
    first, second = Population(spec()).run(), Population(spec()).run()
    assert [each.spec for each in first.trials.values()] == [each.spec for each in second.trials.values()]
    other = Population(spec(seed="1")).run()
    assert [each.spec for each in other.trials.values()] != [each.spec for each in first.trials.values()]


@pytest.mark.parametrize(
    ("own", "others", "is_out"),
    [(0.1, [0.2, 0.3], False), (0.1, [0.2, 0.3, 0.4], True), (0.25, [0.2, 0.3, 0.4], False), (0.1, [], False)],
)
def test_the_worst_quarter_of_those_that_were_there_gives_way(own: float, others: list[float], is_out: bool) -> None:
    assert gives_way(PBT, Goal.MAXIMIZE, own, others) is is_out
    assert gives_way(PBT, Goal.MINIMIZE, -own, [-each for each in others]) is is_out


def test_the_best_quarter_is_gone_on_from_and_one_at_least() -> None:
    assert best_part(PBT, Goal.MINIMIZE, {3: 0.5, 1: 0.1, 2: 0.2}) == [1]
    assert best_part(PBT, Goal.MAXIMIZE, {number: float(number) for number in range(8)}) == [7, 6]


def test_changed_values_stay_in_their_ranges_and_most_are_near() -> None:
    space, _ = read_parameters(
        {"lr": "log 1e-4..1e-1", "k": "1..5", "act": "relu | tanh", "s": "0.0..1.0 when act=relu"}
    )
    values: dict[str, Value] = {"lr": 0.01, "k": 5, "act": "relu", "s": 0.0}
    near = 0
    for number in range(200):
        found = explore(space, values, (0, number))
        assert 1e-4 <= float(found["lr"]) <= 1e-1
        assert found["k"] in range(1, 6)
        assert ("s" in found) == (found["act"] == "relu")
        near += found["lr"] in (0.008, 0.012)
    assert 120 < near < 180


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parallel": ""}, "pbt compares trials that run side by side"),
        ({"parallel": "3"}, "give how many, at least 4"),
        ({"trials": "6"}, "fewer than run side by side, 8"),
        ({"trial": "{run: train}"}, "pbt continues from checkpoints"),
        ({"trial": "{run: train, checkpoint: {every: 5 steps, from: other}}"}, "with pbt a trial begins from"),
        ({"sampler": "grid", "parameters": "{a: 1..8}"}, "pbt changes the values of trials as they run"),
    ],
)
def test_what_a_population_needs_is_asked_for(changes: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        spec(**changes)
