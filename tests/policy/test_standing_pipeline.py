"""A pipeline that stays on a cluster and runs by itself: by its times and by what data holds, each time once."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fairlead.cluster.records import build, plain
from fairlead.policy.kinds.pipeline import KIND, PipelineDetail, judge
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.standing_pipeline import MOST_KEPT, TRIGGER, WATCHES, DriftCycle
from fairlead.specs import pipeline
from fairlead.specs.pipeline import CatchUp, Drift, On, Overlap, Pipeline, Schedule, Step
from fairlead.specs.training import Training
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, DriftSeen, Intent, Phase, Progress, Status, Workload
from tests.policy.carrying_out import carried_out

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp()
HOUR = 3600.0
REASON = Reason(code=Code.REPORTED, message="said so")
BY_COST = Drift(data="/team/seen.csv", column="error", cost=20.0)
LOOK = Training(name="churn-watch", run="watch", labels={WATCHES: "these"})


class World:
    """A pipeline and its children, which do what is ordered."""

    def __init__(self, spec: Pipeline, now: float = NOON) -> None:
        status = Status(phase=Phase.PENDING, reason=REASON, since=now)
        self.pipeline: Workload[Pipeline] = Workload(
            uid="p", spec=spec, intent=Intent.RUN, status=status, version=1, created_at=now
        )
        self.children: dict[str, AnyWorkload] = {}
        self.events: list[str] = []

    def passes(self, now: float, *, dies: bool = False) -> Change | None:
        """One pass; ``dies`` after the children were submitted, before the status is written."""
        change = judge(self.pipeline, Family(children=dict(self.children)), now)
        if change is None:
            return None
        effect = carried_out(self.pipeline, change, now, self.children.values())
        for order in effect.submitted:
            assert order.name not in self.children, "it would be submitted twice"
            self.children[order.name] = a_child(order.name, order.spec, now)
        if dies:
            return change
        for wish in effect.requested:
            self.children = {name: child for name, child in self.children.items() if child.uid != wish.uid}
        assert effect.after is not None
        assert effect.after.status is not self.pipeline.status
        self.pipeline = effect.after
        if effect.event is not None:
            self.events.append(f"{effect.event.type}: {effect.event.reason.message}")
        return change

    def ends(self, name: str, phase: Phase = Phase.SUCCEEDED) -> None:
        child = self.children[name]
        self.children[name] = replace(child, status=replace(child.status, phase=phase), intent=Intent.STOP)

    def sees(self, content: str) -> None:
        self.children["watch"] = replace(self.children["watch"], progress=Progress(seen=content))

    @property
    def runs(self) -> list[str]:
        return [name for name in self.children if name.isdigit()]

    @property
    def says(self) -> str:
        return self.pipeline.status.reason.message

    def next_at(self, now: float) -> float | None:
        assert KIND.next_at is not None
        return KIND.next_at(self.pipeline, Family(children=dict(self.children)), now)


def a_child(name: str, spec: object, now: float) -> AnyWorkload:
    assert isinstance(spec, (Training, Pipeline))
    status = Status(phase=Phase.RUNNING, reason=REASON, since=now)
    return Workload(
        uid=f"uid-{name}", spec=spec, intent=Intent.RUN, status=status, version=1, created_at=now, parent="p"
    )


def hourly(**changes: object) -> Pipeline:
    schedule = replace(Schedule(cron="0 * * * *"), **changes)  # type: ignore[arg-type]
    return Pipeline(name="churn", steps={"train": Step(run="train")}, schedule=schedule)


def on_data(watch: Training = LOOK) -> Pipeline:
    return Pipeline(name="churn", steps={"train": Step(run="train")}, on=On(data=("/data/raw",)), watch=watch)


def test_each_time_of_its_schedule_has_one_run_of_its_own_that_runs_once() -> None:
    world = World(hourly())
    world.passes(NOON + 1)
    assert (world.runs, world.says) == ([], "next at 2026-11-24 13:00 UTC")
    assert world.next_at(NOON + 1) == NOON + HOUR
    assert world.passes(NOON + HOUR - 1) is None
    world.passes(NOON + HOUR)
    spec = world.children["1"].spec
    assert isinstance(spec, Pipeline)
    assert (spec.name, spec.schedule, spec.on) == ("churn-1", None, None)
    assert spec.labels == {"pipeline": "churn", TRIGGER: f"schedule-{NOON + HOUR:.0f}"}
    assert world.events[-1] == "Triggered: churn-1 by its schedule: 2026-11-24 13:00 UTC"
    world.passes(NOON + HOUR + 1)
    assert world.says == "waits for churn-1; next at 2026-11-24 14:00 UTC"
    world.ends("1")
    world.passes(NOON + HOUR + 60)
    assert world.says == "next at 2026-11-24 14:00 UTC; churn-1 is Succeeded"
    world.passes(NOON + 2 * HOUR)
    assert (world.runs, KIND.progress(world.pipeline)) == (["1", "2"], "2 runs")


@pytest.mark.parametrize("overlap", Overlap)
def test_a_time_that_was_submitted_by_one_that_died_is_not_submitted_again(overlap: Overlap) -> None:
    world = World(hourly(overlap=overlap))
    world.passes(NOON + 1)
    for over in (False, True):
        at = NOON + HOUR * (1 + over)
        world.passes(at, dies=True)
        name = world.runs[-1]
        if over:
            world.ends(name)
        for second in range(5):
            world.passes(at + second)
        assert world.runs[-1] == name
        assert not any(event.startswith("NotScheduled") for event in world.events)
        world.ends(name)
    assert world.runs == ["1", "2"]


def test_a_time_that_comes_while_a_run_is_not_over_is_skipped_or_waits() -> None:
    for overlap, then in ((Overlap.SKIP, ["1"]), (Overlap.WAIT, ["1", "2"])):
        world = World(hourly(overlap=overlap))
        world.passes(NOON + HOUR)
        world.passes(NOON + 2 * HOUR)
        assert world.runs == ["1"]
        assert (world.next_at(NOON + 2 * HOUR + 1) is None) is (overlap is Overlap.WAIT)
        skipped = "NotScheduled: its time came while an earlier run was not over"
        assert (skipped in world.events) is (overlap is Overlap.SKIP)
        world.ends("1")
        world.passes(NOON + 2 * HOUR + 60)
        assert world.runs == then


def test_times_that_came_while_no_operator_was_there_have_one_run_or_none() -> None:
    for catch_up, runs in ((CatchUp.ONE, ["1"]), (CatchUp.NONE, [])):
        world = World(hourly(catch_up=catch_up))
        world.passes(NOON + 1)
        world.passes(NOON + 5 * HOUR + 600)
        assert world.runs == runs
        world.passes(NOON + 5 * HOUR + 601)
        assert world.runs == runs


def test_changed_data_has_one_run_and_the_first_look_none() -> None:
    world = World(on_data())
    world.passes(NOON)
    assert list(world.children) == ["watch"]
    world.passes(NOON + 1)
    for content, runs in (("a" * 64, []), ("a" * 64, []), ("b" * 64, ["1"])):
        world.sees(content)
        world.passes(NOON + 2)
        assert world.runs == runs
    assert world.events[-1] == "Triggered: churn-1 by changed data: /data/raw"
    # What changes meanwhile waits for the run that is there, and comes back to what it was in vain.
    world.sees("c" * 64)
    world.passes(NOON + 3)
    world.passes(NOON + 4)
    assert world.runs == ["1"]
    world.ends("1")
    world.passes(NOON + 5, dies=True)
    assert world.runs == ["1", "2"]
    for second in range(6, 9):
        world.passes(NOON + second)
    world.ends("2")
    world.passes(NOON + 9)
    assert world.runs == ["1", "2"]
    world.sees("a" * 64)
    world.passes(NOON + 10)
    assert world.runs == ["1", "2", "3"]


def test_data_is_watched_anew_when_something_else_is_to_be_watched_and_that_is_no_change_of_it() -> None:
    world = World(on_data())
    world.passes(NOON)
    world.sees("a" * 64)
    world.passes(NOON + 1)
    world.pipeline = replace(world.pipeline, spec=on_data(replace(LOOK, labels={WATCHES: "those"})))
    world.passes(NOON + 2)
    assert list(world.children) == []
    world.passes(NOON + 3)
    world.sees("z" * 64)
    world.passes(NOON + 4)
    assert list(world.children) == ["watch"]


def test_a_watch_that_its_team_lets_last_no_longer_is_followed_by_another_and_the_data_is_not_changed_by_that() -> None:
    world = World(on_data())
    world.passes(NOON)
    world.sees("a" * 64)
    world.passes(NOON + 1)
    over = replace(
        world.children["watch"].status, reason=Reason(code=Code.DEADLINE_EXCEEDED, message="its time is over")
    )
    world.children["watch"] = replace(world.children["watch"], status=replace(over, phase=Phase.FAILED))
    world.passes(NOON + 2)
    assert list(world.children) == []
    world.passes(NOON + 3)
    world.sees("a" * 64)
    world.passes(NOON + 4)
    assert (list(world.children), world.pipeline.status.phase.is_final) == (["watch"], False)


class Drifting(World):
    """Of one whose pod looks for drift, and tells what it finds."""

    def __init__(self, drift: Drift = BY_COST) -> None:
        on = On(drift=drift)
        super().__init__(Pipeline(name="churn", steps={"train": Step(run="train")}, on=on, watch=LOOK))
        self.passes(NOON)
        self.now = NOON

    def finds(self, run: int, looked: str, *, due: bool = False, begin: int | None = 0, fresh: float = 0.1) -> None:
        seen = DriftSeen(run=run, looked=looked * 64, begin=begin, fresh=fresh, is_due=due, said=f"said {looked}")
        self.children["watch"] = replace(self.children["watch"], progress=Progress(drift=seen))
        self.goes_on()

    def goes_on(self) -> None:
        for _ in range(3):
            self.now += 1
            self.passes(self.now)

    @property
    def cycle(self) -> DriftCycle:
        detail = self.pipeline.status.detail
        assert isinstance(detail, PipelineDetail)
        assert detail.standing is not None
        return detail.standing.drift


def test_a_model_that_has_grown_stale_is_trained_once_and_rows_count_from_the_end_of_that() -> None:
    world = Drifting()
    world.finds(0, "a")
    assert (world.runs, world.says) == ([], "runs when /team/seen.csv drifts (said a)")
    world.finds(0, "b", due=True, fresh=0.2)
    assert world.runs == ["1"]
    assert world.children["1"].spec.labels[TRIGGER] == f"drift-{'b' * 16}"
    assert world.events[-1] == "Triggered: churn-1 by drift: said b"
    world.finds(0, "c", due=True, fresh=0.3)
    assert world.runs == ["1"]
    world.ends("1")
    world.goes_on()
    assert world.cycle == DriftCycle(run=1, begin=None, fresh=0.3, fresh_now=0.3, acted_on="b" * 16)
    # What was found before it has heard of the training says nothing of the new model.
    world.finds(0, "d", due=True)
    assert world.runs == ["1"]
    world.finds(1, "e", begin=700, fresh=0.3)
    world.finds(1, "f", begin=900, fresh=0.25)
    assert (world.cycle.begin, world.cycle.fresh, world.cycle.fresh_now) == (700, 0.3, 0.25)
    world.finds(1, "0", due=True, begin=700)
    assert world.runs == ["1", "2"]


def test_a_training_for_drift_that_failed_has_staleness_cost_as_much_again_and_another_that_failed_has_not() -> None:
    world = Drifting()
    world.finds(0, "b", due=True)
    world.ends("1", Phase.FAILED)
    world.goes_on()
    assert (world.runs, world.cycle.run, world.cycle.is_new) == (["1"], 1, False)
    on = world.pipeline.spec.on
    spec = replace(hourly(), on=on, watch=LOOK)
    world = Drifting()
    world.pipeline = replace(world.pipeline, spec=spec)
    world.now = NOON + HOUR
    world.goes_on()
    world.ends("1", Phase.FAILED)
    world.goes_on()
    assert (world.runs, world.cycle.run) == (["1"], 0)
    world.finds(0, "b", due=True)
    assert world.children["2"].spec.labels[TRIGGER].startswith("drift-")


def test_drift_that_was_acted_on_by_one_that_died_is_not_acted_on_again() -> None:
    world = Drifting()
    seen = DriftSeen(run=0, looked="b" * 64, begin=0, is_due=True, said="stale")
    world.children["watch"] = replace(world.children["watch"], progress=Progress(drift=seen))
    world.passes(NOON + 1, dies=True)
    assert world.runs == ["1"]
    world.goes_on()
    # Somebody deletes it: of what was found there is no second run.
    del world.children["1"]
    world.goes_on()
    assert world.runs == []
    world.finds(0, "c", due=True)
    assert world.runs == ["2"]


def test_data_that_is_unlike_its_reference_has_one_run_until_a_file_changes() -> None:
    world = Drifting(Drift(data="/team/seen.csv", reference="train.csv"))
    for looked, runs in (("b", ["1"]), ("b", ["1"]), ("c", ["1", "2"])):
        world.finds(0, looked, due=True)
        assert world.runs == runs
        world.ends(runs[-1])
        world.goes_on()
        assert (world.runs, world.cycle.run) == (runs, 0)


def test_what_is_to_be_looked_for_otherwise_is_judged_anew() -> None:
    world = Drifting()
    world.finds(0, "b", due=True)
    world.ends("1")
    world.goes_on()
    world.pipeline = replace(
        world.pipeline, spec=replace(world.pipeline.spec, watch=replace(LOOK, labels={WATCHES: "those"}))
    )
    world.goes_on()
    assert world.cycle == DriftCycle(run=1, begin=0)
    assert (world.runs, world.pipeline.status.phase) == (["1"], Phase.RUNNING)


def test_a_watch_that_failed_ends_it_with_its_reason() -> None:
    world = World(on_data())
    world.passes(NOON)
    world.ends("watch", Phase.FAILED)
    world.passes(NOON + 1)
    assert world.pipeline.status.phase is Phase.FAILED
    assert world.says == "churn-watch is Failed: said so"


def test_a_time_zone_that_only_the_client_knows_ends_it_and_nobody_elses_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "timezone_problem", lambda name: None)
    world = World(hourly(timezone="Mars/Olympus"))
    world.passes(NOON)
    assert world.pipeline.status.phase is Phase.FAILED
    assert "knows no time zone 'Mars/Olympus'" in world.says
    assert world.next_at(NOON) is None


def test_of_runs_that_are_over_the_newest_are_kept() -> None:
    world = World(hourly())
    for hour in range(1, MOST_KEPT + 4):
        world.passes(NOON + hour * HOUR)
        world.ends(str(hour))
        world.passes(NOON + hour * HOUR + 60)
    assert world.runs == [str(number) for number in range(4, MOST_KEPT + 4)]


def test_one_with_a_driver_runs_once_whatever_its_schedule() -> None:
    spec = replace(hourly(), driver=Training(name="churn-driver", run="driver"))
    world = World(spec)
    world.passes(NOON)
    assert list(world.children) == ["driver"]
    assert world.pipeline.status.detail == PipelineDetail(submitted=True)


def test_where_rows_count_from_is_unknown_where_a_cluster_stores_no_null() -> None:
    told = {key: value for key, value in plain(DriftCycle(run=1, begin=None)).items() if value is not None}
    assert build(DriftCycle, told).begin is None
