"""Keeps facts about runs between passes, so that the cost of a pass depends on what changed and not on the total.

The facts of a run hold as long as its objects are in the snapshot: values are immutable, so comparing objects by
identity finds all changes. Nothing here decides: a pass comes to the same plan with or without a cache, which a
property test in ``tests/policy`` checks.
"""

import heapq
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from itertools import chain, compress, islice, pairwise, repeat
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, TypeVar

from fairlead.deferred import deferred
from fairlead.frozen import dataclass
from fairlead.policy.disruption.aftermath import makes_room
from fairlead.policy.disruption.defragmentation import can_resume
from fairlead.policy.disruption.eviction import HolderFacts
from fairlead.policy.disruption.migration import is_moving
from fairlead.policy.disruption.node_reclaims import leaving
from fairlead.policy.health.node_risk import risks_of
from fairlead.policy.kinds import checkpoint_health
from fairlead.policy.kinds.silent_nodes import silent
from fairlead.policy.next_decision import depends_on_time
from fairlead.policy.placement.free_capacity import rooms
from fairlead.policy.placement.placement import FreeCapacity
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.placement.task_mix import TaskMix, settled_size
from fairlead.policy.queue.dominant_shares import Amounts, ClusterCapacity, asked, capacity
from fairlead.policy.queue.durations import Durations
from fairlead.policy.queue.idle_pass import IdlePass, is_same_to_queue, only_begins, queue_facts
from fairlead.policy.queue.occupancy import Occupancy
from fairlead.policy.queue.quotas import Ledger, is_scavenger
from fairlead.policy.queue.run_names import Name, name_of
from fairlead.policy.queue.spec_traits import SpecTraits
from fairlead.policy.queue.timeline import Timeline
from fairlead.policy.queue.waiting_lists import WaitingLists
from fairlead.policy.selection.slowdowns import is_colocated
from fairlead.specs.workload import Kind
from fairlead.state.plan import Plan
from fairlead.state.reasons import Code, Reason
from fairlead.state.scheduling_policy import Selection
from fairlead.state.snapshot import Intent, Phase, Pod, PodPhase, Snapshot, Workload

if TYPE_CHECKING:
    from fairlead.policy.placement import packed_capacity
    from fairlead.policy.placement.packed_capacity import Holdings
else:
    packed_capacity = deferred("fairlead.policy.placement.packed_capacity")

Item = TypeVar("Item")
_uid = attrgetter("uid")
# Objects are compared in blocks of these sizes; after a difference, a match is searched this far ahead.
BLOCKS = (512, 64, 8)
AHEAD = 16
# A run is judged again this long before its time is over, because the sum of two times is not exact.
EARLY_S = 1.0
# Outdated entries of the heap are removed once there are more entries than this and most of them are outdated.
LEAST_TIMES = 64
_RUN, _PENDING, _RUNNING, _POD_RUNNING = Intent.RUN, Phase.PENDING, Phase.RUNNING, PodPhase.RUNNING


@dataclass(frozen=True, slots=True)
class _Part:
    """The contribution of a run to the sums over all runs that hold something."""

    team: str
    name: Name
    amounts: Amounts
    is_scavenger: bool
    priority: int


