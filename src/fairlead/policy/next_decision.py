"""Computes when time alone may change a decision, so that the control loop wakes up by then."""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fairlead.deferred import deferred
from fairlead.policy.capacity import spot_deadline
from fairlead.policy.disruption.partitioning import look_times
from fairlead.policy.kinds.lost_pods import look_times as replacement_times
from fairlead.policy.kinds.parents import families_of
from fairlead.policy.kinds.slow_starts import look_times as start_times
from fairlead.policy.kinds.table import parent_of
from fairlead.policy.kinds.unconfirmed_ends import look_times as end_times
from fairlead.policy.queue.budgets import limit_times
from fairlead.policy.scaling.elastic import next_look
from fairlead.policy.scaling.scale_up import REPLY_PATIENCE_S, is_asking
from fairlead.policy.selection.rounds import round_times
from fairlead.policy.selection.selection import turn_times
from fairlead.policy.selection.slowdowns import is_colocated, settles_at
from fairlead.state.capacity_requests import PATIENCE_S
from fairlead.state.scheduling_policy import Selection
from fairlead.state.snapshot import Phase, Snapshot, Workload, is_workspace
from fairlead.state.split_probing import untried

if TYPE_CHECKING:
    from fairlead.policy.capacity import prewarming
    from fairlead.policy.kinds import workspace_idle
    from fairlead.policy.strategy import probing
else:
    prewarming = deferred("fairlead.policy.capacity.prewarming")
    workspace_idle = deferred("fairlead.policy.kinds.workspace_idle")
    probing = deferred("fairlead.policy.strategy.probing")


def next_decision_at(snapshot: Snapshot, now: float, timed: Iterable[Workload] | None = None) -> float:
    """Return the next time to decide even if nothing happens, in Unix seconds; infinity for none.

    Args:
        timed: The leaves whose decisions depend on time, if known.
    """
    return min((at for at in decision_times(snapshot, now, timed) if at > now), default=math.inf)


def depends_on_time(workload: Workload) -> bool:
    """Return whether time alone may change the decision on a leaf; if not, ``decision_times`` yields nothing for it."""
    spec, status = workload.spec, workload.status
    return (
        status.failures.retry_at is not None
        or status.phase in (Phase.STARTING, Phase.STOPPING)
        or (spec.max_duration_s is not None and status.started_at is not None)
        or (spec.stall_timeout_s is not None and status.phase is Phase.RUNNING)
        or status.queue.nodes_requested_at is not None
        or status.queue.request_again_at is not None
        or spec.most_nodes is not None
        or bool(status.failures.lost_pods)
        or spec.capacity.auto
        or bool(untried(spec, status.measured.probing))
        or is_workspace(workload)
    )


def decision_times(snapshot: Snapshot, now: float, timed: Iterable[Workload] | None = None) -> Iterator[float]:
    """Yield times at which a decision may change, including past ones and infinity.

    Such times are: a backoff ends; a run reaches its time or cost limit, fails to start in time, hangs or may grow; the
    wait for requested nodes ends; another run gets the first turn; a parent's kind returns one. Arguments as in
    ``next_decision_at``.
    """
    bound = {request.workload_uid: request.bound_at for request in snapshot.capacity_requests}
    for workload in snapshot.workloads if timed is None else timed:
        spec, status = workload.spec, workload.status
        if status.phase in (Phase.RESTARTING, Phase.PENDING) and status.failures.retry_at is not None:
            yield status.failures.retry_at
        yield from start_times(workload)
        yield from end_times(workload)
        yield from replacement_times(workload)
        if spec.max_duration_s is not None and status.started_at is not None and not status.phase.is_final:
            yield status.started_at + spec.max_duration_s
        if spec.stall_timeout_s is not None and status.phase in (Phase.STARTING, Phase.RUNNING):
            yield now + spec.stall_timeout_s
        if status.queue.nodes_requested_at is not None and is_asking(workload):
            since = max(status.queue.nodes_requested_at, bound.get(workload.uid) or 0.0)
            yield since + REPLY_PATIENCE_S
            yield since + PATIENCE_S
        if status.phase in (Phase.PENDING, Phase.RUNNING) and status.queue.request_again_at is not None:
            yield status.queue.request_again_at
        if status.phase is Phase.RUNNING and untried(spec, status.measured.probing):
            yield status.since + probing.MOST_S
        yield next_look(workload, now)
        if is_workspace(workload):
            yield from workspace_idle.look_times(workload, now)
        if spec.capacity.auto and not status.phase.is_final:
            yield spot_deadline.next_tick(workload, now)
    if snapshot.rules.selection is Selection.LEAST_WORK:
        yield from round_times(snapshot)
        yield from (at for run in snapshot.workloads if is_colocated(run) and (at := settles_at(run, now)) is not None)
    if snapshot.rules.selection is Selection.FINISH_TIME:
        yield from turn_times(snapshot, now)
    yield from limit_times(snapshot, now)
    if snapshot.pools:
        yield from prewarming.next_look(snapshot.pools, now)
    if snapshot.partitioned:
        yield from look_times(snapshot, now)
    families = families_of(snapshot) if snapshot.parents else {}
    for parent in snapshot.parents:
        kind = parent_of(parent.spec)
        at = None if kind is None or kind.next_at is None else kind.next_at(parent, families[parent.uid], now)
        if at is not None and not parent.status.phase.is_final:
            yield at
