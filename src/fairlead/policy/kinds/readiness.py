"""Judges for tools whether a workload is as its spec says, on its way there, or stuck until somebody changes something.

GitOps tools distinguish these three. They follow from the phase; an endpoint that runs is ready when the revision of
its spec serves with all wanted replicas.
"""

from enum import StrEnum
from typing import cast

from fairlead.frozen import dataclass
from fairlead.policy.kinds.serving import asked_revision
from fairlead.specs.serving import Serving
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Phase, Workload


class SpecProgress(StrEnum):
    """The distance of a workload from its spec.

    A suspended workload is in none of the other states: it is not ready, nothing is in progress, and nothing is wrong.
    """

    READY = "ready"
    RECONCILING = "reconciling"
    STALLED = "stalled"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The state of a workload for tools, with its reason."""

    progress: SpecProgress
    reason: Reason


_BY_PHASE = {
    Phase.PENDING: SpecProgress.RECONCILING,
    Phase.STARTING: SpecProgress.RECONCILING,
    Phase.RUNNING: SpecProgress.READY,
    Phase.RESTARTING: SpecProgress.RECONCILING,
    Phase.STOPPING: SpecProgress.RECONCILING,
    Phase.SUSPENDED: SpecProgress.SUSPENDED,
    Phase.SUCCEEDED: SpecProgress.READY,
    Phase.FAILED: SpecProgress.STALLED,
    Phase.STOPPED: SpecProgress.STALLED,
}


def readiness(workload: AnyWorkload) -> Readiness:
    """Return the state of a workload for tools."""
    phase, reason = workload.status.phase, workload.status.reason
    if phase is Phase.RUNNING and isinstance(workload.spec, Serving):
        return _of_endpoint(cast("Workload[Serving]", workload))
    return Readiness(progress=_BY_PHASE[phase], reason=reason)


def _of_endpoint(serving: Workload[Serving]) -> Readiness:
    reason, detail, newest = serving.status.reason, detail_of(serving), asked_revision(serving)
    if newest is None:
        message = "the spec has changed and was not considered yet"
        return Readiness(progress=SpecProgress.RECONCILING, reason=Reason(code=Code.SPEC_CHANGED, message=message))
    if newest.failed is not None:
        message = f"{newest.name} was given up: {newest.failed}"
        return Readiness(progress=SpecProgress.STALLED, reason=Reason(code=Code.REVISION_FAILED, message=message))
    if detail.unaddressed is not None:
        refused = Reason(code=Code.ADDRESS_REFUSED, message=detail.unaddressed)
        return Readiness(progress=SpecProgress.STALLED, reason=refused)
    is_ready = reason.code in (Code.SERVING, Code.ASLEEP)
    return Readiness(progress=SpecProgress.READY if is_ready else SpecProgress.RECONCILING, reason=reason)
