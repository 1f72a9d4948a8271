"""Computes the cluster as it will be once all runs that make room for others are gone, as the next passes see it.

Preemptions are verified by it. A run for which others are stopped may not get their room: once they are Pending again,
their team holds less, so that another run comes first, its quota allows what it forbade, or a run with a promise gets
an earlier one, for which free capacity has to be kept. Then the stopped runs would start again, and be stopped again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fairlead.policy.disruption.preemption import Victim
from fairlead.policy.queue.changes import next_attempt
from fairlead.state.reasons import Code
from fairlead.state.run_times import ran_until
from fairlead.state.snapshot import AfterStop, Phase, Pod, Snapshot, Workload


def makes_room(workload: Workload, *codes: Code) -> bool:
    """Return whether the run is leaving for one of these reasons, to be requeued."""
    status = workload.status
    return status.phase is Phase.STOPPING and status.reason.code in codes


def without(
    snapshot: Snapshot, pods: Mapping[str, Sequence[Pod]], victims: Iterable[Victim], now: float
) -> tuple[Snapshot, dict[str, Sequence[Pod]], list[Workload]]:
    """Return the snapshot, the pods of each workload and the requeued runs, once all that make room are gone.

    Moving runs stay where they are; elastic gangs that shrink hold what they keep.

    Args:
        pods: Pods of each workload, of all attempts.
        victims: Runs about to be stopped; those that are already leaving follow from the snapshot.
    """
    victim_of = {victim.workload.uid: victim for victim in victims}
    after, pending, changed = list[Workload](), list[Workload](), set[str]()
    held = defaultdict[str, Sequence[Pod]](tuple, pods)
    for workload in snapshot.workloads:
        victim = victim_of.get(workload.uid)
        if victim is not None and victim.keeps:
            changed.add(workload.uid)
            held[workload.uid] = _survivors(pods[workload.uid], victim)
            workload = replace(
                workload, status=replace(workload.status, size=replace(workload.status.size, nodes=victim.keeps))
            )
        elif victim is not None or makes_room(workload, Code.PREEMPTED):
            changed.add(workload.uid)
            held[workload.uid] = ()
            workload = _requeued(workload, now)
            pending.append(workload)
        after.append(workload)
    left = tuple(pod for pod in snapshot.pods if pod.workload_uid not in changed or pod in held[pod.workload_uid])
    return replace(snapshot, workloads=tuple(after), pods=left), held, pending


def _requeued(workload: Workload, now: float) -> Workload:
    status = workload.status
    waits = replace(
        status,
        phase=Phase.PENDING,
        since=now,
        attempt=next_attempt(status),
        run_time=replace(status.run_time, saved_s=ran_until(status, now)),
        started_at=None,
        failures=replace(status.failures, retry_at=None),
        after_stop=AfterStop(),
    )
    return replace(workload, status=waits)


def _survivors(pods: Sequence[Pod], victim: Victim) -> list[Pod]:
    parts = list(victim.parts)
    pods_left = []
    for pod in pods:
        part = (pod.node, pod.grant)
        if part in parts:
            parts.remove(part)
        else:
            pods_left.append(pod)
    return pods_left
