"""Chooses which runs should hold the GPUs from now on, of those that do and those that wait, whoever may be stopped.

The choice is advice to the pass of the queue (``fairlead.policy.queue.scheduling``), which places and stops: those that
are chosen are looked at first, the widest first, and whoever is not gives way to them where room is short. Whoever else
waits takes what is left, so nothing that fits is kept idle. So a choice that cannot be placed costs nobody but the
chosen.

Not up for choice are runs without GPUs, scavengers, what lies within a team's guarantee, and whoever must not be
stopped: it starts or leaves just now, or has never saved a checkpoint and was stopped once. What they hold is not to be
had; what scavengers hold, and those that leave, is.

Waiting and ``priority`` count as in the order of shortest first (``fairlead.policy.queue.queue_score``): they are taken
off what is left to do, so nobody starves. A team's ``weight`` multiplies what its runs are worth. What stopping a run
would throw it back counts as not left of it, so two whose turns are close do not replace each other.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

from fairlead.frozen import dataclass
from fairlead.policy.disruption.defragmentation import can_resume
from fairlead.policy.disruption.preemption import restart_s
from fairlead.policy.kinds.lifecycle import ran_until
from fairlead.policy.placement.node_eligibility import doors_of
from fairlead.policy.placement.placement import shape_of
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.queue.ageing import AGEING_S, raised
from fairlead.policy.queue.dominant_shares import asked, capacity
from fairlead.policy.queue.queue_score import PATIENCE, Standing
from fairlead.policy.queue.quotas import Ledger, is_scavenger
from fairlead.policy.selection.finish_time import Claim, pressed_at, rank
from fairlead.policy.selection.gpu_room import Cells, Homes, homes_of
from fairlead.policy.selection.jobs import Job
from fairlead.policy.selection.knapsack import choose
from fairlead.policy.selection.slowdowns import NOTHING_KNOWN, Slowdowns, pace_kind
from fairlead.policy.selection.worth import LEAST_REMAINING_S, worth
from fairlead.specs.gang import GangSpec
from fairlead.specs.team import Quota
from fairlead.state.scheduling_policy import Selection
from fairlead.state.snapshot import Intent, Phase, Pod, Snapshot, Workload

# The knapsack takes the square of the number of GPUs; with more of them a walk down the order loses little.
MOST_GPUS = 256
# Between looks at an order that changes while time passes.
ROUND_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A run that is up for choice.

    Attributes:
        job: With what is left of it, less what priority, waiting and a restart are worth, as its remaining time.
        gpu_milli: What it asks for, or holds, in all: thousandths of devices.
    """

    workload: Workload
    job: Job
    shape: Shape
    gpu_milli: int
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The choice.

    Attributes:
        chosen: Uids of those that should hold GPUs.
        order: Uids of those that wait, in the order in which they are looked at.
        giving_way: Uids of those that hold GPUs and were not chosen, those first that are the first to be stopped.
    """

    chosen: frozenset[str]
    order: tuple[str, ...]
    giving_way: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """All that are up for choice.

    Attributes:
        held: Those that hold GPUs.
        leaving: Those that make room for others just now, as if they waited already.
        wanting: Those that wait.
        everybody: All of them, as far as their teams' quotas go.
        kept: Pods of all that hold what is not to be had.
    """

    held: tuple[Candidate, ...]
    leaving: tuple[Candidate, ...]
    wanting: tuple[Candidate, ...]
    everybody: tuple[Candidate, ...]
    kept: tuple[Pod, ...]


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
    """Return who is up for choice.

    Args:
        waiting: Those that wait and are owed nothing.
        ledger: What is held now.
        fixed: Uids of those that hold something and are not to be stopped, and those that are owed room.
        slowdowns: The costs of sharing, as far as they are known; whose cost is not does not share.
    """
    whole, now = standing.whole, standing.now
    doors, homes = doors_of(tuple(snapshot.nodes)), homes_of(tuple(snapshot.nodes))
    weights = {team.name: team.weight for team in snapshot.teams}

    def candidate(workload: Workload, holds: bool) -> Candidate:
        gang = workload.gang if holds else workload.spec
        milli = asked(gang, whole).gpu_milli
        num_gpus, left_s, shape = _num_gpus(milli), _left_s(workload, standing, milli), shape_of(gang, doors)
        back_s = restart_s(workload, _live(pods[workload.uid]), now) if holds else 0.0
        credit_s = _credit_s(workload, now) * whole.gpu_milli / WHOLE_GPU / num_gpus
        job = Job(
            uid=workload.uid,
            num_gpus=num_gpus,
            remaining_s=max(LEAST_REMAINING_S, left_s - credit_s - back_s),
            weight=weights.get(gang.team, 1),
            sharable=homes.sharable(gang, shape, pace_kind(gang)) if may_share(gang, slowdowns) else None,
        )
        return Candidate(workload=workload, job=job, shape=shape, gpu_milli=milli, holds=holds)

    held = tuple(candidate(each, True) for each in holders if each.uid not in fixed and _may_stop(each, pods[each.uid]))
    wanting = tuple(candidate(each, False) for each in waiting if wants_gpus(each))
    # Who leaves for others is chosen or not as if it waited already, or the choice would change while it leaves.
    leaving = tuple(candidate(each, False) for each in holders if each.uid not in fixed and _makes_room(each))
    ours = {each.workload.uid for each in held}
    gone = {each.uid for each in holders if is_scavenger(each.spec) or each.status.phase is Phase.STOPPING}
    return Candidates(
        held=held,
        leaving=leaving,
        wanting=wanting,
        everybody=(*held, *leaving, *_within_quota(wanting, ledger)),
        kept=tuple(pod for pod in snapshot.pods if not pod.phase.is_final and pod.workload_uid not in ours | gone),
    )


def select(snapshot: Snapshot, found: Candidates, pods: Mapping[str, Sequence[Pod]], standing: Standing) -> Selected:
    """Return the choice of the snapshot's rules, of those that are up for it."""
    whole, now = standing.whole, standing.now
    homes = homes_of(tuple(snapshot.nodes))

    def claim(each: Candidate) -> Claim:
        live = _live(pods[each.workload.uid]) if each.holds else []
        return _claim_of(each.workload, standing, each.job.weight, live)

    kept = held_of(found, homes)
    if snapshot.rules.selection is Selection.FINISH_TIME:
        competing = [each for each in snapshot.workloads if _competes(each)]
        contention = _contention(competing, snapshot, whole.gpu_milli)
        drain_s = sum(standing.work_s(each) for each in competing)
        ordered, chosen = _fairly(found.everybody, claim, homes, kept, contention, drain_s, now)
    else:
        ordered, chosen = _worthiest(found.everybody, homes, kept)
    place = {each.workload.uid: number for number, each in enumerate(ordered)}
    first = sorted(
        (each for each in found.wanting if each.workload.uid in chosen),
        key=lambda each: (-each.gpu_milli, place[each.workload.uid]),
    )
    startable = {each.workload.uid for each in found.wanting}
    rest = [each for each in ordered if each.workload.uid in startable - chosen]
    return Selected(
        chosen=frozenset(chosen),
        order=tuple(each.workload.uid for each in (*first, *rest)),
        giving_way=tuple(
            each.workload.uid for each in reversed(ordered) if each.holds and each.workload.uid not in chosen
        ),
    )


