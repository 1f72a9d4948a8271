"""The members of a gang whose pods an engine creates, as the loop sees them: each lives as long as the object. Pure.

So no new attempt begins, and nothing is forgotten, while the engine could still create a pod.
"""

from collections.abc import Mapping
from dataclasses import replace

from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.engines.port import Driver, EngineStage, EngineStatus
from fairlead.cluster.kubernetes.informers.engine_objects import EngineObject
from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import Pod, PodPhase, RankExit

STOPPED_EARLY = "stopped before it started"


def absent(
    run_uid: str,
    member: CreatePod,
    at: float,
    driver: Driver,
    engine_object: EngineObject | None,
    *,
    told_at: float | None,
    coming: bool,
    created: bool,
    ranks: int = 1,
    has_run: bool = False,
) -> Pod:
    """Return a member that has no pod in this cluster.

    Args:
        engine_object: The object of its attempt; None if there is none.
        coming: The object may be created at this moment, or it is not known yet whether it exists.
        created: The object existed once.
        ranks: Those of each member.
        has_run: The gang was seen running.
    """
    if engine_object is not None and engine_object.is_dispatched:
        return _elsewhere(run_uid, member, at, driver, engine_object, told_at=told_at, ranks=ranks, has_run=has_run)
    phase, message = PodPhase.CREATED, None
    if engine_object is not None and engine_object.observed.stage is EngineStage.SUCCEEDED:
        phase = PodPhase.SUCCEEDED
    elif engine_object is not None and engine_object.observed.stage is EngineStage.FAILED:
        phase, message = PodPhase.LOST, engine_object.observed.message
    elif engine_object is not None:
        message = engine_object.observed.message or f"its {driver.kind} has not created its pod yet"
    elif not coming and told_at is not None:
        phase, message = PodPhase.FAILED, STOPPED_EARLY
    elif not coming and created:
        phase, message = PodPhase.LOST, f"its {driver.kind} was deleted"
    return _pod(run_uid, member, at, phase, told_at, message)


def _elsewhere(
    run_uid: str,
    member: CreatePod,
    at: float,
    driver: Driver,
    engine_object: EngineObject,
    *,
    told_at: float | None,
    ranks: int,
    has_run: bool,
) -> Pod:
    """A member whose pod is in another cluster, as far as the engine's object tells of it."""
    seen, cluster = engine_object.observed, engine_object.cluster or None
    pod = _pod(run_uid, member, at, PodPhase.CREATED, told_at, None)
    if seen.stage in (EngineStage.RUNNING, EngineStage.SUCCEEDED):
        phase = PodPhase.RUNNING if seen.stage is EngineStage.RUNNING else PodPhase.SUCCEEDED
        return replace(pod, phase=phase, started_at=seen.started_at or at, cluster=cluster)
    if seen.stage is EngineStage.FAILED and seen.index is None:
        return replace(pod, phase=PodPhase.LOST, message=_located(seen.message, engine_object), cluster=cluster)
    if seen.stage is EngineStage.FAILED:
        if seen.index != member.index:
            return replace(pod, phase=PodPhase.FAILED, message=f"its {driver.kind} ended it", cluster=cluster)
        exits = (_exit(seen, member.index * ranks),)
        return replace(pod, phase=PodPhase.FAILED, exits=exits, cluster=cluster)
    if has_run and engine_object.is_suspended:
        # Kueue would start it anew under the same name; a start of its own is counted and told.
        return replace(pod, phase=PodPhase.LOST, message=seen.message)
    if has_run:
        return replace(pod, phase=PodPhase.RUNNING, started_at=seen.started_at or at, cluster=cluster)
    return replace(pod, message=_located(seen.message, engine_object))


def _exit(seen: EngineStatus, rank: int) -> RankExit:
    """Return how a rank ended whose container's exit code is all that is known."""
    number = seen.exit_code - 128 if seen.exit_code > 128 else None
    code = seen.exit_code if number is None else None
    return RankExit(rank=rank, exit_code=code, signal=number, at=seen.ended_at)


def _located(message: str, engine_object: EngineObject) -> str:
    """Name the other cluster in what is told of it."""
    if not engine_object.cluster:
        return message
    if " in another cluster" in message:
        return message.replace(" in another cluster", f" in cluster {engine_object.cluster}")
    return f"{message}, in cluster {engine_object.cluster}"


