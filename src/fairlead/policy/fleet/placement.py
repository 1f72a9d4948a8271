"""Decides which cluster of a fleet runs each run: owned ones first, rented ones if waiting costs more, and back.

A run has a copy in at most one cluster. It leaves one by being suspended there, which saves a checkpoint, and then
deleted; only after that was seen does another cluster get it. So a cluster that does not answer keeps its runs, however
long it is unreachable, and nothing runs twice when it comes back.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.policy.fleet.bursting import Held, WaitingJob, Waits, book, choose_leaving
from fairlead.policy.fleet.room import UNKNOWN_S
from fairlead.policy.placement.placement import why_never
from fairlead.policy.queue.duration_estimates import enough_s
from fairlead.policy.queue.durations import kind_of
from fairlead.specs.fleet import Fleet, Member
from fairlead.specs.training import Training
from fairlead.state.fleets import ClusterSeen, Copy, FleetRun, FleetSnapshot, FleetStage, Room, units_of_node
from fairlead.state.snapshot import Intent, Phase

# A run returns only if its remaining time clearly exceeds a move: a checkpoint, a start and repeated steps.
WORTH_S = 1800.0
# The minimum time since its last move, so that a run does not alternate between two clusters.
SETTLED_S = 600.0
# A cluster that rejects a run, for example because of its name, is retried after this time.
RETRY_S = 60.0
_HOUR_S = 3600.0
_RAN = (Phase.RUNNING, Phase.RESTARTING, Phase.STOPPING, Phase.SUSPENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """A fleet with the observed state of its clusters, and past durations in seconds by kind of run, ascending."""

    fleet: Fleet
    seen: Mapping[str, ClusterSeen]
    took_s: Mapping[tuple[str, str], Sequence[float]]
    now: float


def decide_fleet(snapshot: FleetSnapshot, fleet: Fleet, now: float) -> tuple[FleetRun, ...]:
    """Return the changed runs of a fleet in their new state.

    Clusters act on these records alone: they create the copies that should exist, delete those that are Leaving, and
    stop those with a stop intent.
    """
    world = _World(fleet=fleet, seen=snapshot.seen, took_s=_took_s(snapshot.runs), now=now)
    judged = _place([_judge(run, snapshot.seen, fleet, now) for run in snapshot.runs], world)
    moved = {run.uid: run for run in _burst(judged, world)}
    if not moved:
        moved = {run.uid: run for run in _bring_home(judged, world)}
    judged = [moved.get(run.uid, run) for run in judged]
    return tuple(after for before, after in zip(snapshot.runs, judged, strict=True) if after != before)


def has_started_meanwhile(run: FleetRun, copy: Copy) -> bool:
    """Return whether a run that was to leave a queue has started before it was asked to leave."""
    return run.waits_to_start and copy.has_pods and copy.intent is Intent.RUN


def expected_s(spec: Training, took_s: Mapping[tuple[str, str], Sequence[float]]) -> float:
    """Return the expected duration of a run: declared, by others of its name, its limit, or ``UNKNOWN_S``."""
    if spec.expected_duration_s is not None:
        return spec.expected_duration_s
    learnt = enough_s(took_s.get(kind_of(spec), ()))
    return learnt if learnt is not None else spec.max_duration_s or UNKNOWN_S


def dollars_an_hour(run: FleetRun, member: Member) -> float:
    """Return dollars per hour of a run in a cluster."""
    return run.units * (member.gpu_price if run.has_gpus else member.cpu_price)


def dollars_so_far(run: FleetRun, fleet: Fleet, now: float) -> float:
    """Return the cost of a run for rented nodes up to now."""
    member = fleet.clusters.get(run.cluster or "")
    if run.rented_since is None or member is None:
        return run.spent
    return run.spent + (now - run.rented_since) / _HOUR_S * dollars_an_hour(run, member)


def _judge(run: FleetRun, seen: Mapping[str, ClusterSeen], fleet: Fleet, now: float) -> FleetRun:
    """Return a run updated by its cluster's report."""
    if run.stage is FleetStage.ENDED:
        return run
    if run.cluster is None:
        if run.intent is Intent.STOP:
            return _end(run, Phase.STOPPED, "stopped before submission to a cluster", fleet, now)
        return run
    if run.cluster not in fleet.clusters:
        return _with_reason(run, f"{run.cluster} is not in the fleet any more and still has the run; add it again")
    cluster_seen = seen.get(run.cluster)
    if cluster_seen is None:
        return run
    if cluster_seen.trouble is not None:
        return _with_reason(run, f"{run.cluster} is unreachable; the run stays there")
    copy = cluster_seen.copies.get(run.uid)
    if copy is None:
        return _without_copy(run, cluster_seen, fleet, now)
    before, run = run, _observed(run, copy, fleet, now)
    if copy.phase.is_final and not copy.has_pods and not _is_being_removed(run, copy):
        return _end(run, copy.phase, copy.message, fleet, now)
    if run.stage is FleetStage.PLACING:
        return replace(run, stage=FleetStage.PLACED, since=now, reason=_where(run, copy))
    if run.stage is FleetStage.LEAVING:
        if has_started_meanwhile(before, copy) and run.intent is Intent.RUN:
            return replace(run, stage=FleetStage.PLACED, since=now, target=None, reason=_where(run, copy))
        return _with_reason(run, f"moves from {run.cluster} to {run.target}: {copy.phase}, {copy.message}")
    return _with_reason(run, _where(run, copy))


