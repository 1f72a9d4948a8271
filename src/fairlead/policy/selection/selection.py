"""Selects the runs that should hold GPUs from now on, among running and pending ones, if any may be stopped.

The selection is advice to the pass of the queue (``fairlead.policy.queue.scheduling``), which places and stops:
selected runs are considered first, the widest first, and others yield to them where room is short. Other pending runs
take what is left, so nothing that fits is kept idle. So a selection that cannot be placed affects only the selected
runs.

Excluded from the selection are runs without GPUs, scavengers, runs within a team's guarantee, and runs that must not be
stopped: those that are starting or leaving, or that never saved a checkpoint and were stopped once. What they hold is
not available; what scavengers and leaving runs hold is.

Waiting and ``priority`` count as in the shortest-first order (``fairlead.policy.queue.queue_score``): they are
subtracted from the remaining work, so no run starves. A team's ``weight`` multiplies the worth of its runs. The time
that a run would lose when stopped is subtracted as well, so two runs with close scores do not replace each other.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

from fairlead.frozen import dataclass
from fairlead.policy.disruption.defragmentation import can_resume
from fairlead.policy.disruption.preemption import restart_s
from fairlead.policy.placement.node_eligibility import doors_of
from fairlead.policy.placement.placement import shape_of
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.queue.ageing import AGEING_S, raised
from fairlead.policy.queue.dominant_shares import asked, capacity
from fairlead.policy.queue.priority_classes import Priorities
from fairlead.policy.queue.queue_score import PATIENCE, Standing
from fairlead.policy.queue.quotas import Ledger, is_scavenger
from fairlead.policy.selection.finish_time import JobShare, pressed_at, rank
from fairlead.policy.selection.gpu_room import Cells, Homes, homes_of
from fairlead.policy.selection.jobs import Job
from fairlead.policy.selection.knapsack import choose
from fairlead.policy.selection.slowdowns import NOTHING_KNOWN, Slowdowns, pace_kind
from fairlead.policy.selection.worth import LEAST_REMAINING_S, worth
from fairlead.specs.gang import GangSpec
from fairlead.specs.team import Quota
from fairlead.state.run_times import ran_until
from fairlead.state.scheduling_policy import Selection
from fairlead.state.snapshot import Intent, Phase, Pod, Snapshot, Workload

# The knapsack is quadratic in the number of GPUs; with more of them a greedy walk down the order loses little.
MOST_GPUS = 256
# The interval for re-evaluating an order that changes over time.
ROUND_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A run that takes part in the selection.

    Attributes:
        job: Its remaining time is the remaining work less credits for priority, waiting and a restart.
        gpu_milli: Its total request, or holding, in thousandths of devices.
    """

    workload: Workload
    job: Job
    shape: Shape
    gpu_milli: int
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The selection.

    Attributes:
        chosen: Uids of runs that should hold GPUs.
        order: Uids of pending runs, in the order in which they are considered.
        giving_way: Uids of runs that hold GPUs and were not selected, in the order in which they are stopped.
    """

    chosen: frozenset[str]
    order: tuple[str, ...]
    giving_way: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """All runs that take part in the selection.

    Attributes:
        held: Runs that hold GPUs.
        leaving: Runs that are making room for others, treated as pending already.
        wanting: Pending runs.
        everybody: All of them, as far as their teams' quotas allow.
        immovable_pods: Pods of all runs whose holdings are not available.
    """

    held: tuple[Candidate, ...]
    leaving: tuple[Candidate, ...]
    wanting: tuple[Candidate, ...]
    everybody: tuple[Candidate, ...]
    immovable_pods: tuple[Pod, ...]


def candidates_of(
    snapshot: Snapshot,
    waiting: Sequence[Workload],
    holders: Sequence[Workload],
    pods: Mapping[str, Sequence[Pod]],
    standing: Standing,
    ledger: Ledger,
    fixed: Set[str],
    slowdowns: Slowdowns = NOTHING_KNOWN,
) -> Candidates:
    """Return the runs that take part in the selection.

    Args:
        waiting: Pending runs that are owed nothing.
        ledger: The current holdings.
        fixed: Uids of holders that are not to be stopped, and of runs that are owed room.
        slowdowns: The known costs of sharing; runs with unknown cost do not share.
    """
    whole, now = standing.whole, standing.now
    doors, homes = doors_of(tuple(snapshot.nodes)), homes_of(tuple(snapshot.nodes))
    weights = {team.name: team.weight for team in snapshot.teams}
    priorities = Priorities.of(snapshot)

    def candidate(workload: Workload, holds: bool) -> Candidate:
        gang = workload.gang if holds else workload.spec
        milli = asked(gang, whole).gpu_milli
        num_gpus, left_s, shape = _num_gpus(milli), _left_s(workload, standing, milli), shape_of(gang, doors)
        back_s = restart_s(workload, _live(pods[workload.uid]), now) if holds else 0.0
        credit_s = _credit_s(workload, priorities.counted(gang), now) * whole.gpu_milli / WHOLE_GPU / num_gpus
        job = Job(
            uid=workload.uid,
            num_gpus=num_gpus,
            remaining_s=max(LEAST_REMAINING_S, left_s - credit_s - back_s),
            weight=weights.get(gang.team, 1),
            sharable=homes.sharable(gang, shape, pace_kind(gang)) if may_share(gang, slowdowns) else None,
        )
        return Candidate(workload=workload, job=job, shape=shape, gpu_milli=milli, holds=holds)

    held = tuple(candidate(run, True) for run in holders if run.uid not in fixed and _may_stop(run, pods[run.uid]))
    wanting = tuple(candidate(run, False) for run in waiting if wants_gpus(run))
    # A run leaving for others is selected or not as if it were pending already; otherwise the selection would change
    # meanwhile.
    leaving = tuple(candidate(run, False) for run in holders if run.uid not in fixed and _makes_room(run))
    ours = {run.workload.uid for run in held}
    gone = {run.uid for run in holders if is_scavenger(run.spec) or run.status.phase is Phase.STOPPING}
    return Candidates(
        held=held,
        leaving=leaving,
        wanting=wanting,
        everybody=(*held, *leaving, *_within_quota(wanting, ledger)),
        immovable_pods=tuple(
            pod for pod in snapshot.pods if not pod.phase.is_final and pod.workload_uid not in ours | gone
        ),
    )


def select(
    snapshot: Snapshot, candidates: Candidates, pods: Mapping[str, Sequence[Pod]], standing: Standing
) -> Selected:
    """Return the selection by the snapshot's rules."""
    whole, now = standing.whole, standing.now
    homes, priorities = homes_of(tuple(snapshot.nodes)), Priorities.of(snapshot)

    def claim(candidate: Candidate) -> JobShare:
        live = _live(pods[candidate.workload.uid]) if candidate.holds else []
        return _claim_of(candidate.workload, standing, candidate.job.weight, live, priorities)

    held = held_of(candidates, homes)
    if snapshot.rules.selection is Selection.FINISH_TIME:
        competing = [run for run in snapshot.workloads if _competes(run)]
        contention = _contention(competing, snapshot, whole.gpu_milli)
        drain_s = sum(standing.work_s(run) for run in competing)
        ordered, chosen = _fairly(candidates.everybody, claim, homes, held, contention, drain_s, now)
    else:
        ordered, chosen = _worthiest(candidates.everybody, homes, held)
    place = {candidate.workload.uid: number for number, candidate in enumerate(ordered)}
    first = sorted(
        (candidate for candidate in candidates.wanting if candidate.workload.uid in chosen),
        key=lambda candidate: (-candidate.gpu_milli, place[candidate.workload.uid]),
    )
    startable = {candidate.workload.uid for candidate in candidates.wanting}
    rest = [candidate for candidate in ordered if candidate.workload.uid in startable - chosen]
    return Selected(
        chosen=frozenset(chosen),
        order=tuple(candidate.workload.uid for candidate in (*first, *rest)),
        giving_way=tuple(
            candidate.workload.uid
            for candidate in reversed(ordered)
            if candidate.holds and candidate.workload.uid not in chosen
        ),
    )