def may_share(gang: GangSpec, slowdowns: Slowdowns) -> bool:
    """Return whether a run may be beside others on its GPUs, as far as it says so and it is known what that costs."""
    return gang.resources.colocate and slowdowns.knows(pace_kind(gang))


def held_of(found: Candidates, homes: Homes) -> list[tuple[str, int]]:
    """Return nodes and thousandths of devices that are not to be had."""
    return homes.held(pod for pod in found.kept if pod.grant.gpu_uuids)


def wants_gpus(workload: Workload) -> bool:
    """Return whether a run is one of those among which GPUs are chosen by."""
    return workload.spec.resources.gpu is not None and not is_scavenger(workload.spec)


def densest_first(everybody: Iterable[Candidate]) -> list[Candidate]:
    """All by worth for each GPU."""
    return sorted(everybody, key=_densest)


def num_gpus_of_one_cell(everybody: Sequence[Candidate], homes: Homes, kept: Iterable[tuple[str, int]]) -> int | None:
    """Return how many GPUs there are to be had where all of some runs may go everywhere; None where they may not.

    None as well where there are so many that a knapsack takes too long, or parts of GPUs among what is asked for.
    """
    sets, cells = _cells(everybody, homes, kept)
    num_gpus = sum(cells.free_milli.values()) // WHOLE_GPU
    fits = len(sets) == 1 and num_gpus <= MOST_GPUS and not any(each.shape.is_share for each in everybody)
    return num_gpus if fits else None


def _makes_room(workload: Workload) -> bool:
    status = workload.status
    return _competes(workload) and status.phase is Phase.STOPPING and status.next_phase is Phase.PENDING


def turn_times(snapshot: Snapshot, now: float) -> Iterator[float]:
    """Yield when time alone may change who has the first turn by finish times: some that waits becomes pressed.

    While one that is pressed waits, the order among those that are is looked at anew every ``ROUND_S``.
    """
    waiting = [each for each in snapshot.workloads if each.status.phase is Phase.PENDING and each.intent is Intent.RUN]
    if not waiting:
        return
    whole = capacity(snapshot.nodes)
    standing = Standing.of(snapshot, whole, snapshot.rules.order, now)
    contention = _contention((each for each in snapshot.workloads if _competes(each)), snapshot, whole.gpu_milli)
    for workload in filter(_competes, waiting):
        at = pressed_at(_claim_of(workload, standing, _weight(workload, snapshot), ()), contention)
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


