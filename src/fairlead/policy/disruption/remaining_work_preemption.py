"""Chooses who of a team is stopped for a run that has less left to do: only when less is waited for that in all.

The exchange of two neighbours in an order (Smith, 1956), with work flowing through the cluster as through one
machine: if A goes before B, which holds the room, B waits for A's work and for what it is thrown back itself; A is
spared B's work. With several in place of B each of them waits, and A is spared the work of all. So it is in seconds
of the whole cluster (``fairlead.policy.queue.queue_score``), each run counting as one, and rests on what is known of
what is left (``fairlead.policy.queue.remaining_work``). Counted in seconds by the clock a wide gang would hardly ever
be worth its room, for which it waits until all of it is free at once, while others go on taking parts of it.

A run gives way only to one that has more points, so two never take turns: who waits gains points, and who runs has less
and less left. And only to one that is over, and it where it was, before it would itself have been over: nobody is put
back by more than what was left of it. Who has never saved a checkpoint is stopped in its first start only, since it
begins from nothing each time. Nobody gives way to one that would soon start anyway. Those with the most work left are
stopped first, as few as it takes. For H holders: H counts of how many members fit.
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
    """Whom to stop so that the run can start; nobody when that is not enough, or costs more than it gains.

    Args:
        starts_at: When it would start at the latest if nobody were stopped; infinity when nobody can say.
    """
    if standing.left_s(wanting) is None:
        return ()
    now, shape, count = standing.now, shape_of(wanting.spec, timeline.doors), wanting.spec.nodes
    running = sorted((_offer(each, pods, standing) for each in holders if _runs(each, pods)), key=_soonest)
    offered = [each for each in running if _goes_behind(each.workload, wanting, pods, standing)]
    offered.sort(key=lambda each: (-standing.work_s(each.workload), each.workload.uid))
    leave_at = now + max((each.workload.spec.grace_s for each in offered), default=0.0)
    running, offered = (
        [each for each in some if timeline.holdings[each.workload.uid].until > leave_at] for some in (running, offered)
    )
    if not offered:
        return ()
    with timeline.at(leave_at) as rooms:
        chosen = enough(shape, count, [_with_cost(each, wanting, pods, standing) for each in offered], rooms)
        if not chosen:
            return ()
        ending = enough(shape, count, running, rooms)
    # Those that are stopped end by themselves at the times that they have as their cost in ``running``.
    ends_at = now + max((each.cost_s for each in ending), default=math.inf)
    if min(starts_at, ends_at) - leave_at <= RESTART_S:
        return ()
    return chosen if pays(chosen, standing) else ()


def pays(chosen: Sequence[Victim], standing: Standing) -> bool:
    """Return whether more work is left of those chosen than they wait for, in seconds of the whole cluster."""
    return sum(standing.work_s(each.workload) for each in chosen) > sum(each.cost_s for each in chosen)


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
    """A run that ends by itself after what is left of it, which is its cost here; infinity where nothing is known."""
    left_s = standing.left_s(workload)
    parts = tuple((pod.node, pod.grant) for pod in _live(workload, pods))
    return Victim(workload=workload, parts=parts, cost_s=math.inf if left_s is None else left_s, by_priority=True)


def _soonest(victim: Victim) -> tuple[float, str]:
    return victim.cost_s, victim.workload.uid


def _with_cost(victim: Victim, wanting: Workload, pods: Mapping[str, Sequence[Pod]], standing: Standing) -> Victim:
    """The same, with what it waits, and is thrown back, when it gives way."""
    thrown_back_s = cost(victim.workload, _live(victim.workload, pods), standing.whole, standing.now)
    return replace(victim, cost_s=standing.work_s(wanting) + thrown_back_s)


def _live(workload: Workload, pods: Mapping[str, Sequence[Pod]]) -> list[Pod]:
    return [pod for pod in pods[workload.uid] if not pod.phase.is_final]
