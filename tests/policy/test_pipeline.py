"""A pipeline whose steps are runs of their own goes and ends with its driver."""

from dataclasses import replace

from fairlead.policy.kinds.pipeline import KIND, PipelineDetail, judge
from fairlead.policy.kinds.record import Family
from fairlead.specs.pipeline import DRIVER, Pipeline, Step, StepTraining
from fairlead.specs.training import Checkpoint, Training
from fairlead.state.plan import SubmitChild
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Progress, Status, StepAsked, Workload

REASON = Reason(code=Code.REPORTED, message="said so")
DRIVEN = Training(name="churn-driver", run="driver")
SPEC = Pipeline(
    name="churn",
    steps={"prepare": Step(run="true"), "train": Step(training=StepTraining(run="train"), needs=("prepare",))},
    driver=DRIVEN,
)


def a_pipeline(detail: PipelineDetail | None = None, phase: Phase = Phase.RUNNING) -> Workload[Pipeline]:
    status = Status(phase=phase, reason=REASON, since=0.0, detail=detail)
    return Workload(uid="p", spec=SPEC, intent=Intent.RUN, status=status, version=3, created_at=0.0)


def a_child(name: str, phase: Phase, progress: Progress | None = None) -> AnyWorkload:
    return Workload(
        uid=name,
        spec=Training(name=f"churn-{name}", run="x"),
        intent=Intent.RUN,
        status=Status(phase=phase, reason=REASON, since=0.0),
        version=1,
        created_at=0.0,
        progress=progress,
        parent="p",
    )


def test_its_driver_is_submitted_first_and_once() -> None:
    change = judge(a_pipeline(phase=Phase.PENDING), Family(children={}), 1.0)
    assert change is not None
    assert change.submit == (SubmitChild(name=DRIVER, spec=DRIVEN),)
    assert change.status is not None
    assert (change.status.phase, change.status.detail) == (Phase.RUNNING, PipelineDetail(submitted=True))


def test_a_driver_that_somebody_deleted_is_not_submitted_again() -> None:
    change = judge(a_pipeline(PipelineDetail(submitted=True)), Family(children={}), 1.0)
    assert change is not None
    assert change.submit == ()
    assert change.status is not None
    assert (change.status.phase, change.status.reason.message) == (Phase.FAILED, "its driver was deleted")


def test_it_tells_how_far_the_driver_is_and_which_runs_it_waits_for() -> None:
    driver = a_child(DRIVER, Phase.RUNNING, Progress(step=1, total_steps=2))
    family = Family(children={DRIVER: driver, "train": a_child("train", Phase.PENDING)})
    change = judge(a_pipeline(PipelineDetail(submitted=True)), family, 1.0)
    assert change is not None
    assert change.status is not None
    assert change.status.reason.message == "1 of 2 tasks are over; waits for churn-train"
    told = a_pipeline(PipelineDetail(submitted=True, over=1, tasks=2))
    assert KIND.progress(told) == "1/2"
    # Nothing is written anew while nothing changes.
    assert judge(replace(told, status=change.status), family, 2.0) is None


def test_it_ends_as_its_driver_does_and_stops_what_still_runs() -> None:
    left = a_child("train", Phase.RUNNING)
    for phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED):
        family = Family(children={DRIVER: a_child(DRIVER, phase), "train": left})
        change = judge(a_pipeline(PipelineDetail(submitted=True)), family, 1.0)
        assert change is not None
        assert change.status is not None
        expected = Phase.SUCCEEDED if phase is Phase.SUCCEEDED else Phase.FAILED
        assert (change.status.phase, change.status.after_stop.phase) == (Phase.STOPPING, expected)
        assert [(each.uid, each.intent) for each in change.children] == [("train", Intent.STOP)]


def test_whoever_resumes_it_means_its_driver_too_also_where_that_was_stopped_by_itself() -> None:
    driver = replace(a_child(DRIVER, Phase.STOPPED), intent=Intent.STOP)
    change = judge(a_pipeline(PipelineDetail(submitted=True), Phase.PENDING), Family(children={DRIVER: driver}), 1.0)
    assert change is not None
    assert change.status is not None
    assert change.status.phase is Phase.RUNNING
    assert [(each.uid, each.intent) for each in change.children] == [(DRIVER, Intent.RUN)]


def test_what_would_continue_it_is_said_of_the_pipeline_not_of_its_driver() -> None:
    stopped = replace(REASON, remedy="`fairlead resume churn-driver` continues it.")
    driver = a_child(DRIVER, Phase.STOPPED)
    driver = replace(driver, status=replace(driver.status, reason=stopped))
    change = judge(a_pipeline(PipelineDetail(submitted=True)), Family(children={DRIVER: driver}), 1.0)
    assert change is not None
    assert change.status is not None
    assert change.status.reason.remedy == "`fairlead resume churn` continues it."


def test_runs_that_a_driver_in_a_pod_asks_for_are_submitted_once_with_what_they_are_given() -> None:
    fanned = Step(training=StepTraining(run="eval"), needs=("train",), each=("a", "b"), outputs=("score",))
    train = Step(training=StepTraining(run="train", env={"X": "1"}), needs=("prepare",), outputs=("model",))
    prepare = Step(run="true", outputs=("data",))
    steps = {"prepare": prepare, "train": train, "evaluate": fanned}
    spec = replace(SPEC, steps=steps, checkpoint=Checkpoint(to="/team/runs/"), env={"Y": "2"})
    pipeline = replace(a_pipeline(PipelineDetail(submitted=True)), spec=spec)
    asks = (
        StepAsked(step="train"),
        StepAsked(step="evaluate", index=1, item="b"),
        # What a driver cannot ask for, as a program may have written it there.
        StepAsked(step="prepare"),
        StepAsked(step="nowhere"),
        StepAsked(step="train", index=0, item="a"),
        StepAsked(step="evaluate", index=-1, item="a"),
        StepAsked(step="evaluate"),
    )
    driver = a_child(DRIVER, Phase.RUNNING, Progress(asks=asks))
    change = judge(pipeline, Family(children={DRIVER: driver}), 1.0)
    assert change is not None
    assert [order.spec.name for order in change.submit] == ["churn-train", "churn-evaluate-1"]
    first, second = (order.spec for order in change.submit)
    assert isinstance(first, Training)
    below = "/team/runs/churn-driver-driver/steps"
    assert first.env == {
        "X": "1",
        "Y": "2",
        "FAIRLEAD_STEP": "train",
        "FAIRLEAD_OUTPUT_MODEL": f"{below}/train/outputs/model",
        "FAIRLEAD_INPUT_PREPARE_DATA": f"{below}/train/inputs/prepare.data",
    }
    assert isinstance(second, Training)
    assert second.env["FAIRLEAD_ITEM"] == "b"
    assert second.env["FAIRLEAD_OUTPUT_SCORE"] == f"{below}/evaluate-1/outputs/score"
    assert change.event is not None
    assert change.event.reason.message == "submitted churn-train, churn-evaluate-1 for its driver"
    there = {name: a_child(name, Phase.RUNNING) for name in ("train", "evaluate-1")} | {DRIVER: driver}
    again = judge(pipeline, Family(children=there), 2.0)
    assert again is not None
    assert again.submit == ()
