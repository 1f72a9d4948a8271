"""The topics of notifications, and the notice that follows from an event of a run (decision 0202)."""

from enum import StrEnum

from fairlead.control.pipelines.command import is_pipeline
from fairlead.frozen import dataclass
from fairlead.state.plan import Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Phase
from fairlead.text.quantities import describe_duration


class Topic(StrEnum):
    """The closed set of topics that a destination can choose in ``events``."""

    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    RESTARTING = "restarting"
    STALLED = "stalled"
    WAITING = "waiting"
    PREEMPTED = "preempted"
    BUDGET = "budget"
    IDLE = "idle"
    CHECKPOINT = "checkpoint"
    ENDPOINT = "endpoint"
    TEST = "test"


USUAL = frozenset(
    (Topic.FINISHED, Topic.FAILED, Topic.STALLED, Topic.WAITING, Topic.BUDGET, Topic.CHECKPOINT, Topic.ENDPOINT)
)
"""The topics of a destination without ``events``."""

_BY_TYPE = {
    Phase.SUCCEEDED.value: Topic.FINISHED,
    Phase.FAILED.value: Topic.FAILED,
    Phase.STOPPED.value: Topic.STOPPED,
    Phase.RESTARTING.value: Topic.RESTARTING,
    Code.STALLED.value: Topic.STALLED,
    Code.NODE_SILENT.value: Topic.STALLED,
    Code.IDLE.value: Topic.IDLE,
    Code.SLOW_RANK.value: Topic.IDLE,
    Code.CHECKPOINT_LATE.value: Topic.CHECKPOINT,
    Code.CHECKPOINT_FAILING.value: Topic.CHECKPOINT,
    "CheckpointFailed": Topic.CHECKPOINT,
    "MemoryCheckpointFailed": Topic.CHECKPOINT,
    Code.REVISION_FAILED.value: Topic.ENDPOINT,
    "CanaryRolledBack": Topic.ENDPOINT,
}
_REPORTED = frozenset(("CheckpointFailed", "MemoryCheckpointFailed"))
"""Types that the runtime reports from the pod, where a program could write any other type itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNotice:
    """A message about a run.

    Attributes:
        id: Names the event, so that a receiver can drop a repetition.
        at: Time of the event, in Unix seconds.
        labels: The run's labels, by which destinations choose.
        is_child: Another workload submitted the run.
    """

    id: str
    at: float
    topic: Topic
    type: str
    run: str
    team: str
    kind: str
    uid: str
    message: str
    remedy: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    is_child: bool = False


def topic_of(event: Event) -> Topic | None:
    """Return the topic of an event; None if nobody is notified of it."""
    if event.type.startswith("Budget"):
        return Topic.BUDGET if event.reason.code is Code.OVER_BUDGET else None
    if event.reason.code is Code.REPORTED and event.type not in _REPORTED:
        return None
    if event.reason.code is Code.PREEMPTED:
        return Topic.PREEMPTED
    return _BY_TYPE.get(event.type)


def notice_of(run: AnyWorkload, event: Event, *, id: str, at: float) -> RunNotice | None:
    """Return the notice of an event of a run; None if nobody is notified of it."""
    topic = topic_of(event)
    return None if topic is None else _notice(run, topic, event.type, event.reason, id=id, at=at)


def waiting_notice(run: AnyWorkload, now: float) -> RunNotice:
    """Return the notice that a run has been pending for long."""
    since = run.status.since
    waited = describe_duration(now - since)
    reason = Reason(
        code=run.status.reason.code,
        message=f"it has waited for {waited}: {run.status.reason.message}",
        remedy=run.status.reason.remedy,
    )
    return _notice(run, Topic.WAITING, "Waiting", reason, id=f"{run.uid}-waiting-{since:.3f}", at=now)


def _notice(run: AnyWorkload, topic: Topic, type: str, reason: Reason, *, id: str, at: float) -> RunNotice:
    spec = run.spec
    return RunNotice(
        id=id, at=at, topic=topic, type=type, run=spec.name, team=spec.team, kind=type_name(run), uid=run.uid,
        message=reason.message, remedy=reason.remedy or "", labels=tuple(sorted(spec.labels.items())),
        is_child=run.parent is not None,
    )  # fmt: skip


def type_name(run: AnyWorkload) -> str:
    """Return the kind of a run as people write it."""
    return "Pipeline" if is_pipeline(run.spec) else type(run.spec).__name__
