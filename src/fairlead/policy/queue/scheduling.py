"""Decides which pending runs start now and why the others wait: order, promises, backfill, preemption.

Runs are placed in order (``turns``) as long as they fit. One that does not fit is promised the earliest start that the
ends of other runs allow (``timeline``), if the rules give it a promise. Later runs may pass it only if they are over by
then or leave free what it needs: EASY backfilling (Lifka, JSSPP 1995) with one promise, conservative backfilling
(Mu'alem and Feitelson, TPDS 2001) with one for every run. No run passes one with unknown start, except into capacity
that the latter could never use. Runs may be stopped for it (``preemption``) if the queue as it would be afterwards
gives it their capacity (``aftermath``).

A run that is as large as one that found no room, and stays as long, is not tried again in the same pass. So a pass
costs a placement for each run that starts and for each shape that does not, and a walk in time for each promise.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from fairlead.frozen import replace
from fairlead.policy.capacity import spot_deadline
from fairlead.policy.disruption.aftermath import without
from fairlead.policy.disruption.eviction import EvictionPass
from fairlead.policy.disruption.migration import change_place, coming, describe_makes_room, keep, move_away, placed_in
from fairlead.policy.disruption.partitioning import layout_for
from fairlead.policy.disruption.preemption import Victim
from fairlead.policy.health.node_risk import gang_failures_per_day, risks_of
from fairlead.policy.placement.free_capacity import rooms
from fairlead.policy.placement.node_eligibility import keeps_apart
from fairlead.policy.placement.placement import (
    FreeCapacity,
    NodeCapacity,
    Placement,
    has_room,
    may_place,
    place,
    shape_of,
    why_never,
    why_waiting,
)
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.placement.task_mix import settled_mix
from fairlead.policy.queue import pending_reasons as explaining
from fairlead.policy.queue import replacements
from fairlead.policy.queue.budgets import Budgets
from fairlead.policy.queue.changes import change_to, started, wait
from fairlead.policy.queue.dominant_shares import capacity
from fairlead.policy.queue.durations import Durations, durations_of
from fairlead.policy.queue.fair_order import Filling, fairly, first_come
from fairlead.policy.queue.idle_pass import IdlePass
from fairlead.policy.queue.known_facts import KnownFacts
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import Ledger, is_scavenger, protected
from fairlead.policy.queue.rollout_turns import lasting, nodes_of_peers, taking_over
from fairlead.policy.queue.run_limits import refusal
from fairlead.policy.queue.run_names import name_of
from fairlead.policy.queue.spec_traits import SpecTraits, Traits
from fairlead.policy.queue.tested_nodes import must_avoid
from fairlead.policy.queue.timeline import Claim, Timeline, members
from fairlead.policy.queue.waiting_lists import Alike, Turns, WaitingLists
from fairlead.policy.scaling import elastic
from fairlead.policy.scaling.elastic import is_resizing, is_wanted
from fairlead.policy.scaling.scale_up import Growing, WaitingRun
from fairlead.policy.selection import rounds
from fairlead.policy.selection.selection import Selected, candidates_of, select
from fairlead.policy.selection.slowdowns import companies, is_colocated, observe
from fairlead.specs.gang import GangSpec
from fairlead.specs.team import Quota
from fairlead.specs.training import Tier, Training
from fairlead.state.phase_transitions import move
from fairlead.state.plan import Change, CreatePod, HeldRoom
from fairlead.state.reasons import Code, Reason
from fairlead.state.scheduling_policy import Backfill, Order, SchedulingPolicy, Selection
from fairlead.state.snapshot import Assignment, Intent, Phase, Pod, Reservation, Snapshot, Workload, is_replica

# Only at the first look is a run refused that can never fit, as no node holds one of its pods. Later it did fit, and
# nodes have left that may come back.
FIRST_LOOK = frozenset((Code.SUBMITTED, Code.RESUMED))

# After this many runs in one pass whose preemptions would not get them started, no more runs are stopped: each check
# takes a pass from scratch, 40 ms with 300 nodes and 2,400 runs.
MOST_IN_VAIN = 10


def start(
    waiting: Sequence[Workload],
    growable: Sequence[Workload],
    incomplete: Sequence[Workload],
    snapshot: Snapshot,
    pods: Mapping[str, Sequence[Pod]],
    busy: frozenset[str],
    now: float,
    cache: KnownFacts | None = None,
    contention: "Contention | None" = None,
) -> list[Change]:
    """Return changes of pending runs, of runs stopped for them, and of running gangs that lack pods or may grow.

    Args:
        waiting: Pending runs; those of the cache first, if there is one.
        growable: Running elastic gangs that can use more nodes.
        incomplete: Running gangs with pods that are to be replaced.
        pods: Pods of each workload, of all attempts, by attempt and index.
        busy: Uids of workloads that another change was decided for.
        cache: Known facts about the snapshot.
        contention: Takes what is held free, and for whom there is no room.
    """
    automatic = snapshot.workloads if cache is None else cache.ordered(cache.automatic)
    choosing = [run for run in automatic if run.spec.capacity.auto and _runs_on(run, busy)]
    colocated = _colocated(snapshot, cache)
    if not waiting and not growable and not incomplete and not choosing and not colocated:
        return []
    others = growable or incomplete or choosing or colocated
    queued = cache if cache is not None and not others and len(waiting) == len(cache.waiting) else None
    last = None if queued is None else queued.idle_pass
    if queued is not None and last is not None and last.is_repeated(snapshot, now, queued.queue_version, queued.runs):
        if contention is not None:
            contention.held += last.held
            contention.teams |= last.held_up
        return []
    queue = SchedulingPass.of(snapshot, pods, busy, now, cache)
    queue.complete(incomplete)
    order: Iterable[Workload]
    changes = list[Change]()
    if cache is not None and queue.may_leave_out((*cache.lists.others.values(), *waiting[len(cache.waiting) :])):
        queue.leaves_out = True
        order = queue.worth_a_look(waiting, cache.lists, waiting[len(cache.waiting) :])
    else:
        moved = {workload.uid for workload in waiting if workload.uid in queue.kept}
        changes += [queue.settle(workload) for workload in waiting if workload.uid in moved]
        order = queue.in_turn([run for run in waiting if run.uid not in moved])
        changes += queue.regroup()
    for workload in order:
        changes += queue.put_back(before=workload)
        changes += queue.look_at(workload)
    changes += queue.put_back()
    changes += [change for workload in choosing for change in queue.change_capacity(workload)]
    changes += queue.observe(colocated)
    if contention is not None:
        contention.held += queue.held
        contention.teams |= queue.held_up
    if cache is not None:
        cache.idle_pass = None
        if queued is not None and queue.leaves_out and not queue.started and not queue.making.has_searched:
            cache.idle_pass = IdlePass.of(
                changes, queue.held, queue.held_up, snapshot, now, cache.queue_version, cache.runs
            )
    larger = queue.enlarge()
    return [*(larger.get(change.workload_uid, change) for change in changes), *queue.grow(growable, waiting)]


@dataclass(slots=True)
class Contention:
    """Room that a pass holds free for pending runs, and the teams of which a run has found no room."""

    held: list[HeldRoom] = field(default_factory=list)
    teams: set[str] = field(default_factory=set)


@dataclass(slots=True)
class SchedulingPass:
    """One pass over the pending runs, in order.

    Attributes:
        holders: Runs that hold something; those that start in this pass come last.
        owed: Uids of pending runs within their team's guarantee.
        first: The first run that did not fit.
        waiting: All pending runs.
        promised: Uids of runs whose promise holds beyond this pass, whatever is decided in it.
        num_in_vain: The number of runs that would not have started by the preemptions planned for them.
        too_large: For each shape, numbers of pods that found no room, with the promises that they passed.
        num_promised: The number of promised starts beyond the guarantees of teams.
        num_passed: The number of those among them for which no room is held.
        making: Chooses the runs that are stopped or moved for others.
        traits: Known traits of the specs of pending runs.
        stuck: Traits, and ends of stays, of which runs wait behind the first one until another run starts.
        held: What is held free for runs with a promise.
        held_up: Teams of the runs that have found no room so far.
        wanting: Teams with pending runs other than scavengers, if they are known.
        growing: Tracks the runs that request new nodes.
        is_asking: Whether a run that fits no existing node requests new ones.
        kept: The places reserved for moving runs.
        selected: The runs that should hold GPUs, if the rules select a set.
        round: The assignment of runs to GPUs, if GPUs are shared in rounds; then nothing is selected.
        openings: The free places of that round.
        told_round: Uids of runs whose status already includes that round.
        begins: Returns the timeline before any start; built from the snapshot if omitted.
        incomplete: Running gangs whose lost pods were not considered yet, in turn.
        leaves_out: Whether runs are skipped whose status would not change.
        num_started_before: The number of starts when it was last computed whether another run can start.
    """

    snapshot: Snapshot
    pods: Mapping[str, Sequence[Pod]]
    busy: frozenset[str]
    now: float
    free: FreeCapacity
    ledger: Ledger
    budgets: Budgets
    durations: Durations
    holders: list[Workload]
    growing: Growing
    making: EvictionPass
    traits: SpecTraits
    owed: frozenset[str] = frozenset()
    first: Workload | None = None
    claims: list[Claim] = field(default_factory=list)
    waiting: Sequence[Workload] = ()
    promised: set[str] = field(default_factory=set)
    num_in_vain: int = 0
    started: list[tuple[Workload, tuple[Placement, ...]]] = field(default_factory=list)
    too_large: dict[Shape, list[tuple[int, frozenset[int]]]] = field(default_factory=dict)
    num_promised: int = 0
    num_passed: int = 0
    stuck: set[tuple[int, float]] = field(default_factory=set)
    held: list[HeldRoom] = field(default_factory=list)
    held_up: set[str] = field(default_factory=set)
    wanting: frozenset[str] = frozenset()
    is_asking: bool = False
    kept: dict[str, tuple[Reservation, ...]] = field(default_factory=dict)
    selected: Selected | None = None
    round: rounds.Round | None = None
    openings: rounds.Openings = field(default_factory=rounds.Openings)
    told_round: set[str] = field(default_factory=set)
    begins: Callable[[], Timeline] | None = None
    incomplete: list[Workload] = field(default_factory=list)
    all_incomplete: Sequence[Workload] = ()
    leaves_out: bool = False
    num_started_before: int = -1
    _timeline: Timeline | None = None
    _filling: Filling | None = None

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        pods: Mapping[str, Sequence[Pod]],
        busy: frozenset[str],
        now: float,
        cache: KnownFacts | None = None,
        traits: SpecTraits | None = None,
    ) -> "SchedulingPass":
        """Return the pass before any run was considered."""
        whole = capacity(snapshot.nodes)
        durations = durations_of(snapshot.completed)
        if cache is None:
            free = rooms(snapshot.nodes, snapshot.pods, settled_mix(snapshot.workloads), risks_of(snapshot, now))
            traits = SpecTraits(snapshot.nodes) if traits is None else traits
            reserved = keep(snapshot.workloads, free)
            holding = reserved.keys() | {pod.workload_uid for pod in snapshot.pods if not pod.phase.is_final}
            # Pods placed by an engine are not subject to preemption, moves or team quotas.
            of_queue = (workload for workload in snapshot.workloads if workload.spec.engine is None)
            holders = [workload for workload in of_queue if workload.uid in holding]
            ledger = Ledger.of(snapshot.teams, whole, holders)
        else:
            free, traits = cache.rooms(snapshot, now), cache.traits
            reserved = keep(cache.moving(), free)
            holders = cache.holders(reserved)
            ledger = cache.ledger(reserved)
        return cls(
            snapshot=snapshot,
            pods=pods,
            busy=busy,
            now=now,
            free=free,
            ledger=ledger,
            budgets=Budgets.of(snapshot, holders, pods, durations, now),
            durations=durations,
            holders=holders,
            growing=Growing(snapshot, now),
            making=EvictionPass(
                snapshot=snapshot,
                pods=pods,
                now=now,
                standing=Standing.of(snapshot, whole, snapshot.rules.order, now),
                known=None if cache is None else cache.holder_facts(holders),
            ),
            traits=traits,
            kept=reserved,
            begins=None if cache is None else partial(cache.timeline, durations, now),
        )

    def settle(self, workload: Workload) -> Change:
        """Start a moved run in its reserved place, which already counts as held."""
        placed = placed_in(self.kept.pop(workload.uid))
        self.started.append((workload, placed))
        return self._start(workload, placed)

    def in_turn(self, waiting: Sequence[Workload]) -> list[Workload]:
        """Return the pending runs in the order in which they are considered."""
        self.waiting = waiting
        if self.rules.selection is not Selection.NONE:
            order = self._select(waiting)
        elif self.rules.fair:
            order, self.owed = fairly(
                waiting, self.ledger.copy(), self.making.standing, self.traits, self.snapshot.debts
            )
        else:
            order = first_come(waiting, self.ledger)
        # A run that only changes its size, or replaces another replica, comes first, except before runs that are owed
        # what it gave up.
        going_on = {run.uid for run in order if is_resizing(run.status) and not is_scavenger(run.spec)}
        if self.snapshot.parents and any(run.parent is not None for run in order):
            going_on |= taking_over(order, self.holders, self.snapshot.parents, self.free)
        return sorted(order, key=lambda run: run.uid not in self.owed | going_on) if going_on else order

    def may_leave_out(self, singles: Iterable[Workload]) -> bool:
        """Return whether similar runs may be skipped: under rules where one result holds for all of them.

        Args:
            singles: Pending runs in no list. Replicas may take over from others, which puts them first.
        """
        rules = self.rules
        return (
            rules.fair
            and rules.selection is Selection.NONE
            and rules.order is Order.FIRST_COME
            and rules.backfill is not Backfill.NONE
            and not rules.preempts_longer
            and self.snapshot.growth is None
            and not self.kept
            and not any(is_resizing(run.status) or is_replica(run.spec) for run in singles)
        )

    def worth_a_look(
        self, waiting: Sequence[Workload], lists: WaitingLists, more: Iterable[Workload]
    ) -> Iterator[Workload]:
        """Yield pending runs in the order of ``in_turn``, without those whose status would not change."""
        self.waiting = waiting
        apart = {
            team.name
            for team in self.snapshot.teams
            if team.has_budgets or team.quota != Quota() or team.guaranteed != Quota()
        }
        turns = Turns(lists, more, apart, self.ledger.copy(), self.making.standing, self.snapshot.debts)
        self.owed, self.wanting = turns.owed, turns.wanting
        return turns.runs(self._is_idle, self.held_up, self._is_over)

    def _is_over(self, lists: Iterable[Alike], singles: Collection[Workload]) -> bool:
        """Return whether nothing is started or stopped for any of these runs, in whatever order they are considered.

        Computed anew only after a start.
        """
        if self.first is None or self.num_started_before == len(self.started):
            return False
        lists = [alike for alike in lists if not alike.lacks_nodes or self.snapshot.partitioned]
        if self._promises_more and not all(map(self._gets_no_promise, (*(alike.runs[0] for alike in lists), *singles))):
            return False
        self.num_started_before = len(self.started)
        making, holders = self.making, self.holders
        if making.would_look(holders) or not all(map(self._only_needs_room, singles)):
            return False
        fits, nothing = dict[tuple[int, frozenset[int]], bool](), frozenset[int]()
        heads = [(alike.runs[0], alike.traits) for alike in lists]
        heads += [(run, self.traits.of(run)) for run in singles]
        runs = [run for run, _ in heads]
        if making.would_ask_for_any((run.spec for run in runs if not is_scavenger(run.spec)), holders):
            return False
        for run, traits in heads:
            if traits.alike not in self.traits.known_to_fit:
                return False
            if self._may_place(traits, nothing, fits):
                passed = self._passed(traits.spec, self.now + self.durations.length_s(run, self.now, traits.kind))
                if self._may_place(traits, passed, fits):
                    return False
        for run in runs:
            team = run.spec.team
            if team not in self.held_up and not is_scavenger(run.spec) and self._lacks_room(run):
                self.held_up.add(team)
        return True

    def _is_early(self, workload: Workload) -> bool:
        """Return whether no start is promised to a run before its turn, as it is wider than its team's share."""
        return self.rules.fair and self._shares.is_early(workload.spec, self.traits.of(workload).asks, workload.status)

    def _gets_no_promise(self, workload: Workload) -> bool:
        """Return whether no start is promised to a run nor to later ones like it, if they find no room."""
        return is_scavenger(workload.spec) or self._is_early(workload)

    def _lacks_room(self, workload: Workload) -> bool:
        """Return whether room is what a waiting run lacks, rather than its team's quota or budget."""
        traits = self.traits.of(workload)
        end = self.now + self.durations.length_s(workload, self.now, traits.kind)
        return self._is_stuck(workload, traits, end) or self._team_limit(workload, end) is None

    def _is_stuck(self, workload: Workload, traits: Traits, end: float) -> bool:
        """Return whether a run like this one, which ends then, waits until another run starts or leaves."""
        if self.selected is None and self.round is None:
            return (traits.alike, end) in self.stuck and workload.uid not in self.owed
        chosen = self.selected.chosen if self.selected is not None else self.openings.seats
        return workload.uid not in chosen and workload.uid not in self.owed and (traits.alike, 0.0) in self.stuck

    def _team_limit(self, workload: Workload, end: float) -> Reason | None:
        """Return the quota or the budget of its team that a run would exceed until its end; None if there is none."""
        exceeded = self.ledger.exceeds(workload.spec) if self.rules.fair else None
        if exceeded is not None:
            return explaining.over_quota(workload, self.ledger, exceeded)
        return self.budgets.refusal(workload, end - self.now)

    def _may_place(self, traits: Traits, passed: frozenset[int], known: dict[tuple[int, frozenset[int]], bool]) -> bool:
        """Return whether enough pods of a gang fit where what it passes stays free, from what is known of others."""
        size = traits.size, passed
        if size not in known:
            with self._keeping(passed):
                known[size] = may_place(traits.spec, self.free, traits.shape)
        return known[size]

    def _only_needs_room(self, workload: Workload) -> bool:
        """Return whether nothing but room decides whether the run starts, and it takes all nodes that accept it."""
        capacity = workload.spec.capacity
        return (
            not capacity.auto
            and capacity.tier is not Tier.OVERFLOW
            and not workload.status.failures.avoided_nodes
            and workload.parent is None
        )

    def _is_idle(self, alike: Alike) -> bool:
        """Return whether all of these runs keep waiting: no room is found, and no run is stopped for them."""
        if alike.lacks_nodes and not self.snapshot.partitioned:
            return True
        traits, workload = alike.traits, alike.runs[0]
        if self.first is None or (self._promises_more and not self._gets_no_promise(workload)):
            return False
        if traits.alike not in self.traits.known_to_fit:
            return False
        end = self.now + self.durations.length_s(workload, self.now, traits.kind)
        if not self._is_too_large(traits.spec, traits.shape, end):
            return False
        making, holders = self.making, self.holders
        if is_scavenger(traits.spec):
            return True
        if making.would_ask(workload, holders) or making.would_look(holders):
            return False
        if traits.spec.team not in self.held_up and self._lacks_room(workload):
            self.held_up.add(traits.spec.team)
        return True

    def _select(self, waiting: Sequence[Workload]) -> list[Workload]:
        """Choose the runs that should hold GPUs. Runs owed room come first, then chosen ones, others, scavengers."""
        order, self.owed = fairly(waiting, self.ledger.copy(), self.making.standing, self.traits, self.snapshot.debts)
        rest = {run.uid: run for run in order if run.uid not in self.owed}
        fixed = (
            self.owed
            | self.busy
            | protected(self.holders, self.snapshot.teams, self.making.standing.whole, self.now).keys()
        )
        if rounds.are_held(self.snapshot, waiting, self.holders):
            return self._look_at_round(order, rest, fixed)
        standing = self.making.standing
        candidates = candidates_of(
            self.snapshot, list(rest.values()), self.holders, self.pods, standing, self.ledger, fixed
        )
        self.selected = select(self.snapshot, candidates, self.pods, standing)
        chosen = [rest.pop(uid) for uid in self.selected.order]
        return [*(run for run in order if run.uid in self.owed), *chosen, *rest.values()]

    def _look_at_round(self, order: Sequence[Workload], rest: dict[str, Workload], fixed: Set[str]) -> list[Workload]:
        """Share GPUs by rounds; runs that are owed room come first, then those with a place, then the others."""
        self.round = rounds.current(
            self.snapshot, list(rest.values()), self.holders, self.pods, self.making.standing, self.ledger, fixed,
            is_settled=not self.busy, refused=self._is_refused,
        )  # fmt: skip
        assert self.round is not None
        self.openings = rounds.Openings(self.round, rest, self.snapshot.pods, self.free)
        known = [rest.pop(uid) for uid in self.round.order]
        return [*(run for run in order if run.uid in self.owed), *known, *rest.values()]

    def _is_refused(self, workload: Workload) -> bool:
        """Return whether a run may not start even with everything free."""
        return (
            self.budgets.refusal(workload, self.durations.length_s(workload, self.now)) is not None
            or why_never(workload.spec, self.snapshot.nodes) is not None
        )

    def regroup(self) -> list[Change]:
        """Stop the runs that a new round sends elsewhere, or that block the place of others."""
        if self.round is None:
            return []
        changes = []
        for run in self.holders:
            assigned = self.round.news.get(run.uid)
            if run.uid in self.round.leaving:
                self.making.stopped.add(run.uid)
                self.told_round.add(run.uid)
                assignment = self.round.news[run.uid]
                changes.append(self.making.regroup(run, assignment, self._names(assignment, run)))
            elif assigned is not None and run.uid not in self.busy and run.status.phase is Phase.STOPPING:
                self.told_round.add(run.uid)
                changes += _only_seen(
                    run,
                    replace(run, status=replace(run.status, measured=replace(run.status.measured, assigned=assigned))),
                )
        return changes

    def observe(self, colocated: Sequence[Workload]) -> list[Change]:
        """Record the neighbours of runs that share GPUs, their speed beside them, and their round."""
        beside = companies(colocated, self.pods)
        news = {} if self.round is None else self.round.news
        changes = []
        for run in colocated:
            if run.uid in self.busy | self.making.stopped | self.told_round:
                continue
            status = run.status
            if status.phase is Phase.RUNNING:
                status = observe(run, beside[run.uid], self.now)
            if run.uid in news:
                status = replace(status, measured=replace(status.measured, assigned=news[run.uid]))
            changes += _only_seen(run, replace(run, status=status))
        return changes

    def complete(self, incomplete: Iterable[Workload]) -> None:
        """Take in the running gangs with pods that are to be replaced."""
        self.all_incomplete = tuple(incomplete)
        self.incomplete = sorted(self.all_incomplete, key=_in_team)

    def put_back(self, before: Workload | None = None) -> list[Change]:
        """Place lost pods of running gangs that come before a pending run, or of all others.

        The place of a lost pod still counts in the quota of its team, so it comes before runs of other teams, and in
        its own by priority and age; but after runs that are owed what their team is guaranteed, and that of a scavenger
        after all others. Where the rules choose a set of runs, pods are placed in what these leave.
        """
        if before is not None and (self.selected is not None or self.round is not None or before.uid in self.owed):
            return []
        turn = [run for run in self.incomplete if before is None or _comes_before(run, before)]
        if not turn:
            return []
        self.incomplete = [run for run in self.incomplete if run not in turn]
        return [change for run in turn if run.uid not in self.making.stopped for change in self._put_back(run)]

    def _put_back(self, workload: Workload) -> list[Change]:
        """Place the lost pods of a gang as far as there is room, or record why they wait."""
        live = self.making.live(workload)
        alive = {pod.index for pod in live}
        due = [pod for pod in workload.status.missing if self.now >= pod.retry_at and pod.index not in alive]
        if not due:
            return []
        spec = self._of_one(workload, live)
        end = max(self.now, self.durations.ends_at(workload, self.pods[workload.uid], self.now))
        create = list[CreatePod]()
        for lost_pod in due:
            waits = self.first is not None and (self.is_asking or self.rules.backfill is Backfill.NONE)
            placed = None if waits else self._try(spec, shape_of(spec, self.free.doors), end)
            if placed is None:
                break
            grant, node = placed[0].grant, placed[0].node
            attempt = workload.status.attempt
            create.append(
                CreatePod(attempt=attempt, index=lost_pod.index, node=node, grant=grant, replacement=lost_pod.times)
            )
            if self._timeline is not None:
                self._timeline.hold(workload.uid, [(node, grant)], end)
            if keeps_apart(spec.kubernetes):
                spec = spec.away_from((*spec.capacity.avoided, node))
        if create:
            return [replacements.replaced(workload, tuple(create), self.now)]
        holders, reader = {name_of(run.spec) for run in self.holders}, self.making.reader(workload)
        why = why_waiting(spec, self.free, reader.names(holders), reader.own(holders))
        # A run with `spot: auto` keeps to its kind of node, which a placeholder cannot require.
        asks, lost = not workload.spec.capacity.auto, spec.at(len(workload.status.missing))
        growing = self.growing.wait_for_lost(workload, lost, why) if asks else WaitingRun(reason=why)
        status = replacements.waits(workload, growing.reason, growing.asked_at, growing.ask_again_at)
        return [] if status is None else [status]

    def _of_one(self, workload: Workload, live: Sequence[Pod]) -> Training:
        """Return the spec of one pod of a running gang, on nodes where it may be beside the others."""
        spec, held = workload.spec.at(1), tuple(pod.node for pod in live)
        if spec.capacity.auto:
            spec = spec.on(spot=spot_deadline.is_on_spot(held, self.snapshot.nodes))
        avoided = (*spec.capacity.avoided, *(held if keeps_apart(spec.kubernetes) else ()))
        spec = spec.away_from(avoided) if avoided else spec
        away = spec.away_from((*avoided, *workload.status.failures.avoided_nodes))
        return away if workload.status.failures.avoided_nodes and has_room(away, self.free) else spec

    def look_at(self, workload: Workload) -> list[Change]:
        """Start the run, or record why it waits."""
        failures = workload.status.failures
        if failures.avoided_nodes:
            away = workload.spec.away_from(failures.avoided_nodes)
            if must_avoid(failures) or has_room(away, self.free):
                workload = replace(workload, spec=away)
        capacity = workload.spec.capacity
        if self.round is not None and workload.uid in self.round.news:
            seen = replace(
                workload,
                status=replace(
                    workload.status, measured=replace(workload.status.measured, assigned=self.round.news[workload.uid])
                ),
            )
            changes = self._look_at(seen)
            is_changed = any(change.workload_uid == workload.uid for change in changes)
            return changes if is_changed else [*changes, *_only_seen(workload, seen)]
        if capacity.tier is Tier.OVERFLOW and has_room(workload.spec.on(spot=True), self.free):
            # A replica above the base goes to on-demand nodes only if spot has no room.
            return self._look_at(replace(workload, spec=workload.spec.on(spot=True)))
        return self._look_at(workload) if not capacity.auto else self._choose_capacity(workload)

    def change_capacity(self, workload: Workload) -> list[Change]:
        """Move a running run to the other kind of capacity if it should change and has a place there."""
        spec, now, live = workload.spec, self.now, self.making.live(workload)
        if workload.uid in self.making.stopped or len(live) != spec.nodes or any(p.terminating_since for p in live):
            return []
        on_spot = spot_deadline.is_on_spot([pod.node for pod in live], self.snapshot.nodes)
        spot = on_spot or has_room(spec.on(spot=True), self.free)
        use = spot_deadline.decide_use(workload, self.snapshot, now, on_spot=on_spot, spot=spot)
        seen = replace(workload, status=spot_deadline.observed(workload, spot, now))
        if spot_deadline.may_change(workload, use, self.rules, now, on_spot=on_spot):
            placed = place(spec.on(spot=not on_spot), self.free)
            if placed is not None:
                seats = tuple(Reservation(node=at.node, grant=at.grant) for at in placed)
                return [change_place(seen, live, seats, spot_deadline.why_change(on_spot=on_spot), now)]
        return _only_seen(workload, seen)

    def _choose_capacity(self, workload: Workload) -> list[Change]:
        """Wait for spot, or start on the kind of capacity that the deadline requires."""
        spec, free = workload.spec, self.free
        spot = has_room(spec.on(spot=True), free)
        use = spot_deadline.decide_use(workload, self.snapshot, self.now, on_spot=None, spot=spot)
        seen = replace(workload, status=spot_deadline.observed(workload, spot, self.now))
        if use == spot_deadline.NOTHING:
            changes = wait(seen, spot_deadline.WAITS, self.now)
        else:
            # Without room on on-demand nodes, spot is better than nothing.
            on_spot = spot and (use == spot_deadline.SPOT or not has_room(spec.on(spot=False), free))
            changes = self._look_at(replace(seen, spec=spec.on(spot=on_spot)))
        is_changed = any(change.workload_uid == workload.uid for change in changes)
        return changes if is_changed else [*changes, *_only_seen(workload, seen)]

    def _look_at(self, workload: Workload) -> list[Change]:
        spec, now, traits = workload.spec, self.now, self.traits.of(workload)
        end = now + self.durations.length_s(workload, now, traits.kind)
        stuck = self._is_stuck(workload, traits, end)
        if stuck and (self.selected is not None or self.round is not None):
            return wait(workload, self._passed_over(workload), now)
        if stuck and not self.making.may_replace(workload, self.holders):
            assert self.first is not None, "nobody waits behind nobody"
            self.held_up.add(spec.team)
            return wait(workload, explaining.behind(workload), now)
        shape, known_to_fit = traits.shape, self.traits.known_to_fit
        if traits.alike not in known_to_fit:
            never = why_never(spec, self.snapshot.nodes)
            if never is not None and (layout := _other_layout(spec, self.snapshot)) is not None:
                return wait(workload, explaining.other_layout(never, layout), now)
            if never is not None and (ever := self.growing.why_never(spec, never)) is not None:
                if workload.status.reason.code in FIRST_LOOK and not self._lacks_nodes(workload):
                    return [change_to(workload, move(workload.status, Phase.FAILED, ever, now))]
                return self._wait(workload, explaining.nodes_left(ever), fits_here=False)
            if never is None:
                known_to_fit.add(traits.alike)
        if workload.status.reason.code in FIRST_LOOK and (too_long := refusal(spec, self.ledger.teams.get(spec.team))):
            why = Reason(code=Code.CANNOT_FIT, message=too_long)
            return [change_to(workload, move(workload.status, Phase.FAILED, why, now))]
        if self.first is not None and self.rules.backfill is Backfill.NONE:
            return self._wait(workload, explaining.behind(workload))
        limit = self._team_limit(workload, end)
        if limit is not None:
            return wait(workload, limit, now)
        fits_here = traits.alike in known_to_fit
        if self.first is not None and self.is_asking:
            return self._wait(workload, explaining.behind(workload), fits_here=fits_here)
        if not fits_here:
            return self._keep_asking(workload)
        has_place = self.round is not None and workload.uid in self.openings.seats
        placed = self.openings.take(workload.uid) if has_place else self._try(spec, shape, end, self._peers(workload))
        if placed is not None:
            self._note_start(workload, placed, end)
            beside = self._names(workload.status.measured.assigned, workload) if has_place else ()
            return [self._start(workload, placed, beside)]
        return self._keep_waiting(workload, end)

    def _start(self, workload: Workload, placed: tuple[Placement, ...], beside: Sequence[str] = ()) -> Change:
        """Return the change that starts a run where it was placed, with what is known of the risk of these nodes."""
        if workload.spec.checkpoint.every_auto:
            rate = gang_failures_per_day(self.snapshot, [part.node for part in placed], self.now)
            failures = replace(workload.status.failures, nodes_per_day=rate)
            workload = replace(workload, status=replace(workload.status, failures=failures))
        return started(workload, placed, self.now, self.snapshot.nodes, beside)

    def _lacks_nodes(self, workload: Workload) -> bool:
        """Return whether a gang fits no nodes only for their number: others may be away, for repair or an upgrade."""
        spec = workload.spec
        return spec.nodes > 1 and why_never(spec.at(1), self.snapshot.nodes) is None

    def _names(self, assigned: Assignment | None, workload: Workload) -> list[str]:
        """Return the names of the runs with which a run shares its GPUs."""
        uids = () if assigned is None else assigned.beside
        reader = self.making.reader(workload)
        return sorted(reader.name(run.spec) for run in self.snapshot.workloads if run.uid in uids) if uids else []

    def _passed_over(self, workload: Workload) -> Reason:
        if self.round is None:
            return explaining.passed_over(workload, self.rules.selection)
        if workload.uid in self.openings.seats:
            beside = self._names(self.round.assigned[workload.uid], workload)
            return explaining.goes_to(workload, self.openings.nodes_of(workload.uid), beside)
        return explaining.next_round(workload)

    def enlarge(self) -> dict[str, Change]:
        """Return the starts of elastic gangs that get more than their smallest size, by uid."""
        if self._keeps_back:
            return {}
        placed = {
            workload.uid: list(parts)
            for workload, parts in self.started
            if workload.spec.most_nodes is not None and not elastic.stays_small(workload.status)
        }
        gangs = [(workload, len(parts)) for workload, parts in self.started if workload.uid in placed]
        for uid, parts in elastic.share_out(gangs, self._one_more, self.ledger.share).items():
            placed[uid] += [replace(part, index=len(placed[uid]) + n) for n, part in enumerate(parts)]
        return {run.uid: self._start(run, tuple(placed[run.uid])) for run, _ in gangs}

    def grow(self, growable: Sequence[Workload], waiting: Sequence[Workload]) -> list[Change]:
        """Return changes of running gangs that stop to grow, or that record that they may grow soon."""
        gangs = [(run, run.gang.nodes) for run in growable if run.uid not in self.making.stopped]
        if not gangs:
            return []
        going = {workload.uid for workload, _ in self.started}
        left = [run.spec for run in waiting if run.uid not in going]
        growth = (
            {}
            if self._keeps_back or is_wanted(left, self.free, self.ledger)
            else elastic.share_out(gangs, self._one_more, self.ledger.share)
        )
        more = [(run, len(growth.get(run.uid, ()))) for run, _ in gangs]
        return [c for run, num in more for c in elastic.grow(run, num, self.making.live(run), self.durations, self.now)]

    @property
    def rules(self) -> SchedulingPolicy:
        """Return the scheduling policy of the queue."""
        return self.snapshot.rules

    @property
    def _keeps_back(self) -> bool:
        """Return whether free capacity is kept for pending runs."""
        return self.first is not None and (self.is_asking or self.rules.backfill is Backfill.NONE)

    def _one_more(self, workload: Workload) -> tuple[Placement, ...] | None:
        """Allocate one more node for an elastic gang."""
        one = workload.spec.at(1)
        if self.rules.fair and self.ledger.exceeds(one) is not None:
            return None
        length_s = self.durations.length_s(workload, self.now)
        more = replace(workload, spec=one)
        if self.budgets.refusal(more, length_s) is not None:
            return None
        end = self.now + length_s
        placed = self._try(one, shape_of(one, self.free.doors), end)
        if placed is not None:
            self.ledger.add(one)
            self.budgets.start(more, length_s)
        return placed

    def _peers(self, workload: Workload) -> Sequence[str]:
        """Return the nodes of the other replicas of the same endpoint; nothing for other runs."""
        if workload.parent is None or not self.snapshot.parents:
            return ()
        return nodes_of_peers(workload, self.holders, self.pods, self.started)

    def _try(self, spec: GangSpec, shape: Shape, end: float, peers: Sequence[str] = ()) -> tuple[Placement, ...] | None:
        """Place the run where it delays no promised start."""
        if self._is_too_large(spec, shape, end):
            return None
        passed = self._passed(spec, end)
        with self._keeping(passed):
            placed = place(spec, self.free, peers, shape)
        if placed is None:
            self.too_large.setdefault(shape, []).append((spec.nodes, passed))
        return placed

    @contextmanager
    def _keeping(self, passed: Iterable[int]) -> Iterator[None]:
        """Hold what has to stay free for these promises."""
        parts = [part for number in passed for part in self.claims[number].keeps]
        for node, grant in parts:
            self.free.hold(node, grant)
        try:
            yield
        finally:
            for node, grant in parts:
                self.free.hold(node, grant, -1)

    def _is_too_large(self, spec: GangSpec, shape: Shape, end: float) -> bool:
        """Return whether a run that was no larger found no room while at least as much was free."""
        tried = self.too_large.get(shape)
        if not tried:
            return False
        # A run that stays past a promised start has to leave free what is reserved for it; so did the earlier one.
        passed = self._passed(spec, end)
        return any(spec.nodes >= count and before <= passed for count, before in tried)

    def _passed(self, spec: GangSpec, end: float) -> frozenset[int]:
        """Return the numbers of the promises that a run passes which starts now.

        The start of another team's run is not passed on an estimate, which anybody may make as short as it takes, but
        on a limit only, at which the run is stopped.
        """
        sure = end if spec.max_duration_s is not None else math.inf
        return frozenset(
            number
            for number, claim in enumerate(self.claims)
            if self.now < claim.start < (end if claim.team == spec.team else sure)
        )

    def _note_start(self, workload: Workload, placed: tuple[Placement, ...], end: float) -> None:
        self.ledger.add(workload.spec)
        self.budgets.start(workload, end - self.now)
        self.stuck.clear()
        self.holders.append(workload)
        self.started.append((workload, placed))
        if self._timeline is not None:
            self._timeline.hold(workload.uid, [(item.node, item.grant) for item in placed], end)

    def _keep_asking(self, workload: Workload) -> list[Change]:
        """Request nodes, without which the run never starts; until then, later runs do not take them one by one."""
        first = self.first or workload
        reason = self._needs(workload)
        changes = self._wait(workload, reason, fits_here=False)
        if self.growing.is_asked_for(workload):
            self.first, self.is_asking = first, True
        return changes

    def _wait(self, workload: Workload, reason: Reason, *, fits_here: bool = True) -> list[Change]:
        waits = self.growing.wait(workload, reason, fits_here=fits_here)
        return wait(workload, waits.reason, self.now, asked_at=waits.asked_at, ask_again_at=waits.ask_again_at)

    def _keep_waiting(self, workload: Workload, end: float) -> list[Change]:
        """Promise the run a start, or make room for it, and record why it waits."""
        spec, now = workload.spec, self.now
        is_owed = workload.uid in self.owed
        if self.selected is not None and not is_owed and not is_scavenger(spec):
            return self._keep_selecting(workload, self.selected, end)
        if self.round is not None and not is_owed and not is_scavenger(spec):
            if workload.uid not in self.openings.seats:
                self.stuck.add((self.traits.of(workload).alike, 0.0))
            return self._wait(workload, self._passed_over(workload))
        is_first, self.first = self.first is None, self.first or workload
        if is_scavenger(spec) and self.rules.fair:
            return wait(workload, explaining.scavenger(workload), now)
        is_next = self._promises_more and not self.making.needs_no_promise(workload)
        is_early = is_next and not is_owed and self._is_early(workload)
        is_next = is_next and not is_early
        self.held_up.add(spec.team)
        promised = is_owed or is_next
        making, holders = self.making, self.holders
        if not promised and not making.may_ask(workload, holders) and not making.may_be_next(holders):
            if not is_first and self.snapshot.growth is None:
                self.stuck.add((self.traits.of(workload).alike, end))
            return self._wait(workload, self._turn(workload, is_early=is_early))
        timeline, shape, count, excluded = self.timeline, self.traits.of(workload).shape, spec.nodes, self._there
        claim = timeline.earliest(shape, count, end - now)
        promises = [part for other in self.claims for part in other.keeps]
        moves = making.moves(workload, claim, holders, excluded, timeline, self.free, promises) if promised else ()
        chosen: tuple[Victim, ...] = ()
        if not moves:
            chosen = making.victims(
                workload, claim, holders, excluded, timeline, is_owed=is_owed,
                may_replace_own=is_owed or self._may_replace_own(workload),
                comes_by=lambda victims: self._comes_by(workload, victims),
            )  # fmt: skip
        if moves or chosen:
            for run in [move.workload for move in moves]:
                timeline.end_by(run.uid, now + run.spec.grace_s + 1.0)
            for victim in chosen:
                until = now + victim.workload.spec.grace_s + 1.0
                if victim.keeps:
                    timeline.end_parts(victim.workload.uid, victim.parts, until)
                else:
                    timeline.end_by(victim.workload.uid, until)
            claim = timeline.earliest(shape, count, end - now)
        elif not promised and claim.start > making.gone_by(holders, timeline):
            return self._wait(workload, self._turn(workload, is_early=is_early))
        self.num_promised += is_next and not is_owed
        is_held = claim.start < math.inf or self._holds_for(workload, is_owed=is_owed)
        if is_held:
            if promised:
                self.promised.add(workload.uid)
            self._promise(claim, workload)
        elif self.num_passed < self.rules.most_promises:
            self.num_passed += is_next and not is_owed
        if moves:
            reason = self._needs(workload)
            reason = replace(
                reason, message=f"{reason.message}; {describe_makes_room(moves, self.making.reader(workload))}"
            )
            return [
                *self._wait(workload, reason),
                *(move_away(move, workload, self.pods, now, making.reader(move.workload)) for move in moves),
            ]
        reason = self._promised(workload, claim, chosen, is_owed=is_owed)
        if not is_held:
            reason = replace(reason, message=f"{reason.message}; other runs pass it meanwhile")
        return [*self._wait(workload, reason), *(making.stop(victim, workload, is_owed=is_owed) for victim in chosen)]

    @property
    def _promises_more(self) -> bool:
        """Return whether the next run that does not fit is promised a start."""
        return self.num_promised - self.num_passed < self.rules.num_promises

    def _holds_for(self, workload: Workload, *, is_owed: bool) -> bool:
        """Return whether room is held for a run with unknown start: by the rules, and if it may come at all.

        It may not while endpoints hold what it needs, which have no end, or nodes that it needs are closed.
        """
        if not (self.rules.holds_unknown or is_owed):
            return False
        shape, count = self.traits.of(workload).shape, workload.spec.nodes
        endless = [pod for replica in lasting(self.holders) for pod in self.making.live(replica)]
        empty = {node.name: NodeCapacity.of(node) for node in self.snapshot.nodes if node.closed is None}
        for pod in endless:
            if pod.node in empty:
                empty[pod.node].take(pod.grant)
        missing = count
        for room in empty.values():
            # A node that does not answer may be back in a moment.
            missing -= members(replace(room, node=replace(room.node, ready=True)), shape, missing)
            if missing <= 0:
                return True
        return False

    @property
    def _shares(self) -> Filling:
        """Return the shares of teams, with the runs that have started."""
        if self._filling is None:
            wanting = self.wanting or {run.spec.team for run in self.waiting if not is_scavenger(run.spec)}
            self._filling = Filling(self.ledger, wanting, self.now, self.snapshot.debts)
        return self._filling

    def _may_replace_own(self, workload: Workload) -> bool:
        """Return whether runs of its team may be stopped for a run: not to keep room that is others' in turn.

        A team that holds no more than its share may replace its own runs at any time. One that holds more may do so
        unless runs of other teams, which come before this one, wait for room.
        """
        team = workload.spec.team
        if self.held_up <= {team}:
            return True
        return self._shares.is_within_share(team)

    def _keep_selecting(self, workload: Workload, selected: Selected, end: float) -> list[Change]:
        """Make room for the run, if it is selected, by stopping runs that are not; and record why it waits."""
        now, making = self.now, self.making
        if workload.uid not in selected.chosen:
            self.stuck.add((self.traits.of(workload).alike, 0.0))
            return self._wait(workload, explaining.passed_over(workload, self.rules.selection))
        timeline, shape, count = self.timeline, self.traits.of(workload).shape, workload.spec.nodes
        # Over all runs, so that the value stays the same once the runs that are stopped for it have left.
        soon = now + max((run.spec.grace_s for run in self.snapshot.workloads), default=0.0) + 1.0
        chosen = making.outside(workload, selected.giving_way, self.holders, self._there, timeline, soon)
        if self._changes_choice(chosen) and not self._all_come_by(workload, chosen):
            return self._wait(workload, self._needs(workload))
        for victim in chosen:
            making.stopped.add(victim.workload.uid)
            timeline.end_by(victim.workload.uid, now + victim.workload.spec.grace_s + 1.0)
        claim = timeline.earliest(shape, count, end - now)
        again: tuple[Victim, ...] = ()
        if not chosen and claim.start > max(soon, making.gone_by(self.holders, timeline)):
            chosen, again = making.restarted(
                workload, selected.giving_way, selected.chosen, self.holders, self._there, timeline,
                soon=soon, starts_at=claim.start,
            )  # fmt: skip
            if not again or not self._all_come_by(workload, (*chosen, *again)):
                return self._wait(workload, self._needs(workload))
            for victim in (*chosen, *again):
                making.stopped.add(victim.workload.uid)
                timeline.end_by(victim.workload.uid, now + victim.workload.spec.grace_s + 1.0)
            making.spent_s += sum(victim.cost_s for victim in again)
            claim = timeline.earliest(shape, count, end - now)
        self.promised.add(workload.uid)
        self._promise(claim, workload)
        reason = self._promised(workload, claim, (*chosen, *again), is_owed=False)
        return [
            *self._wait(workload, reason),
            *(making.stop(victim, workload, is_owed=False) for victim in chosen),
            *(making.restart(victim, workload) for victim in again),
        ]

    def _needs(self, workload: Workload) -> Reason:
        """Return what the run needs, and the holders of what is not free."""
        known = self.making.known
        is_as_before = known is not None and not (self.started or self.kept or self.claims or self.making.stopped)
        key = self.traits.of(workload).alike, workload.status.queue.preempted_by, self.rules.shows_names
        if known is not None and is_as_before and key in known.needs:
            return known.needs[key]
        more = {name_of(run.spec) for run in (self.holders if known is None else self.holders[known.number :])}
        names = more if known is None else more.union(known.names)
        reason = explaining.needs(workload, self.timeline, names, self.making.reader(workload))
        if known is not None and is_as_before:
            known.needs[key] = reason
        return reason

    def _promised(self, workload: Workload, claim: Claim, chosen: Sequence[Victim], *, is_owed: bool) -> Reason:
        """Return the same, with the promised start."""
        known, uid = self.making.known, claim.after
        key = workload.spec, workload.status.queue.preempted_by, claim.start, uid, is_owed, self.rules.shows_names
        is_as_before = not (self.started or self.kept or chosen or self.making.stopped)
        if known is not None and is_as_before:
            before = known.reasons.get(workload.uid)
            if before is not None and before[0][0] is key[0] and before[0][1:] == key[1:]:
                return before[1]
        more = self.holders if known is None else self.holders[known.number :]
        last = next((run for run in more if run.uid == uid), None)
        if last is None and known is not None and uid is not None:
            last = known.runs.get(uid)
        needed = self._needs(workload)
        reader = self.making.reader(workload)
        reason = explaining.promised(needed, workload, claim, last, self.holders, chosen, reader, is_owed=is_owed)
        if known is not None and is_as_before:
            known.reasons[workload.uid] = key, reason
        return reason

    def _turn(self, workload: Workload, *, is_early: bool = False) -> Reason:
        """Return the reason for a run without a promise and for which no run is stopped."""
        if self.first is None or workload.uid == self.first.uid:
            needed = self._needs(workload)
            return explaining.too_wide(needed) if is_early else needed
        return explaining.behind(workload)

    def _comes_by(self, workload: Workload, victims: Sequence[Victim]) -> bool:
        """Return whether the run starts or has a promise once all runs that make room are gone."""
        if self.num_in_vain >= MOST_IN_VAIN:
            return False
        after = self._afterwards((*self.making.told, *victims), until={workload.uid})
        spec, now_anyway = workload.spec, {run.uid for run, _ in self.started}
        new = [run for run, _ in after.started if run.uid not in now_anyway]
        comes_by = any(run.uid == workload.uid for run in new) or (
            # Runs of its team that are owed the room go before it, and would be the next to be stopped for it.
            workload.uid in after.promised
            and not any(run.spec.team == spec.team and run.spec.priority <= spec.priority for run in new)
        )
        self.num_in_vain += not comes_by
        return comes_by

    def _all_come_by(self, workload: Workload, victims: Sequence[Victim]) -> bool:
        """Return whether the run and those restarted for it are selected and find room, once all of them have left."""
        if self.num_in_vain >= MOST_IN_VAIN:
            return False
        assert self.selected is not None, "nobody restarts where nobody is chosen"
        coming = {workload.uid} | {victim.workload.uid for victim in victims} & self.selected.chosen
        after = self._afterwards((*self.making.told, *victims), until=coming)
        # Room that any arriving run may use is available only once the last of the leaving runs has left.
        assert after.selected is not None
        comes_by = coming <= after.selected.chosen & ({run.uid for run, _ in after.started} | after.promised)
        self.num_in_vain += not comes_by
        return comes_by

    def _changes_choice(self, victims: Sequence[Victim]) -> bool:
        """Return whether others may be selected once the victims have left: their holdings count against quotas."""
        return bool(victims) and any(team.quota != Quota() for team in self.snapshot.teams)

    def _afterwards(self, victims: Sequence[Victim], *, until: Set[str]) -> "SchedulingPass":
        """Return the pass once all runs that make room are gone, when all runs of ``until`` have been considered."""
        rules, left = replace(self.rules, preempts=False, moves=False), set(until)
        seen, pods, pending = without(self.snapshot, self.pods, victims, self.now)
        after = SchedulingPass.of(replace(seen, rules=rules), pods, self.busy, self.now, traits=self.traits)
        leaving = {victim.workload.uid for victim in victims}
        after.complete(workload for workload in self.all_incomplete if workload.uid not in leaving)
        moved = {workload.uid for workload in self.waiting if workload.uid in after.kept}
        for run in self.waiting:
            if run.uid in moved:
                after.settle(run)
        for run in after.in_turn([*(workload for workload in self.waiting if workload.uid not in moved), *pending]):
            after.put_back(before=run)
            after.look_at(run)
            left.discard(run.uid)
            if not left:
                break
        return after

    def _promise(self, claim: Claim, workload: Workload) -> None:
        claim = replace(claim, team=workload.spec.team)
        gpu_milli = sum(len(grant.gpu_uuids) * grant.gpu_milli for _, grant in claim.keeps)
        cpu_milli = sum(grant.cpu_milli for _, grant in claim.keeps)
        if gpu_milli or cpu_milli:
            start, name = (None if claim.start == math.inf else claim.start), workload.spec.name
            self.held.append(
                HeldRoom(
                    uid=workload.uid, team=claim.team, name=name, gpu_milli=gpu_milli, cpu_milli=cpu_milli, start=start
                )
            )
        self.timeline.claim(claim)
        self.claims.append(claim)
        if not claim.parts:
            # It may start at any time, so what it keeps is held back from all other runs.
            for node, grant in claim.keeps:
                self.free.hold(node, grant)
            self.claims[-1] = replace(claim, keeps=())

    @property
    def _there(self) -> set[str]:
        """Return the uids of runs that may not be stopped any more in this pass."""
        return {run.uid for run, _ in self.started} | self.busy | self.making.stopped

    @property
    def timeline(self) -> Timeline:
        """Return the capacity over time, built on first use."""
        if self._timeline is None:
            if self.begins is not None:
                timeline = self.begins()
            else:
                known = {w.uid: self.durations.ends_at(w, self.pods[w.uid], self.now) for w in self.holders}
                timeline = Timeline.of(self.snapshot.nodes, self.snapshot.pods, known, self.now)
            for uid, seats in self.kept.items():
                timeline.hold(coming(uid), [(seat.node, seat.grant) for seat in seats], math.inf)
            for workload, placed in self.started:
                end = self.now + self.durations.length_s(workload, self.now)
                timeline.hold(workload.uid, [(item.node, item.grant) for item in placed], end)
            self._timeline = timeline
        return self._timeline


