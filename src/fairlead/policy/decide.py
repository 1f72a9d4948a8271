"""The one decision that the live loop, ``plan`` and the simulator share: what to do next for every workload.

Each workload is judged by its kind, which compares what is wanted with what is true; then the leaves that wait are
placed in order. At most one change for each workload comes out, complete in itself.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.policy.disruption.node_reclaims import leaving
from fairlead.policy.kinds import checkpoint_health as checkpoints
from fairlead.policy.kinds.parents import judge_parents
from fairlead.policy.kinds.table import leaf_of
from fairlead.policy.pass_cache import PassCache, only_waits
from fairlead.policy.queue.scheduling import start
from fairlead.policy.scaling import elastic
from fairlead.policy.scaling.elastic import is_resizing
from fairlead.state.plan import Change, Plan
from fairlead.state.pool_demand import Standby
from fairlead.state.snapshot import Intent, Phase, Pod, PodPhase, Snapshot, Workload

if TYPE_CHECKING:
    from fairlead.state.partitions import PartitionStep

# Looking a member up on its enumeration takes longer than all else in _is_quiet.
_RUN, _RUNNING, _POD_RUNNING = Intent.RUN, Phase.RUNNING, PodPhase.RUNNING


def decide(snapshot: Snapshot, now: float, cache: PassCache | None = None) -> Plan:
    """The changes to make now; an empty plan when all is as it should be.

    Args:
        cache: What was kept of passes before, which makes this one faster and changes nothing of it.
    """
    if cache is not None and snapshot.spending is None and not snapshot.parents:
        cache.look(snapshot)
        return _decide_news(snapshot, cache, now)
    pods = _current_pods(snapshot)
    changes: list[Change] = []
    workloads = snapshot.workloads
    if snapshot.parents:
        changes += judge_parents(snapshot, now)
        # What is asked of a child now has to be heard first.
        asked = {each.uid for change in changes for each in change.children}
        workloads = tuple(workload for workload in workloads if workload.uid not in asked)
    waiting: list[Workload] = []
    growable: list[Workload] = []
    going = leaving(snapshot.nodes)
    # Where somebody has a limit, time alone may bring a run to it.
    costs = snapshot.spending is not None
    for workload in workloads:
        found = pods[workload.uid]
        if not found and not costs and only_waits(workload):
            waiting.append(workload)
            continue
        if not costs and _is_quiet(workload, found, now) and not (going and any(pod.node in going for pod in found)):
            continue
        _judge(workload, tuple(found), snapshot, now, changes, waiting, growable)
    busy = frozenset(change.workload_uid for change in changes)
    changes += start(waiting, growable, snapshot, pods, busy, now)
    return Plan(
        changes=tuple(changes), standby=_standby(snapshot, now), partitioning=_partitioning(snapshot, changes, now)
    )  # fmt: skip


def _decide_news(snapshot: Snapshot, cache: PassCache, now: float) -> Plan:
    """As ``decide``, looking only at those of which something may have changed."""
    cache.due(now)
    pods = cache.pods
    changes: list[Change] = []
    waiting = list(cache.waiting.values())
    growable: list[Workload] = []
    for workload in cache.ordered(cache.judged):
        _judge(workload, tuple(pods.get(workload.uid, ())), snapshot, now, changes, waiting, growable)
    busy = frozenset(change.workload_uid for change in changes)
    changes += start(waiting, growable, snapshot, pods, busy, now, cache)
    return Plan(
        changes=tuple(changes), standby=_standby(snapshot, now), partitioning=_partitioning(snapshot, changes, now)
    )  # fmt: skip


def _standby(snapshot: Snapshot, now: float) -> tuple[Standby, ...] | None:
    """Return the nodes that pools are to have ahead of time; None where that stays as it is."""
    if not snapshot.pools and not snapshot.standby:
        return None
    # Here and not above: few clusters have such pools.
    from fairlead.policy.capacity.prewarming import standby

    return standby(snapshot, now)


def _partitioning(snapshot: Snapshot, changes: Sequence[Change], now: float) -> "tuple[PartitionStep, ...]":
    """Return the steps of nodes whose GPUs are partitioned anew."""
    if not snapshot.partitioned:
        return ()
    # Here and not above: few clusters have such nodes.
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
) -> None:
    """Add a run to those that change, that may grow or that want to start, or to none."""
    change = leaf_of(workload.spec).judge(workload, own, snapshot, now)
    if change is not None:
        changes.append(change)
    elif workload.spec.most_nodes is not None and elastic.may_grow(workload, now):
        growable.append(workload)
    elif _wants_to_start(workload, now) and all(pod.phase.is_final for pod in own):
        waiting.append(workload)


def _current_pods(snapshot: Snapshot) -> dict[str, list[Pod]]:
    """Pods of each workload, of any attempt, in order."""
    grouped: dict[str, list[Pod]] = defaultdict(list)
    for pod in snapshot.pods:
        grouped[pod.workload_uid].append(pod)
    for found in grouped.values():
        if len(found) > 1:
            found.sort(key=lambda pod: (pod.attempt, pod.index))
    return grouped


def _is_quiet(workload: Workload, pods: list[Pod], now: float) -> bool:
    """Return whether it runs on as wanted and time alone changes nothing: most runs, which need no judgement."""
    spec, status = workload.spec, workload.status
    if (
        status.phase is not _RUNNING
        or workload.intent is not _RUN
        or spec.max_duration_s is not None
        or spec.stall_timeout_s is not None
        or status.nodes is not None
        or status.warning is not None
        or workload.idle is not None
        or len(pods) != spec.nodes
    ):
        return False
    for pod in pods:  # a generator takes twice as long, and this is for thousands
        if pod.phase is not _POD_RUNNING or pod.exits or pod.attempt != status.attempt:
            return False
    return checkpoints.warning(workload, now) is None


def _wants_to_start(workload: Workload, now: float) -> bool:
    """Return whether it may start as far as its phase and the time go; one that is wanted stopped never comes here."""
    status = workload.status
    if workload.spec.engine is not None:
        return False  # its judge hands it over
    if status.phase in (Phase.RESTARTING, Phase.PENDING):
        return status.retry_at is None or now >= status.retry_at
    return is_resizing(status)
