"""Judges a pipeline with steps that are runs of their own: it has a driver, and ends with it.

The driver is a child like the others. It runs the steps that are commands, and submits the others as further children
of the pipeline, so that stopping, suspending and deleting the pipeline affect all of them. The driver decides the next
step, by ``fairlead.policy.kinds.steps``. A driver in a pod cannot submit anything: its reports name the runs it waits
for, and missing ones are submitted here.
"""

from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.policy.kinds.parents import advance, failed, finish, submit
from fairlead.policy.kinds.record import Family, ParentKind
from fairlead.policy.kinds.standing_pipeline import StandingDetail, decide, is_standing
from fairlead.policy.kinds.standing_pipeline import next_at as standing_next_at
from fairlead.policy.kinds.step_runs import asked_children
from fairlead.specs.pipeline import DRIVER, Pipeline, map_runs
from fairlead.state.plan import Change, ChildIntent, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Workload
from fairlead.text.lists import listed
from fairlead.text.quantities import plural

# A fan-out may have a thousand runs.
MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDetail:
    """The state of a pipeline besides its runs.

    Attributes:
        submitted: Whether its driver was submitted.
        over: The number of finished tasks, as reported by the driver.
        tasks: The number of tasks, if reported.
        standing: The state of a pipeline that runs by itself.
    """

    submitted: bool = False
    over: int = 0
    tasks: int | None = None
    standing: StandingDetail | None = None


def judge(pipeline: Workload[Pipeline], family: Family, now: float) -> Change | None:
    """Submit the driver, report its progress, and end with it; or judge a pipeline that runs by itself."""
    if is_standing(pipeline.spec):
        return _judge_standing(pipeline, family, now)
    driver, before = family.children.get(DRIVER), detail_of(pipeline)
    if driver is None:
        if before.submitted or pipeline.spec.driver is None:
            message = "its driver was deleted" if before.submitted else "it was submitted without a driver"
            return finish(pipeline, family, Phase.FAILED, Reason(code=Code.CHILD_FAILED, message=message), now)
        return advance(
            pipeline,
            Reason(code=Code.CHILDREN_RUNNING, message="its driver begins"),
            now,
            detail=PipelineDetail(submitted=True),
            submit=(submit(pipeline, DRIVER, pipeline.spec.driver),),
        )
    driver_progress = driver.progress
    over, tasks = (0, None) if driver_progress is None else (driver_progress.step or 0, driver_progress.total_steps)
    detail = PipelineDetail(submitted=True, over=over, tasks=tasks)
    if driver.status.phase is Phase.STOPPED and pipeline.status.phase is Phase.PENDING:
        # Resuming the pipeline also resumes its driver, even one that was stopped by itself.
        reason = Reason(code=Code.CHILDREN_RUNNING, message="its driver continues")
        orders = (ChildIntent(uid=driver.uid, intent=Intent.RUN),)
        return advance(pipeline, reason, now, detail=detail, children=orders)
    if driver.status.phase is Phase.SUCCEEDED:
        reason = Reason(code=Code.COMPLETED, message=f"{plural(len(pipeline.spec.steps), 'step')} succeeded")
        return finish(pipeline, family, Phase.SUCCEEDED, reason, now, detail=detail)
    if driver.status.phase.is_final:
        reason = failed(driver)
        if reason.remedy is not None:
            # Resuming the driver alone would leave nothing that submits its runs.
            own, whole = f"resume {driver.spec.name}`", f"resume {pipeline.spec.name}`"
            reason = replace(reason, remedy=reason.remedy.replace(own, whole))
        return finish(pipeline, family, Phase.FAILED, reason, now, detail=detail)
    requested = asked_children(pipeline.spec, family, driver.progress.asks if driver.progress is not None else ())
    new = tuple(submit(pipeline, name, spec) for name, spec in requested.items())
    others = sorted(
        child.spec.name for name, child in family.children.items() if name != DRIVER and not child.status.phase.is_final
    )
    others += [order.spec.name for order in new]
    parts = [f"{over} of {plural(tasks or len(pipeline.spec.steps), 'task')} are over"]
    parts += [f"waits for {listed(others, MOST_NAMED)}"] if others else []
    reason = Reason(code=Code.CHILDREN_RUNNING, message="; ".join(parts))
    event = None
    if new:
        sentence = f"submitted {listed([order.spec.name for order in new], MOST_NAMED)} for its driver"
        event = Event(type="StepsSubmitted", reason=Reason(code=Code.CHILDREN_RUNNING, message=sentence))
    return advance(pipeline, reason, now, detail=detail, submit=new, event=event)


def _judge_standing(pipeline: Workload[Pipeline], family: Family, now: float) -> Change | None:
    decided = decide(pipeline, family, detail_of(pipeline).standing, now)
    detail = PipelineDetail(standing=decided.detail)
    if decided.problem is not None:
        return finish(pipeline, family, Phase.FAILED, decided.problem, now, detail=detail)
    return advance(
        pipeline,
        decided.reason,
        now,
        detail=detail,
        submit=decided.submit,
        children=decided.children,
        event=decided.event,
    )


def next_at(pipeline: Workload[Pipeline], family: Family, now: float) -> float | None:
    """Return the next time of the schedule of a pipeline that runs by itself."""
    if not is_standing(pipeline.spec):
        return None
    return standing_next_at(pipeline, family, detail_of(pipeline).standing, now)


def progress(pipeline: Workload[Pipeline]) -> str:
    """Return how many of its tasks are over, or how often it was run."""
    detail = detail_of(pipeline)
    if is_standing(pipeline.spec):
        return plural(0 if detail.standing is None else detail.standing.number, "run")
    return f"{detail.over}/{detail.tasks or len(pipeline.spec.steps)}"


def detail_of(pipeline: Workload[Pipeline]) -> PipelineDetail:
    """Return the state of a pipeline besides its runs."""
    detail = pipeline.status.detail
    return detail if isinstance(detail, PipelineDetail) else PipelineDetail()


KIND = ParentKind(
    spec=Pipeline, detail=PipelineDetail, judge=judge, map_runs=map_runs, progress=progress, next_at=next_at
)
