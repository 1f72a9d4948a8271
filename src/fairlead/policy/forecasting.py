"""When those that wait will start, if everything ends when it is known to end at the latest and nobody else comes.

In their turn each is given the earliest start beside all before it, as in conservative backfilling (Mu'alem and
Feitelson, TPDS 2001): the computation by which the first that waits is promised its start. Behind a run of whose start
nothing is known, nothing is known. For W runs that wait: W walks of the timeline, at most ``MOST``.
"""

import math
from collections import defaultdict

from fairlead.policy.durations import SOON_S, durations_of
from fairlead.policy.placement import shape_of
from fairlead.policy.quotas import Ledger
from fairlead.policy.shares import capacity
from fairlead.policy.standing import Standing
from fairlead.policy.timeline import Timeline
from fairlead.policy.turns import fairly, first_come
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Pod, Snapshot, Workload

# More that wait than this are told nothing.
MOST = 500


def expected_starts(snapshot: Snapshot, now: float) -> dict[str, float]:
    """Latest starts as Unix times, by uid, of those that wait and of whose start something is known."""
    pods = defaultdict[str, list[Pod]](list)
    for pod in snapshot.pods:
        pods[pod.workload_uid].append(pod)
    durations = durations_of(snapshot.completed)
    holders = [run for run in snapshot.workloads if any(not pod.phase.is_final for pod in pods[run.uid])]
    ends = {run.uid: min(durations.ends_at(run, pods[run.uid], now), _gone_at(run, now)) for run in holders}
    timeline = Timeline.of(snapshot.nodes, snapshot.pods, ends, now)
    whole = capacity(snapshot.nodes)
    ledger = Ledger.of(snapshot.teams, whole, holders)
    standing = Standing.of(snapshot, whole, snapshot.rules.order, now)
    waiting = [
        run
        for run in snapshot.workloads
        if run.intent is Intent.RUN
        and run.status.phase in (Phase.PENDING, Phase.RESTARTING)
        and run.status.reason.code is not Code.OVER_QUOTA
        and all(pod.phase.is_final for pod in pods[run.uid])
    ]
    found = {}
    in_turn = fairly(waiting, ledger, standing)[0] if snapshot.rules.fair else first_come(waiting)
    for run in in_turn[:MOST]:
        claim = timeline.earliest(shape_of(run.spec, timeline.doors), run.spec.nodes, durations.length_s(run, now))
        if claim.start == math.inf:
            break
        found[run.uid] = max(claim.start, run.status.retry_at or 0.0)
        timeline.claim(claim)
    return found


def _gone_at(run: Workload, now: float) -> float:
    """When a run that is to stop has left, whether its pods have their notice yet or not."""
    return now + run.spec.grace_s + SOON_S if run.status.phase is Phase.STOPPING else math.inf
