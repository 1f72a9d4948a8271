"""Chooses runs of a team to stop for one with less remaining work, if that reduces total waiting.

The argument is the exchange of two neighbours in an order (Smith, 1956), with work flowing through the cluster as
through one machine: if A goes before B, which holds the room, B waits for A's work and for its own lost work; A is
spared B's work. With several runs in place of B each of them waits, and A is spared the work of all. So costs are in
seconds of the whole cluster (``fairlead.policy.queue.queue_score``), each run counting as one, and rest on estimates of
remaining work (``fairlead.policy.queue.remaining_work``). In wall-clock seconds a wide gang would hardly ever justify
its room, for which it waits until all of it is free at once, while others keep taking parts of it.

A run yields only to one with more points, so two never alternate: a waiting run gains points, and a running one has
less and less left. And it yields only to one that is over, and itself back in place, before it would itself have been
over: no run is delayed by more than its own remaining time. A run that never saved a checkpoint is stopped in its first
attempt only, since it starts from scratch each time. No run yields to one that would soon start anyway. Runs with the
most work left are stopped first, as few as needed. For H holders: H counts of how many pods fit.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fairlead.policy.disruption.defragmentation import can_resume
from fairlead.policy.disruption.preemption import RESTART_S, Victim, cost, enough, restart_s
from fairlead.policy.placement.placement import shape_of
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import is_scavenger
from fairlead.policy.queue.timeline import Timeline
from fairlead.state.snapshot import Intent, Phase, Pod, Workload


def replaced(
    wanting: Workload,
    holders: Iterable[Workload],
    pods: Mapping[str, Sequence[Pod]],
    timeline: Timeline,
    standing: Standing,
    *,
    starts_at: float,
) -> tuple[Victim, ...]:
    """Return the runs to stop so that the run can start; empty if they do not suffice, or cost more than it gains.

    Args:
        starts_at: Its latest start without preemption; infinity if unknown.
    """
    if standing.left_s(wanting) is None:
        return ()
    now, shape, count = standing.now, shape_of(wanting.spec, timeline.doors), wanting.spec.nodes
    running = sorted((_offer(run, pods, standing) for run in holders if _runs(run, pods)), key=_soonest)
    offered = [run for run in running if _goes_behind(run.workload, wanting, pods, standing)]
    offered.sort(key=lambda victim: (-standing.work_s(victim.workload), victim.workload.uid))
    leave_at = now + max((victim.workload.spec.grace_s for victim in offered), default=0.0)
    running, offered = (
        [victim for victim in some if timeline.holdings[victim.workload.uid].until > leave_at]
        for some in (running, offered)
    )
    if not offered:
        return ()
    with timeline.at(leave_at) as rooms:
        chosen = enough(shape, count, [_with_cost(victim, wanting, pods, standing) for victim in offered], rooms)
        if not chosen:
            return ()
        ending = enough(shape, count, running, rooms)
    # The stopped runs would end by themselves at the times that ``running`` has as their cost.
    ends_at = now + max((victim.cost_s for victim in ending), default=math.inf)
    if min(starts_at, ends_at) - leave_at <= RESTART_S:
        return ()
    return chosen if pays(chosen, standing) else ()


def pays(chosen: Sequence[Victim], standing: Standing) -> bool:
    """Return whether the chosen runs have more work left than they wait, in seconds of the whole cluster."""
    return sum(standing.work_s(victim.workload) for victim in chosen) > sum(victim.cost_s for victim in chosen)


def _runs(workload: Workload, pods: Mapping[str, Sequence[Pod]]) -> bool:
    return (
        workload.intent is Intent.RUN
        and workload.status.phase is Phase.RUNNING
        and all(pod.terminating_since is None for pod in pods[workload.uid] if not pod.phase.is_final)
    )


def _goes_behind(workload: Workload, wanting: Workload, pods: Mapping[str, Sequence[Pod]], standing: Standing) -> bool:
    left_s, other_s = standing.left_s(workload), standing.left_s(wanting)
    return (
        workload.spec.team == wanting.spec.team
        and not is_scavenger(workload.spec)
        and workload.spec.priority <= wanting.spec.priority
        and standing.points(workload) < standing.points(wanting)
        and (workload.status.attempt == 0 or can_resume(workload))
        and left_s is not None
        and other_s is not None
        and left_s > other_s + restart_s(workload, _live(workload, pods), standing.now)
    )


def _offer(workload: Workload, pods: Mapping[str, Sequence[Pod]], standing: Standing) -> Victim:
    """Return a run as a victim whose cost is its remaining time; infinity if unknown."""
    left_s = standing.left_s(workload)
    parts = tuple((pod.node, pod.grant) for pod in _live(workload, pods))
    return Victim(workload=workload, parts=parts, cost_s=math.inf if left_s is None else left_s, by_priority=True)


def _soonest(victim: Victim) -> tuple[float, str]:
    return victim.cost_s, victim.workload.uid


def _with_cost(victim: Victim, wanting: Workload, pods: Mapping[str, Sequence[Pod]], standing: Standing) -> Victim:
    """Return the victim with the cost of yielding: its wait and its lost work."""
    thrown_back_s = cost(victim.workload, _live(victim.workload, pods), standing.whole, standing.now)
    return replace(victim, cost_s=standing.work_s(wanting) + thrown_back_s)


def _live(workload: Workload, pods: Mapping[str, Sequence[Pod]]) -> list[Pod]:
    return [pod for pod in pods[workload.uid] if not pod.phase.is_final]