def _is_being_removed(run: FleetRun, copy: Copy) -> bool:
    """Return whether a copy is over only because the fleet has deleted it for another cluster."""
    is_leaving = run.stage is FleetStage.LEAVING and run.intent is Intent.RUN
    return is_leaving and copy.phase is Phase.STOPPED and copy.intent is Intent.DELETE


def _without_copy(run: FleetRun, cluster_seen: ClusterSeen, fleet: Fleet, now: float) -> FleetRun:
    """Return the new state of a run of which its cluster, which answers, has no copy."""
    cluster = run.cluster or ""
    if run.stage is FleetStage.PLACING:
        if run.intent is Intent.STOP:
            return _end(run, Phase.STOPPED, f"stopped before submission to {cluster}", fleet, now)
        why = cluster_seen.refused.get(run.uid)
        if why is None:
            return run
        refused = {**run.refused, cluster: why}
        return _unplaced(replace(run, refused=refused, target=None), f"{cluster} refused it: {why}", fleet, now)
    if run.stage is FleetStage.LEAVING:
        return _unplaced(run, f"left {cluster}; next is {run.target}", fleet, now)
    return _end(run, Phase.STOPPED, f"deleted in {cluster}", fleet, now)


def _unplaced(run: FleetRun, reason: str, fleet: Fleet, now: float) -> FleetRun:
    run = _paid(run, fleet, now)
    return replace(
        run, stage=FleetStage.QUEUED, since=now, reason=reason, cluster=None, child=None, phase=Phase.PENDING
    )


def _end(run: FleetRun, phase: Phase, reason: str, fleet: Fleet, now: float) -> FleetRun:
    run = _paid(run, fleet, now)
    took_s = now - run.started_at if phase is Phase.SUCCEEDED and run.started_at is not None else None
    return replace(run, stage=FleetStage.ENDED, since=now, phase=phase, reason=reason, took_s=took_s)


def _observed(run: FleetRun, copy: Copy, fleet: Fleet, now: float) -> FleetRun:
    """Return a run updated by its copy: its progress, start and rented time."""
    has_run = copy.started_at is not None or copy.phase in _RAN
    run = replace(
        run,
        child=copy.uid,
        phase=copy.phase,
        message=copy.message,
        step=run.step if copy.step is None else copy.step,
        total_steps=run.total_steps if copy.total_steps is None else copy.total_steps,
        checkpoint_step=run.checkpoint_step if copy.checkpoint_step is None else copy.checkpoint_step,
        started_at=(copy.started_at or now) if run.started_at is None and has_run else run.started_at,
        # The copy after one that saved nothing begins where that one began.
        origin=run.origin if copy.place is None else copy.place,
    )
    if copy.has_pods and run.rented_since is None and fleet.clusters[run.cluster or ""].is_rented:
        return replace(run, rented_since=copy.started_at or now)
    return run if copy.has_pods else _paid(run, fleet, copy.finished_at or now)


