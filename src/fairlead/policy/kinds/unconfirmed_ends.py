"""Reports pods whose end no kubelet confirms. Their gang waits until it is confirmed, since they may still run."""

from collections.abc import Iterator
from dataclasses import replace

from fairlead.state.plan import Change, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase, Pod, Workload
from fairlead.text.lists import listed
from fairlead.text.quantities import describe_duration

TOLD_AFTER_S = 60.0
"""Seconds after the end of its grace; a kubelet that is alive confirms the end of a pod within a few."""
_WAITS = "; it may still run, so its gang waits"


def tell(workload: Workload, live: tuple[Pod, ...], now: float) -> Change | None:
    """Report once the overdue pods of a stopping or restarting gang, and withdraw that when they have ended."""
    status = workload.status
    prefix, _, message = status.reason.message.rpartition(f"{_WAITS}; ")
    if prefix:
        if live:
            return None
        again = replace(status, reason=replace(status.reason, message=message, remedy=None))
        return Change(workload_uid=workload.uid, version=workload.version, status=again)
    late = [pod for pod in live if _is_late(workload, pod, now)]
    if not late:
        return None
    pods = listed([f"pod {pod.index} of {workload.gang.nodes} on node {pod.node}" for pod in late], 3)
    grace = describe_duration(workload.spec.grace_s)
    by = describe_duration(TOLD_AFTER_S)
    prefix = f"{pods}: still terminating {by} after the grace of {grace}, and no kubelet confirms the end{_WAITS}"
    remedy = f"If that machine is off for good, remove it: `kubectl delete node {late[0].node}` on Kubernetes."
    reason = replace(status.reason, message=f"{prefix}; {status.reason.message}", remedy=remedy)
    return Change(
        workload_uid=workload.uid,
        version=workload.version,
        status=replace(status, reason=reason),
        event=Event(
            type=Code.END_UNCONFIRMED.value, reason=Reason(code=Code.END_UNCONFIRMED, message=prefix, remedy=remedy)
        ),
    )


def look_times(workload: Workload) -> Iterator[float]:
    """Yield when a pod of a stopping or restarting gang may be overdue."""
    if workload.status.phase in (Phase.STOPPING, Phase.RESTARTING):
        yield workload.status.since + workload.spec.grace_s + TOLD_AFTER_S


def _is_late(workload: Workload, pod: Pod, now: float) -> bool:
    since = pod.terminating_since
    return since is not None and now - since >= workload.spec.grace_s + TOLD_AFTER_S
