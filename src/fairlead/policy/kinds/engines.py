"""Hands a run to its engine instead of placing it, and reports why it waits there.

After that it is judged like every other run: its pods are those that the engine creates. Order, quota and placement are
the engine's; budgets, time limits, retries, stops and reasons remain Fairlead's.
"""

from dataclasses import replace

from fairlead.policy.queue.budgets import budget_overspent
from fairlead.policy.queue.changes import change_to, next_attempt, wait
from fairlead.specs.engines import Engine
from fairlead.state.phase_transitions import move
from fairlead.state.plan import Change, CreatePod
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Phase, Pod, Snapshot, Workload
from fairlead.text.quantities import plural

NUM_LAUNCHERS = {Engine.MPIJOB: 1}
"""Pods that an engine adds to those of the gang, with lower indices."""


def hand_over(workload: Workload, snapshot: Snapshot, now: float) -> Change | None:
    """Hand a run that should start to its engine; return None if it is not time yet."""
    status, spec = workload.status, workload.spec
    if spec.engine is None or (status.failures.retry_at is not None and now < status.failures.retry_at):
        return None
    unpaid = budget_overspent(workload, snapshot)
    if unpaid is not None:
        return next(iter(wait(workload, unpaid, now)), None)
    num_pods = spec.nodes + NUM_LAUNCHERS.get(spec.engine, 0)
    queue = "" if spec.queue is None else f", queue {spec.queue}"
    what = f"{plural(num_pods, 'pod')} with {plural(spec.world_size, 'rank')}"
    reason = Reason(
        code=Code.HANDED_OVER, message=f"{what} handed to the engine {spec.engine}{queue}, which places them"
    )
    attempt = next_attempt(status)
    grant = Grant(cpu_milli=spec.resources.pod_cpu_milli, memory_bytes=spec.resources.pod_memory_bytes)
    create = tuple(CreatePod(attempt=attempt, index=index, node="", grant=grant) for index in range(num_pods))
    moved = move(
        status, Phase.STARTING, reason, now, attempt=attempt, failures=replace(status.failures, retry_at=None),
        queue=replace(status.queue.without_request(), preempted_by=None),
    )  # fmt: skip
    return replace(change_to(workload, moved), create=create)


def tell_wait(workload: Workload, delayed: Pod) -> Change | None:
    """Report why the engine has not started a run, whenever its message changes; with an event only once."""
    message = delayed.message or ""
    if delayed.node:
        message = f"pod {delayed.index} of {workload.gang.nodes} has not started: {message}"
    reason = workload.status.reason
    if (reason.code, reason.message) == (Code.START_DELAYED, message):
        return None
    change = change_to(workload, replace(workload.status, reason=Reason(code=Code.START_DELAYED, message=message)))
    return replace(change, event=None) if reason.code is Code.START_DELAYED else change
