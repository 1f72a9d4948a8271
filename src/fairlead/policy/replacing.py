"""Who of a team is stopped for a run that has less left to do: only when less is waited for that in all.

The exchange of two neighbours in an order (Smith, 1956): if A goes before B, which holds the room, B waits for as long
as A runs and is thrown back by its restart; A is spared the wait for B's end. With several in place of B, each of them
waits. All of it is in seconds of waiting, each run counting as one, and rests on what is known of what is left
(``fairlead.policy.remaining``). A run gives way only to one that has more points, so two never take turns: who waits
gains points, and who runs has less and less left.

Those with the most left are stopped first, as few as it takes. For H holders: H counts of how many members fit.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from fairlead.policy.placement import shape_of
from fairlead.policy.preemption import Victim, enough, restart_s
from fairlead.policy.quotas import is_scavenger
from fairlead.policy.standing import Standing
from fairlead.policy.timeline import Timeline
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
    """Whom to stop so that the run can start; nobody when that is not enough, or more would be waited.

    Args:
        starts_at: When it would start at the latest if nobody were stopped; infinity when nobody can say.
    """
    if standing.left_s(wanting) is None:
        return ()
    now, shape, count = standing.now, shape_of(wanting.spec, timeline.doors), wanting.spec.nodes
    running = sorted((_offer(each, pods, standing) for each in holders if _runs(each, pods)), key=_soonest)
    offered = [each for each in reversed(running) if _goes_behind(each.workload, wanting, standing)]
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
    return chosen if pays(min(starts_at, ends_at) - leave_at, chosen) else ()


def pays(spared_s: float, chosen: Iterable[Victim]) -> bool:
    """Whether a run that is spared so much waiting is worth what those chosen wait for it."""
    return spared_s > sum(each.cost_s for each in chosen)


def _runs(workload: Workload, pods: Mapping[str, Sequence[Pod]]) -> bool:
    return (
        workload.intent is Intent.RUN
        and workload.status.phase is Phase.RUNNING
        and all(pod.terminating_since is None for pod in pods[workload.uid] if not pod.phase.is_final)
    )


def _goes_behind(workload: Workload, wanting: Workload, standing: Standing) -> bool:
    return (
        workload.spec.team == wanting.spec.team
        and not is_scavenger(workload.spec)
        and workload.spec.priority <= wanting.spec.priority
        and standing.points(workload) < standing.points(wanting)
        and standing.left_s(workload) is not None
    )


def _offer(workload: Workload, pods: Mapping[str, Sequence[Pod]], standing: Standing) -> Victim:
    """A run that ends by itself after what is left of it, which is its cost here; infinity where nothing is known."""
    left_s = standing.left_s(workload)
    parts = tuple((pod.node, pod.grant) for pod in pods[workload.uid] if not pod.phase.is_final)
    return Victim(workload=workload, parts=parts, cost_s=math.inf if left_s is None else left_s, by_priority=True)


def _soonest(victim: Victim) -> tuple[float, str]:
    return victim.cost_s, victim.workload.uid


def _with_cost(victim: Victim, wanting: Workload, pods: Mapping[str, Sequence[Pod]], standing: Standing) -> Victim:
    """The same, with the seconds that it waits, and is thrown back, when it gives way."""
    workload = victim.workload
    live = [pod for pod in pods[workload.uid] if not pod.phase.is_final]
    waits_s = (standing.left_s(wanting) or 0.0) + restart_s(workload, live, standing.now)
    return Victim(workload=workload, parts=victim.parts, cost_s=waits_s, by_priority=True)