def _paid(run: FleetRun, fleet: Fleet, until: float) -> FleetRun:
    if run.rented_since is None:
        return run
    return replace(run, spent=dollars_so_far(run, fleet, max(until, run.rented_since)), rented_since=None)


def _with_reason(run: FleetRun, reason: str) -> FleetRun:
    return run if run.reason == reason else replace(run, reason=reason)


def _where(run: FleetRun, copy: Copy) -> str:
    return f"{copy.phase} in {run.cluster}: {copy.message}"


def _place(runs: Iterable[FleetRun], world: _World) -> list[FleetRun]:
    """Return the runs, with a cluster assigned to each Queued one if possible."""
    placed: list[FleetRun] = []
    held = _held_units(runs)
    for run in runs:
        if run.stage is not FleetStage.QUEUED:
            placed.append(run)
            continue
        why: list[str] = []
        own = 0.0 if run.target is None else run.units  # the place reserved for it does not block it
        held[run.target or "", run.has_gpus] -= own
        target = next(_clusters_for(run, world, held, why), None)
        if target is None:
            held[run.target or "", run.has_gpus] += own
            if run.refused and world.now - run.since > RETRY_S:
                run = replace(run, refused={}, since=world.now)
            placed.append(_with_reason(run, f"no cluster accepts it: {'; '.join(why)}"))
            continue
        silent = [name for name in _silent_own(run, world) if world.fleet.clusters[target].is_rented]
        if silent and run.target is None and world.now - run.submitted_at < world.fleet.wait_s:
            placed.append(
                _with_reason(run, f"waits for {silent[0]}, which does not answer, before it goes to {target}")
            )
            continue
        held[target, run.has_gpus] += run.units
        price = _price(run, world.fleet.clusters[target], expected_s(run.spec, world.took_s))
        reason = "; ".join((f"assigned to {target}, {price}", *why))
        run = replace(run, stage=FleetStage.PLACING, since=world.now, cluster=target, target=None, reason=reason)
        if world.fleet.clusters[target].is_rented and run.started_at is None:
            run = replace(run, started_at=world.now)  # rented nodes come on request, so it no longer waits for a turn
        placed.append(run)
    return placed


def _silent_own(run: FleetRun, world: _World) -> Iterator[str]:
    for name, member in world.fleet.clusters.items():
        cluster_seen = world.seen.get(name)
        if (
            not member.is_rented
            and name not in run.refused
            and (cluster_seen is None or cluster_seen.trouble is not None)
        ):
            yield name


def _clusters_for(
    run: FleetRun, world: _World, held: Mapping[tuple[str, bool], float], why: list[str]
) -> Iterator[str]:
    """Yield the clusters that may get a run, its target first, then the cheapest; add obstacles to ``why``."""
    order = sorted(
        world.fleet.clusters, key=lambda name: (name != run.target, dollars_an_hour(run, world.fleet.clusters[name]))
    )
    for name in order:
        cluster_seen, problem = world.seen.get(name), None
        if name in run.refused:
            problem = f"{name} refused it: {run.refused[name]}"
        elif cluster_seen is None or cluster_seen.trouble is not None:
            problem = f"{name} does not answer"
        elif (problem := _beyond(run, world.fleet.clusters[name], held[name, run.has_gpus])) is not None:
            problem = f"{name} {problem}"
        elif not world.fleet.clusters[name].is_rented and cluster_seen.room is not None:
            never = why_never(run.spec, cluster_seen.room.nodes)
            problem = None if never is None else f"in {name}, {never.message}"
        if problem is None:
            yield name
        else:
            why.append(problem)


def _beyond(run: FleetRun, member: Member, held: float) -> str | None:
    most = member.most_gpus if run.has_gpus else member.most_cpus
    if most is None or held + run.units <= most:
        return None
    what = "GPUs" if run.has_gpus else "cores"
    return f"has {held:g} of at most {most} {what} for the fleet, and it needs {run.units:g}"