def _claim_of(workload: Workload, standing: Standing, weight: int, live: Sequence[Pod]) -> Claim:
    """Return what is left of it, and what stopping it now would throw it back, by its pods that live.

    An elastic gang counts at its smallest size whether it holds more or waits: were it nearer its end because it holds
    more, two of them would take each other's turn as soon as they had it.
    """
    milli = asked(workload.spec, standing.whole).gpu_milli
    left_s = _left_s(workload, standing, milli)
    return Claim(
        job=Job(uid=workload.uid, num_gpus=_num_gpus(milli), remaining_s=left_s, weight=weight),
        submitted_s=workload.created_at - AGEING_S * workload.spec.priority,
        total_s=ran_until(workload.status, standing.now) + left_s,
        back_s=restart_s(workload, live, standing.now) if live else 0.0,
    )


def _num_gpus(milli: int) -> int:
    return max(1, round(milli / WHOLE_GPU))


def _left_s(workload: Workload, standing: Standing, milli: int) -> float:
    """Return what is left of it, in seconds on the devices that it asks for."""
    return max(LEAST_REMAINING_S, standing.work_s(workload) * (standing.whole.gpu_milli / milli if milli else 1.0))


def _competes(workload: Workload) -> bool:
    """Return whether it has or wants GPUs of its own right."""
    return (
        workload.spec.resources.gpu is not None
        and not is_scavenger(workload.spec)
        and workload.intent is Intent.RUN
        and not workload.status.phase.is_final
    )


def _weight(workload: Workload, snapshot: Snapshot) -> int:
    return next((team.weight for team in snapshot.teams if team.name == workload.spec.team), 1)


def _contention(everybody: Iterable[Workload], snapshot: Snapshot, gpu_milli: int) -> float:
    """Return how many share one GPU, each as many times as its team weighs."""
    return sum(_weight(each, snapshot) for each in everybody) * WHOLE_GPU / max(WHOLE_GPU, gpu_milli)


def _credit_s(workload: Workload, now: float) -> float:
    """Return what priority and waiting are worth, in seconds of the whole cluster.

    Waiting counts in whole points, as a start keeps it: were the rest lost with the start, whoever started would go
    behind others that have waited as long, and on a large cluster be stopped for them at once.
    """
    return AGEING_S * (workload.spec.priority + raised(workload, now)) / PATIENCE


def _live(pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if not pod.phase.is_final]


def _within_quota(wanting: Iterable[Candidate], ledger: Ledger) -> list[Candidate]:
    """Those that may start as far as their teams' quotas go, the worthiest of each team first."""
    if not any(team.quota != Quota() for team in ledger.teams.values()):
        return list(wanting)
    ledger, within = ledger.copy(), list[Candidate]()
    for each in sorted(wanting, key=_densest):
        if ledger.exceeds(each.workload.spec) is None:
            ledger.add(each.workload.spec)
            within.append(each)
    return within


def _worthiest(
    everybody: Sequence[Candidate], homes: Homes, kept: Sequence[tuple[str, int]]
) -> tuple[list[Candidate], set[str]]:
    """All by worth for each GPU, and the uids of those that are chosen."""
    ordered = sorted(everybody, key=_densest)
    num_gpus = num_gpus_of_one_cell(ordered, homes, kept)
    if num_gpus is not None:
        groups = choose([each.job for each in ordered], num_gpus)
        return ordered, {job.uid for group in groups for job in group.jobs}
    sets, cells = _cells(ordered, homes, kept)
    return ordered, _walk(ordered, homes, sets, cells)


def _fairly(
    everybody: Sequence[Candidate],
    claim: Callable[[Candidate], Claim],
    homes: Homes,
    kept: Iterable[tuple[str, int]],
    contention: float,
    drain_s: float,
    now: float,
) -> tuple[list[Candidate], set[str]]:
    """All in the order of fair finish times, and the uids of those that are chosen."""
    ordered = sorted(
        everybody, key=lambda each: (rank(claim(each), now, contention, drain_s), not each.holds, each.job.uid)
    )
    sets, cells = _cells(ordered, homes, kept)
    return ordered, _walk(ordered, homes, sets, cells)


def _cells(
    everybody: Iterable[Candidate], homes: Homes, kept: Iterable[tuple[str, int]]
) -> tuple[list[frozenset[str]], Cells]:
    sets = list(dict.fromkeys(homes.of(each.shape) for each in everybody))
    return sets, Cells.of(homes, sets, kept)


def _walk(ordered: Iterable[Candidate], homes: Homes, sets: Sequence[frozenset[str]], cells: Cells) -> set[str]:
    """Uids of those that find room in this order, skipping those that do not."""
    numbers = {names: number for number, names in enumerate(sets)}
    return {each.job.uid for each in ordered if cells.take(numbers[homes.of(each.shape)], each.gpu_milli)}


def _densest(candidate: Candidate) -> tuple[float, bool, str]:
    job = candidate.job
    return -worth(job) / job.num_gpus, not candidate.holds, job.uid