def _in_team(workload: Workload) -> tuple[int, float, str]:
    """Return the order in which runs of a team get room."""
    return -workload.spec.priority, workload.created_at, workload.uid


def _comes_before(incomplete: Workload, pending: Workload) -> bool:
    if is_scavenger(incomplete.spec) and not is_scavenger(pending.spec):
        return False
    return incomplete.spec.team != pending.spec.team or _in_team(incomplete) < _in_team(pending)


def _runs_on(workload: Workload, busy: frozenset[str]) -> bool:
    """Return whether it runs as intended and no other change was decided for it."""
    return (
        workload.status.phase is Phase.RUNNING and workload.intent is Intent.RUN and workload.uid not in busy
    )  # fmt: skip


def _other_layout(spec: GangSpec, snapshot: Snapshot) -> str | None:
    """Return the name of a layout in which nodes of this cluster would hold the run; None if they have no others."""
    if not snapshot.partitioned:
        return None
    return layout_for(spec, snapshot)


def _colocated(snapshot: Snapshot, cache: KnownFacts | None) -> list[Workload]:
    """Return runs with GPUs that they may share, by the rules and by their specs."""
    if snapshot.rules.selection is not Selection.LEAST_WORK:
        return []
    if cache is not None:
        return cache.ordered(cache.colocated)
    return [run for run in snapshot.workloads if is_colocated(run)]


def _only_seen(workload: Workload, seen: Workload) -> list[Change]:
    """Record the new status, if it differs and no other change does so."""
    if seen.status is workload.status:
        return []
    return [Change(workload_uid=workload.uid, version=workload.version, status=seen.status)]