def _held_units(runs: Iterable[FleetRun]) -> dict[tuple[str, bool], float]:
    """Return the GPUs, or cores of runs without GPUs, that runs of the fleet hold or will hold in each cluster.

    A run on its way between two counts in both: it holds the first until it is gone, and needs room in the other.
    """
    held: dict[tuple[str, bool], float] = defaultdict(float)
    for run in _unfinished(runs):
        for cluster in (run.cluster, run.target):
            if cluster is not None:
                held[cluster, run.has_gpus] += run.units
    return held


def _price(run: FleetRun, member: Member, seconds: float) -> str:
    an_hour = dollars_an_hour(run, member)
    if not an_hour:
        return "at no extra cost"
    return f"for ${an_hour:,.2f} an hour, about ${an_hour * seconds / _HOUR_S:,.2f} in all"


def _burst(runs: Sequence[FleetRun], world: _World) -> Iterator[FleetRun]:
    """Yield the runs that leave the queue of an owned cluster for a rented one, in their new state."""
    held = _held_units(runs)
    for name, room in _own_rooms(world):
        for has_gpus in (True, False):
            waiting = [run for run in runs if _waits_in(run, name) and run.has_gpus is has_gpus]
            if not waiting:
                continue
            board = _Board(room, has_gpus)
            # Runs that no rented cluster could take count as waiting like runs of others.
            may_leave = {run.uid for run in waiting if _rented_for(run, world, held) is not None}
            jobs = [
                board.job(run, run.number, expected_s(run.spec, world.took_s), may_leave=run.uid in may_leave)
                for run in waiting
            ]
            waits = _waits(runs, world.fleet, has_gpus)
            leaving = choose_leaving(
                [*jobs, *board.others()], board.held, world.now / _HOUR_S, waits, sizes=board.sizes
            )
            by_number = {run.number: run for run in waiting}
            for job in leaving:
                run = by_number[job.name]
                target = _rented_for(run, world, held)
                if target is None:
                    continue  # earlier ones of this pass have used its limit
                held[target, has_gpus] += run.units
                price = _price(run, world.fleet.clusters[target], expected_s(run.spec, world.took_s))
                reason = f"moves to {target}, {price}: waiting in the queue of {name} would cost more"
                yield replace(run, stage=FleetStage.LEAVING, since=world.now, target=target, reason=reason)


def _rented_for(run: FleetRun, world: _World, held: Mapping[tuple[str, bool], float]) -> str | None:
    return next((name for name in _clusters_for(run, world, held, []) if world.fleet.clusters[name].is_rented), None)


def _waits_in(run: FleetRun, cluster: str) -> bool:
    is_there = run.stage is FleetStage.PLACED and run.cluster == cluster and run.intent is Intent.RUN
    return is_there and run.waits_to_start


def _waits(runs: Iterable[FleetRun], fleet: Fleet, has_gpus: bool) -> Waits:
    such = [run for run in runs if run.has_gpus is has_gpus]
    waited_s = sum(run.started_at - run.submitted_at for run in such if run.started_at is not None)
    return Waits(allowed_h=fleet.wait_s / _HOUR_S, num_jobs=len(such), waited_h=waited_s / _HOUR_S)


def _bring_home(runs: Sequence[FleetRun], world: _World) -> Iterator[FleetRun]:
    """Yield at most one run that leaves a rented cluster for an owned one with room, the most expensive first."""
    held = _held_units(runs)
    for name, room in _own_rooms(world):
        if room.others or any(run.cluster == name and run.phase is Phase.PENDING for run in _unfinished(runs)):
            continue  # there is no room while another run waits for it, or is on its way there
        away = [run for run in runs if _may_come_home(run, world)]
        for run in sorted(
            away, key=lambda run: (-dollars_an_hour(run, world.fleet.clusters[run.cluster or ""]), run.number)
        ):
            board = _Board(room, run.has_gpus)
            job = board.job(run, run.number, _left_s(run, world))
            starts = book([job], board.held, world.now / _HOUR_S, sizes=board.sizes)
            beyond = _beyond(run, world.fleet.clusters[name], held[name, run.has_gpus])
            if name not in run.refused and beyond is None and starts and starts[0].start_h <= world.now / _HOUR_S:
                reason = f"moves from {run.cluster} to {name}, which has room, at no extra cost"
                yield replace(run, stage=FleetStage.LEAVING, since=world.now, target=name, reason=reason)
                return


