"""Chooses the runs that are stopped or moved for pending ones in a pass: each once, and within the limits of the rules.

``preemption`` and ``defragmentation`` choose for one run; this module tracks the choices of the pass so far.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import field, replace

from fairlead.frozen import dataclass
from fairlead.policy.disruption.aftermath import makes_room
from fairlead.policy.disruption.defragmentation import Move, budget, cheapest_nodes_first, choose_moves, movable
from fairlead.policy.disruption.migration import coming
from fairlead.policy.disruption.preemption import Victim, choose, enough, gain, victims
from fairlead.policy.disruption.remaining_work_preemption import replaced
from fairlead.policy.placement.placement import FreeCapacity, shape_of
from fairlead.policy.queue import pending_reasons as explaining
from fairlead.policy.queue.changes import stop
from fairlead.policy.queue.dominant_shares import asked
from fairlead.policy.queue.occupancy import Part
from fairlead.policy.queue.priority_classes import Priorities
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import is_scavenger, protected
from fairlead.policy.queue.run_names import Name, Reader
from fairlead.policy.queue.timeline import Claim, Timeline
from fairlead.policy.scaling import elastic
from fairlead.specs.gang import GangSpec
from fairlead.specs.team import Quota
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Assignment, Intent, Phase, Pod, Snapshot, Workload

_STARTED = (Phase.STARTING, Phase.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderFacts:
    """Facts about the runs that hold something, before any was considered.

    Attributes:
        number: Their number.
        least: As in ``EvictionPass``.
        leaving: As in ``EvictionPass``, in any order.
        may_resume: Whether any of them has saved a checkpoint.
        names: Their names, as reasons give them.
        runs: They, and other runs, by uid.
        reasons: Takes the reasons of runs with a promise, by uid, with what they follow from besides the holders.
        needs: Takes what runs need, by what they have in common.
    """

    number: int
    least: Mapping[str, int]
    leaving: tuple[str, ...]
    may_resume: bool
    names: Collection[Name]
    runs: Mapping[str, Workload]
    reasons: dict[str, tuple[tuple[Hashable, ...], Reason]]
    needs: dict[tuple[Hashable, ...], Reason]


@dataclass(slots=True, kw_only=True)
class EvictionPass:
    """The decisions of one pass for runs that do not fit.

    Attributes:
        pods: Pods of each workload, of all attempts.
        standing: The order of runs.
        known: Cached facts about the first holders, in the same order; None without a cache.
        stopped: Uids of runs that are stopped or moved.
        has_searched: Whether runs were searched that may be stopped or moved for another.
        told: Runs stopped for one that precedes them, as chosen.
        spent_s: The cost of the moves, in seconds of the whole cluster.
        num_asked: The number of runs without a promise that searched for victims.
        num_looked: The number of runs without a promise that checked whether room is being made for them.
        leaving: Uids of runs that made room for others before this pass, and have not left yet.
        least: The lowest priority of holders, by team; that of scavengers under the empty name.
        last: The fewest points of running runs, by team.
        vain: For similar runs, the remaining work of the shortest without worthwhile victims: longer ones have none
            either, until a run is stopped and leaves room.
    """

    snapshot: Snapshot
    pods: Mapping[str, Sequence[Pod]]
    now: float
    standing: Standing
    known: HolderFacts | None = None
    stopped: set[str] = field(default_factory=set)
    has_searched: bool = False
    told: list[Victim] = field(default_factory=list)
    spent_s: float = 0.0
    num_asked: int = 0
    num_looked: int = 0
    leaving: tuple[str, ...] | None = None
    least: dict[str, int] | None = None
    last: dict[str, int] | None = None
    vain: dict[tuple[object, ...], float] = field(default_factory=dict)

    def may_ask(self, workload: Workload, holders: Sequence[Workload]) -> bool:
        """Return whether the run may have victims, and is within the limit of such searches per pass."""
        anybody = self.would_ask(workload, holders)
        self.num_asked += anybody
        return anybody

    def would_ask(self, workload: Workload, holders: Sequence[Workload]) -> bool:
        """Return the same as ``may_ask``, without counting the search."""
        return self.would_ask_for_any((workload.spec,), holders) or (
            self.num_asked < self.snapshot.rules.most_promises and self.may_replace(workload, holders)
        )

    def would_ask_for_any(self, specs: Iterable[GangSpec], holders: Sequence[Workload]) -> bool:
        """Return whether a run with one of these specs may have victims by its priority."""
        if not self.snapshot.rules.preempts or self.num_asked >= self.snapshot.rules.most_promises:
            return False
        if self.least is None:
            self.least = {} if self.known is None else dict(self.known.least)
            for run in holders if self.known is None else holders[self.known.number :]:
                team = "" if is_scavenger(run.spec) else run.spec.team
                self.least[team] = min(self.least.get(team, run.spec.priority), run.spec.priority)
        least = self.least
        return any("" in least or least.get(spec.team, spec.priority) < spec.priority for spec in specs)

    def needs_no_promise(self, workload: Workload) -> bool:
        """Return whether no room is kept idle for it yet, because it may stop runs that take the room meanwhile.

        That ends when its waiting has made up for its remaining work. Later runs then have fewer points, and with a
        promise none of them overtakes it: so a run without worthwhile victims does not starve.
        """
        if not self.snapshot.rules.preempts_longer or is_scavenger(workload.spec):
            return False
        known = self.standing.left_s(workload) is not None
        return known and self.standing.points(workload) < workload.spec.priority

    def may_be_next(self, holders: Sequence[Workload]) -> bool:
        """Return whether room is being made for some run, and the limit of such checks is not reached."""
        may = self.would_look(holders)
        self.num_looked += may
        return may

    def would_look(self, holders: Sequence[Workload]) -> bool:
        """Return the same as ``may_be_next``, without counting the check."""
        return bool(self._leaving(holders)) and self.num_looked < self.snapshot.rules.most_promises

    def gone_by(self, holders: Sequence[Workload], timeline: Timeline) -> float:
        """Return when all runs that make room for others have left; minus infinity if there are none.

        A run that could start by then gets a promise. Otherwise later runs would take the room as it becomes free, part
        by part, and be stopped for the same run again.
        """
        held = (timeline.holdings.get(uid) for uid in self._leaving(holders))
        return max((holding.until for holding in held if holding is not None), default=-math.inf)

    def _leaving(self, holders: Sequence[Workload]) -> tuple[str, ...]:
        if self.leaving is None:
            before = () if self.known is None else self.known.leaving
            others = holders if self.known is None else holders[self.known.number :]
            self.leaving = (
                *before, *(run.uid for run in others if makes_room(run, Code.PREEMPTED, Code.RESIZED))
            )  # fmt: skip
        return self.leaving

    def may_replace(self, workload: Workload, holders: Sequence[Workload]) -> bool:
        """Return whether a run of its team is running that it precedes, by the remaining work of both."""
        if not self.snapshot.rules.preempts_longer or is_scavenger(workload.spec):
            return False
        left_s = self.standing.left_s(workload)
        if left_s is None or left_s >= self.vain.get(_alike(workload), math.inf):
            return False
        if self.last is None:
            self.last = {}
            for run in holders:
                if run.status.phase is Phase.RUNNING and not is_scavenger(run.spec):
                    points = self.standing.points(run)
                    self.last[run.spec.team] = min(self.last.get(run.spec.team, points), points)
        last = self.last.get(workload.spec.team)
        return last is not None and last < self.standing.points(workload)

    def victims(
        self,
        workload: Workload,
        claim: Claim,
        holders: Sequence[Workload],
        excluded: Set[str],
        timeline: Timeline,
        *,
        is_owed: bool,
        may_replace_own: bool,
        comes_by: Callable[[Sequence[Victim]], bool],
    ) -> tuple[Victim, ...]:
        """Return the runs to stop so that the run starts sooner than promised.

        Args:
            holders: All runs that hold something.
            excluded: Uids of runs that are not to be stopped.
            is_owed: Whether the run lies within its team's guarantee.
            may_replace_own: Whether runs of its own team may be stopped for it.
            comes_by: Returns whether the run would get the room of given victims; otherwise they are not stopped.
        """
        if not self.snapshot.rules.preempts:
            return ()
        whole, now = self.standing.whole, self.now
        chosen: tuple[Victim, ...] = ()
        if self._may_preempt(workload, is_owed=is_owed):
            self.has_searched = True
            smaller, offered = victims(
                workload,
                [run for run in holders if run.uid not in excluded],
                self.pods,
                is_owed=is_owed,
                may_replace_own=may_replace_own,
                guaranteed_nodes=protected(holders, self.snapshot.teams, whole, now),
                barred=shape_of(workload.spec, timeline.doors).barred,
                points=self.standing.points,
                whole=whole,
                now=now,
            )
            for some in (smaller, offered):
                if not chosen:
                    candidates = choose(workload, some, timeline, starts_at=claim.start, whole=whole, now=now)
                    chosen = candidates if candidates and comes_by(candidates) else ()
        if not chosen and may_replace_own and self.may_replace(workload, holders):
            self.has_searched = True
            staying = [run for run in holders if run.uid not in excluded]
            candidates = replaced(workload, staying, self.pods, timeline, self.standing, starts_at=claim.start)
            chosen = candidates if candidates and comes_by(candidates) else ()
            if not chosen:
                self.vain[_alike(workload)] = self.standing.left_s(workload) or 0.0
        if chosen:
            self.vain.clear()
        self.told += chosen
        self.stopped.update(victim.workload.uid for victim in chosen)
        return chosen

    def _may_preempt(self, workload: Workload, *, is_owed: bool) -> bool:
        """Return whether the run may have victims; runs that start in this pass are none."""
        if self.known is None or is_owed or "" in self.known.least:
            return True
        spec = workload.spec
        return self.known.least.get(spec.team, spec.priority) < spec.priority

    def outside(
        self,
        workload: Workload,
        giving_way: Sequence[str],
        holders: Sequence[Workload],
        excluded: Set[str],
        timeline: Timeline,
        soon: float,
    ) -> tuple[Victim, ...]:
        """Return the victims for a selected run: scavengers first, then runs that were not selected.

        Args:
            soon: When the victims have left; none is stopped for room that is free by then anyway.
            giving_way: Uids of the runs that were not selected, in the order in which they are stopped.
            holders, excluded: As for ``victims``.
        """
        offered = self._not_chosen(giving_way, holders, excluded, timeline, soon)
        with timeline.at(soon) as rooms:
            return enough(shape_of(workload.spec, timeline.doors), workload.spec.nodes, offered, rooms)

    def restarted(
        self,
        workload: Workload,
        giving_way: Sequence[str],
        chosen: Set[str],
        holders: Sequence[Workload],
        excluded: Set[str],
        timeline: Timeline,
        *,
        soon: float,
        starts_at: float,
    ) -> tuple[tuple[Victim, ...], tuple[Victim, ...]]:
        """Return the victims for a selected run if the runs that were not selected hold room in the wrong places.

        The first are stopped as by ``outside``; the second are selected runs that restart elsewhere: smaller ones,
        which find room where a wider gang does not. As with moves, they cost less than the run gains.

        Args:
            chosen: Uids of runs that should hold GPUs.
            starts_at: When the run would start if none of them restarted.
        """
        rules, now, whole = self.snapshot.rules, self.now, self.standing.whole
        left_s = budget(self.snapshot.workloads, rules, now) - self.spent_s
        if not rules.moves or left_s <= 0:
            return (), ()
        size = asked(workload.spec, whole).gpu_milli
        smaller = [
            run
            for run in holders
            if run.uid in chosen and run.uid not in excluded and asked(run.gang, whole).gpu_milli < size
        ]
        priorities = Priorities.of(self.snapshot)
        offered = movable(
            workload,
            smaller,
            self.pods,
            within_guarantee=None,
            whole=whole,
            rules=rules,
            priorities=priorities,
            now=now,
        )
        may_restart = [victim for victim in offered if timeline.holdings[victim.workload.uid].until > soon]
        if not may_restart:
            return (), ()
        shape, count = shape_of(workload.spec, timeline.doors), workload.spec.nodes
        leaving = self._not_chosen(giving_way, holders, excluded, timeline, soon)
        with timeline.at(soon) as rooms:
            parts = [part for victim in leaving for part in victim.parts]
            for node, grant in parts:
                rooms[node].take(grant, -1)
            in_order = cheapest_nodes_first(shape, count, may_restart, rooms)
            for node, grant in parts:
                rooms[node].take(grant)
            # Selected runs are the first to be spared if not needed.
            last = [replace(victim, cost_s=float(len(giving_way) + place)) for place, victim in enumerate(in_order)]
            enough_victims = enough(shape, count, [*leaving, *last], rooms)
        costs = {victim.workload.uid: victim.cost_s for victim in may_restart}
        gone = tuple(victim for victim in enough_victims if victim.workload.uid not in costs)
        again = tuple(
            replace(victim, cost_s=costs[victim.workload.uid])
            for victim in enough_victims
            if victim.workload.uid in costs
        )
        cost_s = sum(victim.cost_s for victim in again)
        if not again or cost_s > left_s or gain(workload, starts_at - soon, whole) <= cost_s:
            return (), ()
        return gone, again

    def _not_chosen(
        self,
        giving_way: Sequence[str],
        holders: Sequence[Workload],
        excluded: Set[str],
        timeline: Timeline,
        soon: float,
    ) -> list[Victim]:
        """Return the possible victims for selected runs, in order, without those that leave by then anyway."""
        places = {uid: number for number, uid in enumerate(giving_way)}
        offered = []
        for run in holders:
            live = self.live(run)
            takes_idle = is_scavenger(run.spec) and run.intent is Intent.RUN and run.status.phase in _STARTED
            if run.uid in excluded or not (run.uid in places or takes_idle) or any(p.terminating_since for p in live):
                continue
            holding = timeline.holdings.get(run.uid)
            if holding is None or holding.until <= soon:
                continue
            place = -1 if takes_idle else places[run.uid]
            offered.append(Victim(workload=run, parts=holding.parts, cost_s=float(place), by_priority=not takes_idle))
        return sorted(offered, key=lambda victim: victim.cost_s)

    def moves(
        self,
        workload: Workload,
        claim: Claim,
        holders: Sequence[Workload],
        excluded: Set[str],
        timeline: Timeline,
        free: FreeCapacity,
        promises: Sequence[Part],
    ) -> tuple[Move, ...]:
        """Return the moves by which the run finds contiguous room.

        Args:
            holders, excluded: As for ``victims``.
            promises: The parts of free capacity that are kept for others.
        """
        if self.known is not None and not self.known.may_resume:
            return ()
        self.has_searched = True
        rules, now, whole = self.snapshot.rules, self.now, self.standing.whole
        left_s = budget(self.snapshot.workloads, rules, now) - self.spent_s
        if not rules.moves or left_s <= 0:
            return ()
        within_guarantee = None
        if any(team.guaranteed != Quota() for team in self.snapshot.teams):
            within_guarantee = frozenset(protected(holders, self.snapshot.teams, whole, now))
        staying = [run for run in holders if run.uid not in excluded]
        offered = movable(
            workload, staying, self.pods, within_guarantee=within_guarantee, whole=whole, rules=rules,
            priorities=Priorities.of(self.snapshot), now=now)  # fmt: skip
        if not offered:
            return ()
        moves = choose_moves(
            workload, offered, timeline, free,
            promised=promises, starts_at=claim.start, budget_s=left_s, whole=whole, now=now,
        )  # fmt: skip
        for move in moves:
            self.spent_s += move.cost_s
            self.stopped.add(move.workload.uid)
            timeline.hold(coming(move.workload.uid), [(s.node, s.grant) for s in move.seats], math.inf)
        return moves

    def stop(self, victim: Victim, wanting: Workload, *, is_owed: bool) -> Change:
        """Return the change that preempts or shrinks a run."""
        run = victim.workload
        live = self.live(run)
        if victim.keeps:
            smaller = elastic.says_shrinks(run, wanting, victim.keeps, self.reader(run))
            return stop(run, live, Phase.PENDING, smaller, smaller, self.now)
        message = explaining.taken_by(
            run,
            wanting,
            self.reader(run),
            is_owed=is_owed and not victim.by_priority,
            selection=self.snapshot.rules.selection,
        )
        reason = Reason(code=Code.PREEMPTED, message=message)
        queue = replace(run.status.queue, preempted_by=message)
        return stop(run, live, Phase.PENDING, reason, reason, self.now, queue=queue)

    def restart(self, victim: Victim, wanting: Workload) -> Change:
        """Return the change that restarts a run elsewhere."""
        run, now = victim.workload, self.now
        message = explaining.restarts_for(wanting, self.reader(run))
        reason = Reason(code=Code.PREEMPTED, message=message)
        return stop(
            run, self.live(run), Phase.PENDING, reason, reason, now,
            queue=replace(run.status.queue, preempted_by=message),
            migration=replace(run.status.migration, decided_at=now, cost_s=victim.cost_s),
        )  # fmt: skip

    def regroup(self, run: Workload, assigned: Assignment, beside: Sequence[str]) -> Change:
        """Return the change of a run that a round of sharing sends elsewhere, or whose GPUs go to others."""
        message = explaining.regroups([seat.node for seat in assigned.seats], beside)
        reason = Reason(code=Code.PREEMPTED, message=message)
        return stop(
            run, self.live(run), Phase.PENDING, reason, reason, self.now,
            queue=replace(run.status.queue, preempted_by=message),
            measured=replace(run.status.measured, assigned=assigned),
        )  # fmt: skip

    def reader(self, workload: Workload) -> Reader:
        """Return the readers of the reasons of a run."""
        return Reader(workload.spec.team, self.snapshot.rules.shows_names)

    def live(self, workload: Workload) -> tuple[Pod, ...]:
        """Return its live pods, in order."""
        live = [pod for pod in self.pods[workload.uid] if not pod.phase.is_final]
        return tuple(sorted(live, key=lambda pod: (pod.attempt, pod.index)))


def _alike(workload: Workload) -> tuple[object, ...]:
    spec = workload.spec
    return spec.team, spec.priority, spec.nodes, spec.resources, spec.kubernetes, spec.capacity