def may_share(gang: GangSpec, slowdowns: Slowdowns) -> bool:
    """Return whether a run may share its GPUs: it allows it and the cost is known."""
    return gang.resources.colocate and slowdowns.knows(pace_kind(gang))


def held_of(candidates: Candidates, homes: Homes) -> list[tuple[str, int]]:
    """Return nodes and thousandths of devices that are not available."""
    return homes.held(pod for pod in candidates.immovable_pods if pod.grant.gpu_uuids)


def wants_gpus(workload: Workload) -> bool:
    """Return whether a run takes part in the selection for GPUs."""
    return workload.spec.resources.gpu is not None and not is_scavenger(workload.spec)


def densest_first(everybody: Iterable[Candidate]) -> list[Candidate]:
    """Return all candidates by worth per GPU."""
    return sorted(everybody, key=_densest)


def num_gpus_of_one_cell(everybody: Sequence[Candidate], homes: Homes, held: Iterable[tuple[str, int]]) -> int | None:
    """Return the number of available GPUs if all runs may go everywhere; None if they may not.

    Also None if there are too many for a knapsack, or parts of GPUs are requested.
    """
    sets, cells = _cells(everybody, homes, held)
    num_gpus = sum(cells.free_milli.values()) // WHOLE_GPU
    fits = len(sets) == 1 and num_gpus <= MOST_GPUS and not any(candidate.shape.is_share for candidate in everybody)
    return num_gpus if fits else None


