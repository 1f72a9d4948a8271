"""Runs one pass of the control loop over any cluster: load, decide, apply."""

import time

from fairlead.cluster.port import Cluster
from fairlead.control.pass_counts import PassCounts
from fairlead.frozen import dataclass
from fairlead.policy.decide import decide
from fairlead.policy.pass_cache import PassCache
from fairlead.policy.queue.team_debts import TeamDebts
from fairlead.state.plan import Plan
from fairlead.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of one pass.

    Attributes:
        has_changed: Whether it changed anything.
        is_last: Whether it is known that another pass at the same time would change nothing.
    """

    has_changed: bool
    is_last: bool


def run_pass(
    cluster: Cluster,
    now: float,
    counts: PassCounts | None = None,
    cache: PassCache | None = None,
    debts: TeamDebts | None = None,
) -> bool:
    """Bring the cluster one step closer to its desired state; return whether anything changed.

    Args:
        counts: Records the decisions, their duration and failures; without it, as in a simulation, these are raised.
        cache: State that this loop keeps between passes; None keeps none.
        debts: What teams have had beyond their shares, which this loop accounts for; None keeps no account.
    """
    return make_pass(cluster, now, counts, cache, debts).has_changed


def make_pass(
    cluster: Cluster,
    now: float,
    counts: PassCounts | None = None,
    cache: PassCache | None = None,
    debts: TeamDebts | None = None,
) -> PassResult:
    """Do the same as ``run_pass``, and return what the pass came to."""
    seen = cluster.snapshot()
    if debts is not None:
        seen = debts.known_to(seen, now)
    begun = time.perf_counter()
    plan = decide(seen, now, cache)
    before = None if debts is None else debts.record
    if debts is not None:
        debts.observe(seen, plan, cache)
    if counts is not None:
        counts.decisions.add(time.perf_counter() - begun)
        counts.seen = seen
        counts.held = {(room.team, room.name): room.gpu_milli for room in plan.held}
        counts.debts = dict(seen.debts)
    _note_failures(seen, plan, counts)
    if not plan.changes and plan.standby is None and not plan.partitioning and not plan.withdrawn:
        return PassResult(has_changed=False, is_last=True)
    applied = cluster.apply(plan)
    if counts is not None:
        counts.note(seen, plan, applied, now)
    return PassResult(
        has_changed=any(applied) or plan.standby is not None or bool(plan.partitioning) or bool(plan.withdrawn),
        # What is held free for a run that no longer has its promise changes debts, and so the order of teams.
        is_last=plan.is_last and all(applied) and (debts is None or debts.record is before),
    )


def _note_failures(seen: Snapshot, plan: Plan, counts: PassCounts | None) -> None:
    for failure in plan.failures:
        if failure.error is None:
            continue
        if counts is None:
            raise failure.error
        counts.isolation.note(_name(seen, failure.workload_uid), failure.error)
    if counts is not None and not plan.failures and counts.isolation.failing:
        counts.isolation.clear()


def _name(seen: Snapshot, uid: str) -> str:
    """Return the name of a workload in a log."""
    for workload in (*seen.workloads, *seen.parents):
        if workload.uid == uid:
            return f"{type(workload.spec).__name__} {workload.spec.team}/{workload.spec.name}"
    return "a pass"
