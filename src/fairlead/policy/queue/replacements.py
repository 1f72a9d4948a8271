"""Changes of a running gang that lacks pods: their replacements are placed, or wait, while the others continue.

Which pods are lost, and when the gang restarts instead, is judged by the kind of the run.

See decision 135.
"""

from dataclasses import replace

from fairlead.state.plan import Change, CreatePod, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Workload

WAITS, REPLACED = "PodWaits", "PodReplaced"


def replaced(workload: Workload, create: tuple[CreatePod, ...], now: float) -> Change:
    """Return the change that places replacements."""
    status, which = workload.status, {placement.index for placement in create}
    lost = tuple(replace(pod, replaced_at=now) if pod.index in which else pod for pod in status.failures.lost_pods)
    are = "pods" if len(which) > 1 else "pod"
    pods = f"{are} {', '.join(map(str, sorted(which)))} of {workload.gang.nodes}"
    where = ", ".join(sorted({placement.node for placement in create}))
    reason = Reason(code=Code.PLACED, message=f"{pods} placed again on {where}; the others continue in place meanwhile")
    return Change(
        workload_uid=workload.uid,
        version=workload.version,
        status=replace(
            status,
            failures=replace(status.failures, lost_pods=lost),
            reason=reason,
            queue=status.queue.without_request(),
        ),
        event=Event(type=REPLACED, reason=reason),
        create=create,
    )


def waits(workload: Workload, why: Reason, asked_at: float | None, ask_again_at: float | None) -> Change | None:
    """Return the change that records why lost pods are not replaced yet; None if it is recorded.

    An event is recorded once, since what is free changes from pass to pass.

    Args:
        asked_at, ask_again_at: As in ``Status``.
    """
    status, num = workload.status, workload.gang.nodes
    indexes = ", ".join(str(pod.index) for pod in status.missing)
    which = f"pods {indexes} wait: each" if len(status.missing) > 1 else f"pod {indexes} waits: it"
    what = f"{num - len(status.missing)} of {num} pods run; {which} {why.message}"
    remedy = "It is placed as soon as a node has that free; the others continue meanwhile."
    reason = replace(why, message=what, remedy=remedy)
    if (status.reason, status.queue.nodes_requested_at, status.queue.request_again_at) == (
        reason,
        asked_at,
        ask_again_at,
    ):
        return None
    is_new = status.reason.code is not why.code
    return Change(
        workload_uid=workload.uid,
        version=workload.version,
        status=replace(
            status,
            reason=reason,
            queue=replace(status.queue, nodes_requested_at=asked_at, request_again_at=ask_again_at),
        ),
        event=Event(type=WAITS, reason=reason) if is_new else None,
    )