class PassCache:
    """Facts about the last seen snapshot; used by one loop and one thread.

    Attributes:
        runs: All leaves, by uid.
        pods: Pods of each workload, of all attempts, by attempt and index.
        waiting: Runs that only wait to be placed, by uid.
        judged: Runs that have to be judged at each pass, by uid.
        colocated: Runs that have GPUs which they may share, by uid.
        automatic: Runs that choose their kind of capacity themselves, by uid.
        timed: Runs whose decisions time alone may change, by uid.
        warned: Pending and judged runs with a warning, by uid.
        queue_version: Rises with each change that a pass over the queue may notice.
        idle_pass: The last pass over the queue, if it started and stopped nothing.
        traits: Traits of the specs of pending runs.
        lists: The same runs as ``waiting``, in the part of their order that time does not change.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._seen: Snapshot | None = None
        self._left_alone = frozenset[str]()
        self.runs: dict[str, Workload] = {}
        self.pods: defaultdict[str, list[Pod]] = defaultdict(list)
        self.waiting: dict[str, Workload] = {}
        self.judged: dict[str, Workload] = {}
        self.automatic: dict[str, Workload] = {}
        self.colocated: dict[str, Workload] = {}
        self.timed: dict[str, Workload] = {}
        self.warned: dict[str, Workload] = {}
        self.queue_version = 0
        self.idle_pass: IdlePass | None = None
        # Reasons that follow from what holders hold, as in ``HolderFacts``.
        self._reasons: dict[str, tuple[tuple[Hashable, ...], Reason]] = {}
        self._needs: dict[tuple[Hashable, ...], Reason] = {}
        self._moving: dict[str, Workload] = {}
        self._quiet_until: list[tuple[float, str]] = []
        self._until: dict[str, float] = {}
        self._parts: dict[str, _Part] = {}
        # Runs with a part, in the order of the snapshot, and their uids; None until computed.
        self._held: list[Workload] | None = None
        self._held_uids: list[str] = []
        # The number of runs with a part that go by a name.
        self._names = Counter[Name]()
        # Whether the snapshot is in the order of uids, so that a place in it follows from the uid.
        self._is_by_uid = False
        self._sums = Ledger({}, ClusterCapacity(), {}, {})
        # The number of runs that hold something, by team and priority; scavengers count for no team.
        self._priorities = Counter[tuple[str, int]]()
        self._leaving: dict[str, None] = {}
        self._may_resume: set[str] = set()
        self._mix = _Mix()
        self._holdings: Holdings | None = None
        self._occupancy: Occupancy | None = None
        self._going: frozenset[str] = frozenset()
        self.traits = SpecTraits(())
        self.lists = WaitingLists(self.traits)

    def forget(self) -> None:
        """Start from scratch with the next snapshot, as after an error in the middle of a pass."""
        self._begin()

    def look(self, snapshot: Snapshot, left_alone: frozenset[str] | None = None) -> None:
        """Update everything to a snapshot.

        Args:
            left_alone: Uids of runs that are neither judged nor started, though they hold what they hold; None for
                those of the last call.
        """
        left_alone = self._left_alone if left_alone is None else left_alone
        last, others = self._seen, left_alone ^ self._left_alone
        if snapshot is last and not others:
            return
        if last is not None and not others and (snapshot.workloads, snapshot.pods, snapshot.nodes) == (
            last.workloads, last.pods, last.nodes
        ):  # fmt: skip
            self._seen = snapshot
            return
        if last is None or snapshot.nodes != last.nodes:
            self._begin()
            self._going = leaving(snapshot.nodes) | silent(snapshot.nodes)
            self.traits = SpecTraits(snapshot.nodes)
            self.lists = WaitingLists(self.traits)
            self._sums = Ledger({}, capacity(snapshot.nodes), {}, {})
            gone_pods, new_pods = list[Pod](), list(snapshot.pods)
            gone, new = list[Workload](), list(snapshot.workloads)
            self._is_by_uid = all(a.uid < b.uid for a, b in pairwise(new))
        else:
            gone_pods, new_pods = differences(last.pods, snapshot.pods)
            gone, new = differences(last.workloads, snapshot.workloads)
            self._is_by_uid = self._is_by_uid and _are_in_place(new, snapshot.workloads)
        # If this raises, the next call starts from scratch.
        self._seen, self._left_alone = None, left_alone
        touched = dict[str, None]()
        for pod in gone_pods:
            self.pods[pod.workload_uid].remove(pod)
            touched[pod.workload_uid] = None
        for pod in new_pods:
            self.pods[pod.workload_uid].append(pod)
            touched[pod.workload_uid] = None
        if self._holdings is not None:
            self._holdings.change(gone_pods, new_pods)
        for uid in touched:
            self.pods[uid].sort(key=_place_in_gang)
            if not self.pods[uid]:
                del self.pods[uid]
        for run in gone:
            self.runs.pop(run.uid, None)
            touched[run.uid] = None
        for run in new:
            self.runs[run.uid] = run
            touched[run.uid] = None
        if not self._is_by_uid:
            self._held = None
        touched |= dict.fromkeys(uid for uid in others if uid in self.runs)
        before, of_pods = {run.uid: run for run in gone}, {pod.workload_uid for pod in (*gone_pods, *new_pods)}
        of_pods |= others
        could_resume, is_other = bool(self._may_resume), queue_facts(gone_pods) != queue_facts(new_pods)
        holds_other = is_other
        for uid in touched:
            old, new_run = before.get(uid), self.runs.get(uid)
            if uid in self.waiting and old and new_run and uid not in of_pods and is_same_to_queue(old, new_run):
                self._renew(new_run)
                continue
            held_before, was_queued = uid in self._parts, uid in self.waiting or uid in self._moving
            self._note(uid)
            self._note_holder(uid, held_before)
            is_queued, holds = uid in self.waiting or uid in self._moving, uid in self._parts
            if (is_queued, holds) != (was_queued, held_before) or (
                (is_queued or holds) and old and new_run and not is_same_to_queue(old, new_run)
            ):
                is_other, holds_other = True, holds_other or holds or held_before
        if holds_other:
            self._reasons.clear()
            self._needs.clear()
        if is_other or could_resume is not bool(self._may_resume):
            self.queue_version += 1
        if self._occupancy is not None:
            self._occupancy.changed(touched)
        self._seen = snapshot

    def _renew(self, run: Workload) -> None:
        """Take in a pending run of which only the reason has changed."""
        self.waiting[run.uid] = run
        for runs in (self.automatic, self.timed, self.warned):
            if run.uid in runs:
                runs[run.uid] = run
        self.lists.remove(run.uid)
        self.lists.add(run)

    def due(self, now: float) -> None:
        """Mark the runs for judgement that were quiet only until now."""
        while self._quiet_until and self._quiet_until[0][0] <= now:
            at, uid = heapq.heappop(self._quiet_until)
            if self._until.get(uid) == at:
                del self._until[uid]
                self.judged[uid] = self.runs[uid]

    def is_last(self, plan: Plan, snapshot: Snapshot, now: float) -> bool:
        """Return whether a pass at the same time would change nothing, once all of the plan of this one is applied.

        So it is if the plan only records why runs wait, as the pass over the queue came to it, and that ranks began of
        runs that need no judgement from then on. Whatever else may follow from a change is not considered: then the
        answer is no.
        """
        if (
            not plan.changes
            or plan.failures
            or plan.standby is not None
            or plan.partitioning
            or snapshot.parents
            or snapshot.growth is not None
            or snapshot.partitioned
            or snapshot.spending is not None
            or snapshot.rules.selection is not Selection.NONE
            or self._left_alone
            or self.automatic
        ):
            return False
        idle = self.idle_pass
        if self.waiting and (idle is None or idle.now != now or idle.version != self.queue_version):
            return False
        for change in plan.changes:
            run = self.runs[change.workload_uid]
            if run.uid in self.waiting:
                # ``IdlePass.of`` has seen that this is all that changes.
                if idle is None or change.status is None or idle.reasons.get(run.uid) is not change.status.reason:
                    return False
                continue
            begun, pods = only_begins(run, change), self.pods.get(run.uid, ())
            if begun is None or any(pod.node in self._going for pod in pods):
                return False
            until = quiet_until(begun, pods)
            if until is None or until <= now:
                return False
        return True

    def with_pods(self, teams: Set[str]) -> dict[str, Workload]:
        """Return the runs of some teams that have pods and are not left alone, by uid."""
        runs = {uid: self.runs[uid] for uid in self.pods if uid in self.runs and uid not in self._left_alone}
        return {uid: run for uid, run in runs.items() if run.spec.team in teams}

    def ordered(self, by_uid: Mapping[str, Workload]) -> list[Workload]:
        """Return these runs in the order of the snapshot."""
        if len(by_uid) < 2:
            return list(by_uid.values())
        if self._is_by_uid:
            return sorted(by_uid.values(), key=_uid)
        assert self._seen is not None
        return [run for run in self._seen.workloads if run.uid in by_uid]

    def moving(self) -> list[Workload]:
        """Return the runs that are moving, in the order of the snapshot."""
        return self.ordered(self._moving)

    def holders(self, reserved: Iterable[str]) -> list[Workload]:
        """Return all runs that hold something and those with reserved places."""
        if any(uid not in self._parts for uid in reserved):
            return self.ordered({uid: self.runs[uid] for uid in (*self._parts, *reserved)})
        if self._held is None:
            assert self._seen is not None
            self._held = [run for run in self._seen.workloads if run.uid in self._parts]
            self._held_uids = [run.uid for run in self._held]
        return list(self._held)

    def holder_facts(self, holders: Sequence[Workload]) -> HolderFacts:
        """Return facts about the runs that ``holders`` returned."""
        least, leaving = dict[str, int](), list(self._leaving)
        names = set[Name]() if len(holders) != len(self._parts) else None
        for team, priority in self._priorities:
            least[team] = min(least.get(team, priority), priority)
        if len(holders) != len(self._parts):
            # Runs with reserved places that no longer hold anything.
            for run in holders:
                if run.uid not in self._parts:
                    assert names is not None
                    names.add(name_of(run.spec))
                    team = "" if is_scavenger(run.spec) else run.spec.team
                    least[team] = min(least.get(team, run.spec.priority), run.spec.priority)
                    if makes_room(run, Code.PREEMPTED, Code.RESIZED):
                        leaving.append(run.uid)
        return HolderFacts(
            number=len(holders),
            least=least,
            leaving=tuple(leaving),
            may_resume=bool(self._may_resume),
            names=self._names.keys() if names is None else names.union(self._names),
            runs=self.runs,
            reasons=self._reasons,
            needs=self._needs,
        )

    def timeline(self, durations: Durations, now: float) -> Timeline:
        """Return a timeline of capacity, which one pass may modify."""
        assert self._seen is not None
        if self._occupancy is None:
            self._occupancy = Occupancy(self._seen.nodes)
            self._occupancy.changed(self.pods)
        self._occupancy.refresh(self._parts, self.runs, self.pods, durations, now)
        return Timeline.since(self._occupancy, now)

    def ledger(self, reserved: Iterable[str]) -> Ledger:
        """Return the holdings of each team, including those of runs with reserved places."""
        assert self._seen is not None
        ledger = self._sums.copy()
        ledger.teams = {team.name: team for team in self._seen.teams}
        for uid in reserved:
            if uid not in self._parts:
                ledger.add(self.runs[uid].gang)
        return ledger

    def rooms(self, snapshot: Snapshot, now: float) -> FreeCapacity:
        """Return the free capacity, which one pass may modify."""
        if len(snapshot.nodes) < 2:
            return rooms(snapshot.nodes, snapshot.pods)

        if self._holdings is None:
            self._holdings = packed_capacity.Holdings(snapshot.nodes, snapshot.pods)
        return packed_capacity.PackedRooms(self._holdings.copy(), self._mix.settled(), risks_of(snapshot, now))

    def _note(self, uid: str) -> None:
        """Recompute everything kept about one run."""
        for runs in (
            self.waiting, self.judged, self.automatic, self.colocated, self.timed, self.warned, self._moving
        ):  # fmt: skip
            runs.pop(uid, None)
        self.lists.remove(uid)
        self._until.pop(uid, None)
        self._leaving.pop(uid, None)
        self._may_resume.discard(uid)
        run, pods = self.runs.get(uid), self.pods.get(uid, ())
        self._mix.note(uid, run)
        self._count(uid, run, pods)
        if run is None:
            self.traits.forget(uid)
            if not pods:
                self.pods.pop(uid, None)
            return
        if run.status.warning.reason is not None:
            self.warned[uid] = run
        if run.spec.capacity.auto:
            self.automatic[uid] = run
        if is_colocated(run):
            self.colocated[uid] = run
        if depends_on_time(run):
            self.timed[uid] = run
        if uid in self._parts and makes_room(run, Code.PREEMPTED, Code.RESIZED):
            self._leaving[uid] = None
        if can_resume(run):
            self._may_resume.add(uid)
        if is_moving(run):
            self._moving[uid] = run
        if uid in self._left_alone:
            return
        if not pods and only_waits(run):
            self.waiting[uid] = run
            self.lists.add(run)
            return
        until = quiet_until(run, pods)
        if until is None or any(pod.node in self._going for pod in pods):
            self.judged[uid] = run
        elif until < math.inf:
            self._until[uid] = until
            heapq.heappush(self._quiet_until, (until, uid))
            if len(self._quiet_until) > max(LEAST_TIMES, 2 * len(self._until)):
                # Every report of a run leaves an outdated entry, which would stay for as long as the run may last.
                self._quiet_until = [(at, entry) for entry, at in self._until.items()]
                heapq.heapify(self._quiet_until)

    def _note_holder(self, uid: str, held_before: bool) -> None:
        """Update the list of holders after a change of a run."""
        holds = uid in self._parts
        if self._held is None or not (held_before or holds):
            return
        if not self._is_by_uid:
            self._held = None
            return
        place = bisect_left(self._held_uids, uid)
        if held_before and holds:
            self._held[place] = self.runs[uid]
        elif holds:
            self._held.insert(place, self.runs[uid])
            self._held_uids.insert(place, uid)
        else:
            del self._held[place], self._held_uids[place]

    def _count(self, uid: str, run: Workload | None, pods: Sequence[Pod]) -> None:
        """Update the sums of holdings of teams to what a run holds now."""
        before, after = self._parts.pop(uid, None), None
        if run is not None and run.spec.engine is None and any(not pod.phase.is_final for pod in pods):
            gang = run.gang
            after = _Part(gang.team, name_of(gang), asked(gang, self._sums.whole), is_scavenger(gang), gang.priority)
            self._parts[uid] = after
        if before == after:
            return
        for part, times in ((before, -1), (after, 1)):
            if part is None:
                continue
            self._names[part.name] += times
            if not self._names[part.name]:
                del self._names[part.name]
            asks = "" if part.is_scavenger else part.team, part.priority
            self._priorities[asks] += times
            if not self._priorities[asks]:
                del self._priorities[asks]
            sums = (self._sums.bound,) if part.is_scavenger else (self._sums.bound, self._sums.held)
            for amounts_of_team in sums:
                amounts_of_team[part.team] = amounts_of_team.get(part.team, Amounts()) + part.amounts.times(times)
                if amounts_of_team[part.team] == Amounts():
                    del amounts_of_team[part.team]


def only_waits(workload: Workload) -> bool:
    """Return whether a run only waits to be placed, given that it has no pods; true of most runs of a long queue."""
    status = workload.status
    return (
        status.phase is _PENDING
        and workload.intent is _RUN
        and workload.spec.engine is None
        and workload.spec.max_cost is None
        and workload.preparation is None
        and status.failures.retry_at is None
        and (status.measured.requests is not None or not workload.spec.resources.is_auto)
        and (status.started_at is None or workload.spec.max_duration_s is None)
    )


def quiet_until(workload: Workload, pods: Sequence[Pod]) -> float | None:
    """Return the time until which a run stays as intended if nothing happens to it; None if it has to be judged."""
    spec, status = workload.spec, workload.status
    if (
        status.phase is not _RUNNING
        or workload.intent is not _RUN
        or spec.kind == Kind.WORKSPACE
        or spec.max_cost is not None
        or spec.stall_timeout_s is not None
        or status.size.nodes is not None
        or status.warning.reason is not None
        or workload.idle is not None
        or (workload.progress is not None and workload.progress.slow_rank is not None)
        or (status.failures.lost_pods and status.reason.code is not Code.RANKS_STARTED)
        or len(pods) != spec.nodes
    ):
        return None
    for pod in pods:
        if pod.phase is not _POD_RUNNING or pod.exits or pod.attempt != status.attempt:
            return None
    late_at = checkpoint_health.late_at(workload)
    if late_at is None or (spec.max_duration_s is not None and status.started_at is None):
        return None
    over_at = math.inf if spec.max_duration_s is None else (status.started_at or 0.0) + spec.max_duration_s
    return min(late_at, over_at) - EARLY_S


def _are_in_place(some: Sequence[Workload], runs: Sequence[Workload]) -> bool:
    """Return whether runs are in the order of their uids, if those that are not among ``some`` are."""
    for run in some:
        place = bisect_left(runs, run.uid, key=_uid)
        if place == len(runs) or runs[place] is not run:
            return False
        if place and runs[place - 1].uid >= run.uid:
            return False
        if place + 1 < len(runs) and runs[place + 1].uid <= run.uid:
            return False
    return True


def differences(old: Sequence[Item], new: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Return the removed and the added items, by identity; an item that only moved may be in both.

    Comparing two sequences that differ in a few places takes a few nanoseconds per item.
    """
    gone, come = list[Item](), list[Item]()
    if len(old) == len(new):
        for at in range(0, len(old), BLOCKS[0]):
            before, after = old[at : at + BLOCKS[0]], new[at : at + BLOCKS[0]]
            if before != after:
                gone += compress(before, map(is_not, before, after))
                come += compress(after, map(is_not, before, after))
                if len(come) > AHEAD:
                    break
        else:
            return gone, come
        gone.clear()
        come.clear()
    i = j = 0
    while i < len(old) and j < len(new):
        for size in BLOCKS:
            while i + size <= len(old) and j + size <= len(new) and old[i : i + size] == new[j : j + size]:
                i, j = i + size, j + size
        while i < len(old) and j < len(new) and old[i] is new[j]:
            i, j = i + 1, j + 1
        if i == len(old) or j == len(new):
            break
        step = _resume(old, new, i, j)
        if step is None:
            break
        gone += old[i : i + step[0]]
        come += new[j : j + step[1]]
        i, j = i + step[0], j + step[1]
    return gone + list(old[i:]), come + list(new[j:])


