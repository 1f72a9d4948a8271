"""The members of a gang whose pods an engine makes, as the loop sees them: each lives as long as the object. Pure.

So nothing begins anew, and nothing is forgotten, before the engine has nothing left to make a pod from.
"""

from collections.abc import Mapping
from dataclasses import replace

from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.engines.port import Driver, Stage
from fairlead.cluster.kubernetes.operator.engines.engine_objects import EngineObject
from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import Pod, PodPhase

STOPPED_EARLY = "stopped before it started"


def absent(
    run_uid: str,
    member: CreatePod,
    at: float,
    driver: Driver,
    there: EngineObject | None,
    *,
    told_at: float | None,
    coming: bool,
    created: bool,
) -> Pod:
    """A member that has no pod.

    Args:
        there: The object of its start; None where there is none.
        coming: The object may be created at this moment, or nobody knows yet whether it is there.
        created: The object was there once.
    """
    phase, message = PodPhase.CREATED, None
    if there is not None and there.observed.stage is Stage.SUCCEEDED:
        phase = PodPhase.SUCCEEDED
    elif there is not None and there.observed.stage is Stage.FAILED:
        phase, message = PodPhase.LOST, there.observed.message
    elif there is not None:
        message = there.observed.message or f"its {driver.kind} has not created its pod yet"
    elif not coming and told_at is not None:
        phase, message = PodPhase.FAILED, STOPPED_EARLY
    elif not coming and created:
        phase, message = PodPhase.LOST, f"its {driver.kind} was deleted"
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
    members: tuple[Pod, ...], objects: Mapping[int, PodObject], driver: Driver, there: EngineObject | None
) -> tuple[Pod, ...]:
    """The members, with what only the whole of them and the engine's object tell.

    An engine takes all pods away when one has failed, which is no loss of those; one that launches the program itself
    says how it ended; and kube-scheduler's words on a pod without a node are its reason to wait.
    """
    stage = Stage.WAITING if there is None else there.observed.stage
    if driver.launches and stage is Stage.SUCCEEDED:
        return tuple(replace(pod, phase=PodPhase.SUCCEEDED, message=None, exits=()) for pod in members)
    if driver.launches and stage is Stage.FAILED and not any(_failed(pod) for pod in members):
        said = "" if there is None else there.observed.message
        return tuple(replace(pod, phase=PodPhase.LOST, message=said) for pod in members)
    has_failed = any(_failed(pod) for pod in members)
    return tuple(_explained(pod, objects.get(pod.index), driver, there, has_failed) for pod in members)


def _failed(pod: Pod) -> bool:
    """Return whether a member failed by itself."""
    return pod.phase is PodPhase.FAILED and any(not each.ok for each in pod.exits)


def _explained(pod: Pod, seen: PodObject | None, driver: Driver, there: EngineObject | None, has_failed: bool) -> Pod:
    if pod.phase is PodPhase.CREATED and seen is not None and not seen.node and pod.message is None:
        if seen.refused is not None:
            said = " ".join(seen.refused.split()).rstrip(".")[:400]
            return replace(pod, message=f"kube-scheduler finds no place for pod {pod.index}: {said}")
        return pod
    if pod.phase is not PodPhase.LOST:
        return pod
    if has_failed:
        # The cause is told by the one that failed; that the others were ended for it is not another.
        return replace(pod, phase=PodPhase.FAILED, message=f"its {driver.kind} ended it")
    if there is not None and there.observed.message and there.observed.stage in (Stage.WAITING, Stage.FAILED):
        return replace(pod, message=there.observed.message)
    return pod