def _may_come_home(run: FleetRun, world: _World) -> bool:
    cluster = run.cluster or ""
    if run.stage is not FleetStage.PLACED or run.intent is not Intent.RUN or world.now - run.since < SETTLED_S:
        return False
    if not world.fleet.clusters[cluster].is_rented or world.seen[cluster].trouble is not None:
        return False
    if run.phase is Phase.PENDING and run.rented_since is None:
        return True
    has_saved = run.checkpoint_step is not None and run.origin is not None
    return run.phase is Phase.RUNNING and has_saved and _left_s(run, world) > WORTH_S


def _left_s(run: FleetRun, world: _World) -> float:
    """Return the remaining time of a run, by its steps if it reports them."""
    done_s = 0.0 if run.started_at is None else max(0.0, world.now - run.started_at)
    if run.step and run.total_steps and done_s:
        return done_s * max(0, run.total_steps - run.step) / run.step
    return max(0.0, expected_s(run.spec, world.took_s) - done_s)


def _own_rooms(world: _World) -> Iterator[tuple[str, Room]]:
    for name, member in world.fleet.clusters.items():
        cluster_seen = world.seen.get(name)
        if (
            not member.is_rented
            and cluster_seen is not None
            and cluster_seen.trouble is None
            and cluster_seen.room is not None
        ):
            yield name, cluster_seen.room


def _unfinished(runs: Iterable[FleetRun]) -> Iterator[FleetRun]:
    return (run for run in runs if run.stage is not FleetStage.ENDED)


def _took_s(runs: Iterable[FleetRun]) -> dict[tuple[str, str], list[float]]:
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in runs:
        if run.took_s is not None:
            took[kind_of(run.spec)].append(run.took_s)
    return {kind: sorted(durations) for kind, durations in took.items()}


class _Board:
    """The nodes of a cluster as counted by ``bursting``: by GPUs, or by cores for runs without GPUs."""

    def __init__(self, room: Room, has_gpus: bool) -> None:
        self._room = room
        self._has_gpus = has_gpus
        self._index = {node.name: index for index, node in enumerate(room.nodes)}
        self.sizes = [
            sum(gpu.milli for gpu in node.gpus) / 1000 if has_gpus else node.cpu_milli / 1000 for node in room.nodes
        ]
        self.held = [
            Held(
                node=self._index[holding.node],
                until_h=holding.until / _HOUR_S,
                units=holding.gpus if has_gpus else holding.cpus,
            )
            for holding in room.held
            if holding.node in self._index
        ]

    def others(self) -> list[WaitingJob]:
        """Return the pending runs of others there."""
        return [
            self._job(other_room.spec, -1 - number, other_room.since, other_room.takes_s, may_leave=False)
            for number, other_room in enumerate(self._room.others)
            if (other_room.spec.resources.gpu is not None) is self._has_gpus
        ]

    def job(self, run: FleetRun, name: int, takes_s: float, *, may_leave: bool = True) -> WaitingJob:
        """Return a run of the fleet as a job."""
        return self._job(run.spec, name, run.submitted_at, takes_s, may_leave=may_leave)

    def _job(self, spec: Training, name: int, since: float, takes_s: float, *, may_leave: bool) -> WaitingJob:
        one = spec.at(1) if spec.nodes != 1 or spec.most_nodes is not None else spec
        suits = frozenset(index for index, node in enumerate(self._room.nodes) if why_never(one, (node,)) is None)
        return WaitingJob(
            name=name,
            arrived_h=since / _HOUR_S,
            hours=max(takes_s, 1.0) / _HOUR_S,
            units=units_of_node(spec),
            nodes=spec.nodes,
            may_use=suits,
            may_leave=may_leave,
        )