def _resume(old: Sequence[Item], new: Sequence[Item], i: int, j: int) -> tuple[int, int] | None:
    """Return the number of items to skip in each sequence until they match again; None if no match is near."""
    for step in range(1, AHEAD):
        if i + step < len(old) and old[i + step] is new[j]:
            return step, 0
        if j + step < len(new) and new[j + step] is old[i]:
            return 0, step
        if i + step < len(old) and j + step < len(new) and old[i + step] is new[j + step]:
            return step, step
    return None


def _place_in_gang(pod: Pod) -> tuple[int, int]:
    return pod.attempt, pod.index


class _Mix:
    """The shapes requested by the pods of all runs, oldest first; shapes are stored by number."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[float, str]] = {}
        self._order: list[tuple[float, str]] = []
        self._asked: list[int] = []
        self._counts: list[int] = []
        self._numbers: dict[Shape, int] = {}
        self._shapes: list[Shape] = []
        self._num = 0
        self._settled: TaskMix | None = None

    def note(self, uid: str, run: Workload | None) -> None:
        """Record the request of a run, or remove the run."""
        place = self._places.get(uid)
        if place is None and run is None:
            return
        wanted = count = 0
        if run is not None:
            wanted, count = self._number(Shape.of(run.spec.resources)), run.status.size.nodes or run.spec.nodes
        if place is not None:
            at = bisect_left(self._order, place)
            if run is not None and (place, self._asked[at], self._counts[at]) == ((run.created_at, uid), wanted, count):
                return
            self._num -= self._counts[at]
            del self._order[at], self._asked[at], self._counts[at], self._places[uid]
        if run is not None:
            place = self._places[uid] = (run.created_at, uid)
            at = bisect_left(self._order, place)
            self._order.insert(at, place)
            self._asked.insert(at, wanted)
            self._counts.insert(at, count)
            self._num += count
        self._settled = None

    def settled(self) -> TaskMix:
        """Return the same as ``fairlead.policy.placement.task_mix.settled_mix``."""
        if self._settled is None:
            pods = chain.from_iterable(map(repeat, self._asked, self._counts))
            self._settled = TaskMix()
            for number, count in Counter(islice(pods, settled_size(self._num))).items():
                self._settled.observe(self._shapes[number], count)
        return self._settled

    def _number(self, shape: Shape) -> int:
        number = self._numbers.setdefault(shape, len(self._shapes))
        if number == len(self._shapes):
            self._shapes.append(shape)
        return number