def _pod(
    run_uid: str, member: CreatePod, at: float, phase: PodPhase, told_at: float | None, message: str | None
) -> Pod:
    return Pod(
        uid=f"{run_uid}-{member.attempt}-{member.index}",
        workload_uid=run_uid,
        attempt=member.attempt,
        index=member.index,
        node="",
        grant=member.grant,
        phase=phase,
        created_at=at,
        terminating_since=told_at,
        message=message,
    )


def explained(
    members: tuple[Pod, ...], objects: Mapping[int, PodObject], driver: Driver, engine_object: EngineObject | None
) -> tuple[Pod, ...]:
    """Return the members, with what only the whole gang and the engine's object show.

    An engine deletes all pods when one has failed, which does not make the others lost; one that launches the program
    itself reports how it ended; and kube-scheduler's message on a pod without a node is its reason to wait.
    """
    if driver.launches and engine_object is not None and not awaits_ending(driver, engine_object, objects.get(0)):
        if engine_object.observed.stage is EngineStage.SUCCEEDED:
            return tuple(replace(pod, phase=PodPhase.SUCCEEDED, message=None, exits=()) for pod in members)
        if engine_object.observed.stage is EngineStage.FAILED and not any(_failed(pod) for pod in members):
            return _failed_together(members, driver, engine_object)
    if driver.reports_end and engine_object is not None and engine_object.observed.stage is EngineStage.WAITING:
        members = tuple(_not_begun(pod, engine_object) for pod in members)
    has_failed = any(_failed(pod) for pod in members)
    return tuple(_explained(pod, objects.get(pod.index), driver, engine_object, has_failed) for pod in members)


def _not_begun(pod: Pod, engine_object: EngineObject) -> Pod:
    """Return a member whose container runs, but not yet the program that the engine starts in it."""
    if pod.phase is not PodPhase.RUNNING:
        return pod
    return replace(pod, phase=PodPhase.STARTING, started_at=None, message=engine_object.observed.message)


def awaits_ending(driver: Driver, engine_object: EngineObject, first: PodObject | None) -> bool:
    """Return whether an engine's job is over, and the first pod still runs and has not yet reported how."""
    is_over = engine_object.observed.stage in (EngineStage.SUCCEEDED, EngineStage.FAILED)
    is_there = first is not None and first.started_at is not None and not first.is_over and first.told_at is None
    return driver.reports_end and is_over and is_there and engine_object.ending is None


def _failed_together(members: tuple[Pod, ...], driver: Driver, engine_object: EngineObject) -> tuple[Pod, ...]:
    """Return the members of a gang whose program the engine started, and which failed."""
    seen, ending = engine_object.observed, engine_object.ending
    exits = ending.exits if ending is not None and not all(rank_exit.ok for rank_exit in ending.exits) else ()
    if not exits and seen.index is not None:
        exits = (_exit(seen, 0),)
    if not exits and (ending is None or ending.message is None):
        return tuple(replace(pod, phase=PodPhase.LOST, message=seen.message) for pod in members)
    message = ending.message if ending is not None else None
    first, *others = members
    ended = f"its {driver.kind} ended it"
    return (
        replace(first, phase=PodPhase.FAILED, exits=exits, message=message),
        *(replace(pod, phase=PodPhase.FAILED, exits=(), message=ended) for pod in others),
    )


def _failed(pod: Pod) -> bool:
    """Return whether a member failed by itself."""
    return pod.phase is PodPhase.FAILED and any(not rank_exit.ok for rank_exit in pod.exits)


def _explained(
    pod: Pod, seen: PodObject | None, driver: Driver, engine_object: EngineObject | None, has_failed: bool
) -> Pod:
    if pod.phase is PodPhase.CREATED and seen is not None and not seen.node and pod.message is None:
        if seen.refused is not None:
            why = " ".join(seen.refused.split()).rstrip(".")[:400]
            return replace(pod, message=f"kube-scheduler finds no place for pod {pod.index}: {why}")
        return pod
    if pod.phase is not PodPhase.LOST:
        return pod
    if has_failed:
        # The failed member reports the cause; that the others were ended because of it is not another cause.
        return replace(pod, phase=PodPhase.FAILED, message=f"its {driver.kind} ended it")
    if engine_object is not None and engine_object.is_dispatched:
        return pod
    if (
        engine_object is not None
        and engine_object.observed.message
        and engine_object.observed.stage in (EngineStage.WAITING, EngineStage.FAILED)
    ):
        return replace(pod, message=engine_object.observed.message)
    return pod
