"""Decides the next changes of every workload; shared by the live loop, ``plan`` and the simulator.

The kind of each workload compares its intent with its observed state; then the pending leaves are placed in order. The
result has at most one change per workload, each complete in itself.

A workload at which Fairlead itself fails waits alone: the plan tells the failure on it, and has the changes of all
others.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fairlead.frozen import replace
from fairlead.policy.capacity.prewarming import standby
from fairlead.policy.disruption.node_reclaims import leaving
from fairlead.policy.disruption.partitioning import partition_steps
from fairlead.policy.health.node_withdrawal import withdrawals
from fairlead.policy.kinds import checkpoint_health as checkpoints
from fairlead.policy.kinds.internal_failures import InternalFailures, without_failing
from fairlead.policy.kinds.lost_pods import is_incomplete
from fairlead.policy.kinds.parents import judge_parents
from fairlead.policy.kinds.silent_nodes import silent
from fairlead.policy.kinds.table import leaf_of
from fairlead.policy.pass_cache import PassCache, only_waits
from fairlead.policy.queue.budgets import stopping_teams
from fairlead.policy.queue.scheduling import Contention, start
from fairlead.policy.scaling import elastic
from fairlead.policy.scaling.elastic import is_resizing
from fairlead.specs.workload import Kind
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
    failures = InternalFailures(snapshot.unreadable, snapshot.deferred)
    withdrawn = withdrawals(snapshot, now)
    if withdrawn:
        return Plan(withdrawn=withdrawn)  # before anything is placed there
    changes: list[Change] = []
    if snapshot.parents:
        try:
            changes += judge_parents(snapshot, now, failures)
        except Exception as error:  # noqa: BLE001
            failures.note("", error)  # in what concerns several parents
    # The changes that parents make to children have to take effect first.
    child_uids = frozenset(child.uid for change in changes for child in change.children)
    if cache is not None:
        try:
            return _decide_news(snapshot, cache, changes, child_uids, failures, now)
        except Exception as error:  # noqa: BLE001
            # Without what is kept from earlier passes each run is looked at by itself.
            cache.forget()
            failures.note("", error)
    pods = _current_pods(snapshot)
    workloads = tuple(workload for workload in snapshot.workloads if workload.uid not in child_uids)
    waiting: list[Workload] = []
    growable: list[Workload] = []
    incomplete: list[Workload] = []
    going = leaving(snapshot.nodes) | silent(snapshot.nodes)
    stopping = stopping_teams(snapshot)
    for workload in workloads:
        if workload.uid in failures:
            continue
        try:
            own = pods[workload.uid]
            if not own and only_waits(workload):
                waiting.append(workload)
                continue
            is_going = going and any(pod.node in going for pod in own)
            if workload.spec.team not in stopping and not is_going and _is_quiet(workload, own, now):
                continue
            _judge(workload, tuple(own), snapshot, now, changes, waiting, growable, incomplete)
        except Exception as error:  # noqa: BLE001
            failures.note(workload.uid, error)
    busy = frozenset(change.workload_uid for change in changes)
    contention = Contention()
    changes += _start(waiting, growable, incomplete, snapshot, pods, busy, now, failures, contention)
    return _plan(snapshot, changes, workloads, failures, contention, now)


def _decide_news(
    snapshot: Snapshot,
    cache: PassCache,
    of_parents: Sequence[Change],
    child_uids: frozenset[str],
    failures: InternalFailures,
    now: float,
) -> Plan:
    """Decide as ``decide`` does, judging only the leaves of which something may have changed.

    Args:
        of_parents: The changes of parents.
        child_uids: Uids of the children that these change, which are left alone.
    """
    cache.look(snapshot, failures.uids | child_uids)
    cache.due(now)
    pods = cache.pods
    changes = list(of_parents)
    waiting = list(cache.waiting.values())
    growable: list[Workload] = []
    incomplete: list[Workload] = []
    stopping = stopping_teams(snapshot)
    judged = cache.ordered({**cache.judged, **cache.with_pods(stopping)} if stopping else cache.judged)
    for workload in judged:
        try:
            _judge(workload, tuple(pods.get(workload.uid, ())), snapshot, now, changes, waiting, growable, incomplete)
        except Exception as error:  # noqa: BLE001
            failures.note(workload.uid, error)
    busy = frozenset(change.workload_uid for change in changes)
    contention = Contention()
    changes += _start(waiting, growable, incomplete, snapshot, pods, busy, now, failures, contention, cache)
    warned = [run for run in cache.ordered(cache.warned) if run.uid not in child_uids]
    plan = _plan(snapshot, changes, warned, failures, contention, now)
    is_last = not (growable or incomplete) and len(waiting) == len(cache.waiting) and cache.is_last(plan, snapshot, now)
    return replace(plan, is_last=True) if is_last else plan


def _start(
    waiting: list[Workload],
    growable: list[Workload],
    incomplete: list[Workload],
    snapshot: Snapshot,
    pods: Mapping[str, Sequence[Pod]],
    busy: frozenset[str],
    now: float,
    failures: InternalFailures,
    contention: Contention,
    cache: PassCache | None = None,
) -> list[Change]:
    """Return the changes of ``start``, without the runs with which it fails."""
    try:
        return start(waiting, growable, incomplete, snapshot, pods, busy, now, cache, contention)
    except Exception as error:  # noqa: BLE001
        first = error
    if cache is not None:
        cache.forget()  # it was in the middle of its work
    lists = (waiting, growable, incomplete)

    def attempt(some: Sequence[tuple[int, Workload]]) -> list[Change]:
        chosen = [[workload for place, workload in some if place == number] for number in range(len(lists))]
        return start(chosen[0], chosen[1], chosen[2], snapshot, pods, busy, now)

    return without_failing(
        [(place, workload) for place, some in enumerate(lists) for workload in some], attempt, first, failures
    )


def _plan(
    snapshot: Snapshot,
    changes: list[Change],
    considered: Iterable[Workload],
    failures: InternalFailures,
    contention: Contention,
    now: float,
) -> Plan:
    """Return the plan of a pass with what concerns the cluster as a whole, and with its failures."""
    standby: tuple[Standby, ...] | None = None
    partitioning: tuple[PartitionStep, ...] = ()
    try:
        standby = _standby(snapshot, now)
        partitioning = _partitioning(snapshot, changes, now)
    except Exception as error:  # noqa: BLE001
        failures.note("", error)
    busy = frozenset(change.workload_uid for change in changes)
    changes += failures.changes(snapshot, (*considered, *snapshot.parents), busy, now)
    return Plan(
        changes=tuple(changes),
        standby=standby,
        partitioning=partitioning,
        held=tuple(contention.held),
        contending=frozenset(contention.teams),
        failures=failures.all(),
    )


def _standby(snapshot: Snapshot, now: float) -> tuple[Standby, ...] | None:
    """Return the standby nodes that pools should have; None if they stay as they are."""
    if not snapshot.pools and not snapshot.standby:
        return None
    return standby(snapshot, now)


def _partitioning(snapshot: Snapshot, changes: Sequence[Change], now: float) -> "tuple[PartitionStep, ...]":
    """Return the steps for nodes whose GPUs are repartitioned."""
    if not snapshot.partitioned:
        return ()
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
    for group in grouped.values():
        if len(group) > 1:
            group.sort(key=lambda pod: (pod.attempt, pod.index))
    return grouped


def _is_quiet(workload: Workload, pods: list[Pod], now: float) -> bool:
    """Return whether the run is as intended and time alone changes nothing; most runs need no judgement."""
    spec, status = workload.spec, workload.status
    if (
        status.phase is not _RUNNING
        or workload.intent is not _RUN
        or spec.kind == Kind.WORKSPACE
        or spec.max_duration_s is not None
        or spec.max_cost is not None
        or spec.stall_timeout_s is not None
        or status.size.nodes is not None
        or status.warning.reason is not None
        or workload.idle is not None
        or (workload.progress is not None and workload.progress.slow_rank is not None)
        or (status.failures.lost_pods and status.reason.code is not Code.RANKS_STARTED)
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
    if workload.preparation is not None:
        return False
    if status.phase in (Phase.RESTARTING, Phase.PENDING):
        return status.failures.retry_at is None or now >= status.failures.retry_at
    return is_resizing(status)
