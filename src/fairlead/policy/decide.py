"""Decides the next changes of every workload; shared by the live loop, ``plan`` and the simulator.

The kind of each workload compares its intent with its observed state; then the pending leaves are placed in order. The
result has at most one change per workload, each complete in itself.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.policy.disruption.node_reclaims import leaving
from fairlead.policy.kinds import checkpoint_health as checkpoints
from fairlead.policy.kinds.lost_pods import is_incomplete
from fairlead.policy.kinds.parents import judge_parents
from fairlead.policy.kinds.table import leaf_of
from fairlead.policy.pass_cache import PassCache, only_waits
from fairlead.policy.queue.scheduling import start
from fairlead.policy.scaling import elastic
from fairlead.policy.scaling.elastic import is_resizing
from fairlead.state.plan import Change, Plan
from fairlead.state.pool_demand import Standby
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Pod, PodPhase, Snapshot, Workload

if TYPE_CHECKING:
    from fairlead.state.partitions import PartitionStep

# Looking up a member on its enumeration would take longer than everything else in _is_quiet.
_RUN, _RUNNING, _POD_RUNNING = Intent.RUN, Phase.RUNNING, PodPhase.RUNNING


def decide(snapshot: Snapshot, now: float, cache: PassCache | None = None) -> Plan:
    """Return the changes to make now; an empty plan if every workload is as intended.

    Args:
        cache: State kept from earlier passes. It makes this pass faster and does not change its result.
    """
    if cache is not None and snapshot.spending is None and not snapshot.parents:
        cache.look(snapshot)
        return _decide_news(snapshot, cache, now)
    pods = _current_pods(snapshot)
    changes: list[Change] = []
    workloads = snapshot.workloads
    if snapshot.parents:
        changes += judge_parents(snapshot, now)
        # The changes asked of children have to take effect first.
        asked = {each.uid for change in changes for each in change.children}
        workloads = tuple(workload for workload in workloads if workload.uid not in asked)
    waiting: list[Workload] = []
    growable: list[Workload] = []
    incomplete: list[Workload] = []
    going = leaving(snapshot.nodes)
    # Where limits on cost exist, time alone may bring a run to its limit.
    costs = snapshot.spending is not None
    for workload in workloads:
        found = pods[workload.uid]
        if not found and not costs and only_waits(workload):
            waiting.append(workload)
            continue
        if not costs and _is_quiet(workload, found, now) and not (going and any(pod.node in going for pod in found)):
            continue
        _judge(workload, tuple(found), snapshot, now, changes, waiting, growable, incomplete)
    busy = frozenset(change.workload_uid for change in changes)
    changes += start(waiting, growable, incomplete, snapshot, pods, busy, now)
    return Plan(
        changes=tuple(changes), standby=_standby(snapshot, now), partitioning=_partitioning(snapshot, changes, now)
    )  # fmt: skip


def _decide_news(snapshot: Snapshot, cache: PassCache, now: float) -> Plan:
    """Decide as ``decide`` does, judging only the workloads of which something may have changed."""
    cache.due(now)
    pods = cache.pods
    changes: list[Change] = []
    waiting = list(cache.waiting.values())
    growable: list[Workload] = []
    incomplete: list[Workload] = []
    for workload in cache.ordered(cache.judged):
        _judge(workload, tuple(pods.get(workload.uid, ())), snapshot, now, changes, waiting, growable, incomplete)
    busy = frozenset(change.workload_uid for change in changes)
    changes += start(waiting, growable, incomplete, snapshot, pods, busy, now, cache)
    return Plan(
        changes=tuple(changes), standby=_standby(snapshot, now), partitioning=_partitioning(snapshot, changes, now)
    )  # fmt: skip


def _standby(snapshot: Snapshot, now: float) -> tuple[Standby, ...] | None:
    """Return the standby nodes that pools should have; None if they stay as they are."""
    if not snapshot.pools and not snapshot.standby:
        return None
    # Imported here and not above: few clusters have such pools.
    from fairlead.policy.capacity.prewarming import standby

    return standby(snapshot, now)


def _partitioning(snapshot: Snapshot, changes: Sequence[Change], now: float) -> "tuple[PartitionStep, ...]":
    """Return the steps for nodes whose GPUs are repartitioned."""
    if not snapshot.partitioned:
        return ()
    # Imported here and not above: few clusters have such nodes.
    from fairlead.policy.gpu.partitioning import partition_steps

    return partition_steps(snapshot, changes, now)


def _judge(
    workload: Workload,
    own: tuple[Pod, ...],
    snapshot: Snapshot,
    now: float,
    changes: list[Change],
    waiting: list[Workload],
    growable: list[Workload],
    incomplete: list[Workload],
) -> None:
    """Add a change of the run to ``changes``, or the run to one of the other lists, or do neither."""
    change = leaf_of(workload.spec).judge(workload, own, snapshot, now)
    if change is not None:
        changes.append(change)
    elif is_incomplete(workload):
        incomplete.append(workload)
    elif workload.spec.most_nodes is not None and elastic.may_grow(workload, now):
        growable.append(workload)
    elif _wants_to_start(workload, now) and all(pod.phase.is_final for pod in own):
        waiting.append(workload)


def _current_pods(snapshot: Snapshot) -> dict[str, list[Pod]]:
    """Return the pods of each workload, of all attempts, ordered by attempt and index."""
    grouped: dict[str, list[Pod]] = defaultdict(list)
    for pod in snapshot.pods:
        grouped[pod.workload_uid].append(pod)
    for found in grouped.values():
        if len(found) > 1:
            found.sort(key=lambda pod: (pod.attempt, pod.index))
    return grouped


def _is_quiet(workload: Workload, pods: list[Pod], now: float) -> bool:
    """Return whether the run is as intended and time alone changes nothing; most runs need no judgement."""
    spec, status = workload.spec, workload.status
    if (
        status.phase is not _RUNNING
        or workload.intent is not _RUN
        or spec.max_duration_s is not None
        or spec.stall_timeout_s is not None
        or status.nodes is not None
        or status.warning is not None
        or workload.idle is not None
        or (status.lost and status.reason.code is not Code.RANKS_STARTED)
        or len(pods) != spec.nodes
    ):
        return False
    for pod in pods:  # a generator takes twice as long, and this runs for thousands of pods
        if pod.phase is not _POD_RUNNING or pod.exits or pod.attempt != status.attempt:
            return False
    return checkpoints.warning(workload, now) is None


def _wants_to_start(workload: Workload, now: float) -> bool:
    """Return whether phase and time allow a start; runs that are to be stopped never get here."""
    status = workload.status
    if workload.spec.engine is not None:
        return False  # its judge hands it to the engine
    if status.phase in (Phase.RESTARTING, Phase.PENDING):
        return status.retry_at is None or now >= status.retry_at
    return is_resizing(status)