def _makes_room(workload: Workload) -> bool:
    status = workload.status
    return _competes(workload) and status.phase is Phase.STOPPING and status.after_stop.phase is Phase.PENDING


def turn_times(snapshot: Snapshot, now: float) -> Iterator[float]:
    """Yield when time alone may change the first turn by finish times: when a pending run becomes pressed.

    While a pressed run waits, the order of pressed runs is re-evaluated every ``ROUND_S``.
    """
    waiting = [run for run in snapshot.workloads if run.status.phase is Phase.PENDING and run.intent is Intent.RUN]
    if not waiting:
        return
    whole = capacity(snapshot.nodes)
    standing = Standing.of(snapshot, whole, snapshot.rules.order, now)
    contention = _contention((run for run in snapshot.workloads if _competes(run)), snapshot, whole.gpu_milli)
    priorities = Priorities.of(snapshot)
    for workload in filter(_competes, waiting):
        at = pressed_at(_claim_of(workload, standing, _weight(workload, snapshot), (), priorities), contention)
        yield at if at > now else (now // ROUND_S + 1) * ROUND_S


def _may_stop(workload: Workload, pods: Iterable[Pod]) -> bool:
    status = workload.status
    return (
        workload.intent is Intent.RUN
        and status.phase in (Phase.STARTING, Phase.RUNNING)
        and workload.spec.resources.gpu is not None
        and not is_scavenger(workload.spec)
        and (status.attempt == 0 or can_resume(workload))
        and all(pod.terminating_since is None for pod in pods if not pod.phase.is_final)
    )


def _claim_of(
    workload: Workload, standing: Standing, weight: int, live: Sequence[Pod], priorities: Priorities
) -> JobShare:
    """Return its remaining work, and the time it would lose when stopped now, by its live pods.

    An elastic gang counts at its smallest size whether it holds more or waits: otherwise two of them would alternate,
    each nearer its end while it holds more.
    """
    milli = asked(workload.spec, standing.whole).gpu_milli
    left_s = _left_s(workload, standing, milli)
    return JobShare(
        job=Job(uid=workload.uid, num_gpus=_num_gpus(milli), remaining_s=left_s, weight=weight),
        submitted_s=workload.created_at - AGEING_S * priorities.counted(workload.spec),
        total_s=ran_until(workload.status, standing.now) + left_s,
        back_s=restart_s(workload, live, standing.now) if live else 0.0,
    )


def _num_gpus(milli: int) -> int:
    return max(1, round(milli / WHOLE_GPU))


def _left_s(workload: Workload, standing: Standing, milli: int) -> float:
    """Return its remaining seconds on the devices that it requests."""
    return max(LEAST_REMAINING_S, standing.work_s(workload) * (standing.whole.gpu_milli / milli if milli else 1.0))


def _competes(workload: Workload) -> bool:
    """Return whether it has or requests GPUs in its own right."""
    return (
        workload.spec.resources.gpu is not None
        and not is_scavenger(workload.spec)
        and workload.intent is Intent.RUN
        and not workload.status.phase.is_final
    )


def _weight(workload: Workload, snapshot: Snapshot) -> int:
    return next((team.weight for team in snapshot.teams if team.name == workload.spec.team), 1)


def _contention(everybody: Iterable[Workload], snapshot: Snapshot, gpu_milli: int) -> float:
    """Return how many runs share one GPU, weighted by team."""
    return sum(_weight(run, snapshot) for run in everybody) * WHOLE_GPU / max(WHOLE_GPU, gpu_milli)


def _credit_s(workload: Workload, priority: int, now: float) -> float:
    """Return the credit for priority and waiting, in seconds of the whole cluster.

    Waiting counts in whole points, as a start keeps it: if a start lost the fraction, a started run would fall behind
    others that have waited as long, and on a large cluster be stopped for them at once.
    """
    return AGEING_S * (priority + raised(workload, now)) / PATIENCE


def _live(pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if not pod.phase.is_final]


def _within_quota(wanting: Iterable[Candidate], ledger: Ledger) -> list[Candidate]:
    """Return the runs that may start within their teams' quotas, the most valuable of each team first."""
    if not any(team.quota != Quota() for team in ledger.teams.values()):
        return list(wanting)
    ledger, within = ledger.copy(), list[Candidate]()
    for candidate in sorted(wanting, key=_densest):
        if ledger.exceeds(candidate.workload.spec) is None:
            ledger.add(candidate.workload.spec)
            within.append(candidate)
    return within


def _worthiest(
    everybody: Sequence[Candidate], homes: Homes, held: Sequence[tuple[str, int]]
) -> tuple[list[Candidate], set[str]]:
    """Return all by worth per GPU, and the uids of the selected ones."""
    ordered = sorted(everybody, key=_densest)
    num_gpus = num_gpus_of_one_cell(ordered, homes, held)
    if num_gpus is not None:
        groups = choose([candidate.job for candidate in ordered], num_gpus)
        return ordered, {job.uid for group in groups for job in group.jobs}
    sets, cells = _cells(ordered, homes, held)
    return ordered, _walk(ordered, homes, sets, cells)


def _fairly(
    everybody: Sequence[Candidate],
    claim: Callable[[Candidate], JobShare],
    homes: Homes,
    held: Iterable[tuple[str, int]],
    contention: float,
    drain_s: float,
    now: float,
) -> tuple[list[Candidate], set[str]]:
    """Return all in the order of fair finish times, and the uids of the selected ones."""
    ordered = sorted(
        everybody,
        key=lambda candidate: (
            rank(claim(candidate), now, contention, drain_s),
            not candidate.holds,
            candidate.job.uid,
        ),
    )
    sets, cells = _cells(ordered, homes, held)
    return ordered, _walk(ordered, homes, sets, cells)


def _cells(
    everybody: Iterable[Candidate], homes: Homes, held: Iterable[tuple[str, int]]
) -> tuple[list[frozenset[str]], Cells]:
    sets = list(dict.fromkeys(homes.of(candidate.shape) for candidate in everybody))
    return sets, Cells.of(homes, sets, held)


def _walk(ordered: Iterable[Candidate], homes: Homes, sets: Sequence[frozenset[str]], cells: Cells) -> set[str]:
    """Return the uids of runs that find room in this order, skipping those that do not."""
    numbers = {names: number for number, names in enumerate(sets)}
    return {
        candidate.job.uid
        for candidate in ordered
        if cells.take(numbers[homes.of(candidate.shape)], candidate.gpu_milli)
    }


def _densest(candidate: Candidate) -> tuple[float, bool, str]:
    job = candidate.job
    return -worth(job) / job.num_gpus, not candidate.holds, job.uid
