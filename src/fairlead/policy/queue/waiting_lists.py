"""Keeps pending runs in sorted lists, and yields them in order without those that cannot start.

Most runs of a long queue are alike: they have the same request, have never started, and wait their turn. Such runs form
a list by arrival time, which is their order for as long as they wait. A pass that has found no room for one of them
skips the others, whose status would not change. The order is that of ``fairlead.policy.queue.fair_order.fairly``: the
position of a run in its team follows from how many of each list precede it. So a pass costs its teams and lists, and a
look at each run that may start or is new.
"""

import heapq
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from operator import attrgetter

from fairlead.policy.placement.placement import why_never
from fairlead.policy.queue.ageing import AGEING_S, precedence
from fairlead.policy.queue.dominant_shares import Amounts
from fairlead.policy.queue.fair_order import NOTHING, Filling, Rank, filled
from fairlead.policy.queue.pending_reasons import behind, nodes_left, scavenger
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import Ledger, is_scavenger
from fairlead.policy.queue.spec_traits import SpecTraits, Traits
from fairlead.specs.gang import GangSpec
from fairlead.specs.training import Tier
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Workload

Precedence = tuple[int, float, str]


@dataclass(slots=True)
class Alike:
    """Runs that are equivalent for a pass, with the same result.

    Attributes:
        places: Their arrival times and uids, ascending; ``runs`` are in the same order.
        lacks_nodes: Whether they fit no nodes that are there, and say so.
    """

    traits: Traits
    lacks_nodes: bool = False
    places: list[tuple[float, str]] = field(default_factory=list)
    runs: list[Workload] = field(default_factory=list)

    def precedence(self, place: tuple[float, str], now: float) -> Precedence:
        """Return the sort key of a place among the runs of its team, as ``ageing.precedence`` does."""
        waited_s, priority = now - place[0], self.traits.spec.priority
        if priority < 0 or waited_s <= 0.0:
            return -priority, *place
        return -priority - int(waited_s / AGEING_S), *place

    def before(self, precedence: Precedence, now: float) -> int:
        """Count the runs of this list that precede a run of their team."""
        return bisect_left(self.places, precedence, key=lambda place: self.precedence(place, now))


class WaitingLists:
    """All pending runs, updated as runs change.

    Attributes:
        traits: The traits of their specs.
        alike: The lists, by what their runs have in common.
        others: Runs in no list, by uid.
    """

    def __init__(self, traits: SpecTraits) -> None:
        self.traits = traits
        self._lists: dict[str, tuple[Hashable, tuple[float, str]]] = {}
        self.alike: dict[Hashable, Alike] = {}
        self.others: dict[str, Workload] = {}

    def add(self, run: Workload) -> None:
        """Add a pending run."""
        if not _is_first_wait(run):
            self.others[run.uid] = run
            return
        spec, reason = run.spec, run.status.reason
        lacks_nodes = reason.code is Code.WAITING_FOR_RESOURCES and reason == self._nodes_left(run)
        if not lacks_nodes and reason != (scavenger(run) if is_scavenger(spec) else behind(run)):
            self.others[run.uid] = run
            return
        traits = self.traits.of(run)
        kind = traits.alike, traits.kind, spec.max_duration_s, spec.expected_duration_s, spec.grace_s, lacks_nodes
        line = self.alike.get(kind)
        if line is None:
            line = self.alike[kind] = Alike(traits, lacks_nodes)
        place = run.created_at, run.uid
        line.runs.insert(bisect_left(line.places, place), run)
        insort(line.places, place)
        self._lists[run.uid] = kind, place

    def _nodes_left(self, run: Workload) -> Reason | None:
        """Return the reason of a run that fits no nodes, however empty; None if it does."""
        if self.traits.of(run).alike in self.traits.known_to_fit:
            return None
        never = why_never(run.spec, self.traits.nodes)
        return None if never is None else nodes_left(never)

    def remove(self, uid: str) -> None:
        """Remove a run, if present."""
        if self.others.pop(uid, None) is not None or uid not in self._lists:
            return
        kind, place = self._lists.pop(uid)
        line = self.alike[kind]
        at = bisect_left(line.places, place)
        del line.places[at], line.runs[at]
        if not line.runs:
            del self.alike[kind]


@dataclass(slots=True)
class _Cursor:
    """A position in a list.

    Attributes:
        precedence: The sort key of the next run.
        num_passed: The number of runs already passed.
    """

    alike: Alike
    precedence: Precedence
    num_passed: int = 0


@dataclass(slots=True)
class _Team:
    """The remaining runs of one team, either its scavengers or the others.

    Attributes:
        held: The holdings of the team, including its single runs so far.
        singles: Runs in no list, in order, with ``num_told`` of them passed.
        lists: Lists with runs left.
        done: Lists of which no more runs are yielded, whether some are left or not.
    """

    held: Amounts = NOTHING
    singles: list[Workload] = field(default_factory=list)
    num_told: int = 0
    lists: list[_Cursor] = field(default_factory=list)
    done: list[Alike] = field(default_factory=list)

    def first(self, now: float) -> tuple[Precedence, _Cursor | None] | None:
        """Return the place of the next run, and its list if it is in one; None if there is none left."""
        cursor = min(self.lists, key=_precedence, default=None)
        if self.num_told < len(self.singles):
            place = precedence(self.singles[self.num_told], now)
            if cursor is None or place <= cursor.precedence:
                return place, None
        return None if cursor is None else (cursor.precedence, cursor)

    def next(self, cursor: _Cursor | None) -> Workload:
        """Return the next run, from that list if given."""
        return self.singles[self.num_told] if cursor is None else cursor.alike.runs[cursor.num_passed]

    def take(self, cursor: _Cursor | None, traits: SpecTraits, now: float) -> Workload:
        """Return the next run, from that list if given, and advance."""
        run = self.next(cursor)
        if cursor is None:
            self.num_told += 1
            self.held = self.held + traits.of(run).asks
            return run
        cursor.num_passed += 1
        if cursor.num_passed == len(cursor.alike.runs):
            self.lists.remove(cursor)
            self.done.append(cursor.alike)
        else:
            cursor.precedence = cursor.alike.precedence(cursor.alike.places[cursor.num_passed], now)
        return run

    def leave_out(self, idle: Callable[[Alike], bool]) -> None:
        """Skip the rest of the lists that are idle."""
        left = list[_Cursor]()
        for cursor in self.lists:
            if idle(cursor.alike):
                self.done.append(cursor.alike)
            else:
                left.append(cursor)
        self.lists = left

    def held_before(self, place: Precedence, now: float) -> Amounts:
        """Return what the team would hold if every run before that place had started."""
        held = self.held
        for cursor in self.lists:
            if cursor.num_passed:
                held = held + cursor.alike.traits.asks.times(cursor.num_passed)
        for run in self.done:
            held = held + run.traits.asks.times(run.before(place, now))
        return held


class Turns:
    """The pending runs at one time, in order.

    Attributes:
        owed: Uids of runs within their team's guarantee.
        wanting: Teams of all runs that are no scavengers.
    """

    def __init__(
        self,
        lists: WaitingLists,
        more: Iterable[Workload],
        apart: Collection[str],
        ledger: Ledger,
        standing: Standing,
        debts: Mapping[str, float] | None = None,
    ) -> None:
        """Prepare the order.

        Args:
            more: Pending runs that are not in the lists.
            apart: Teams of which no run is skipped.
            ledger: The current holdings; modified, so not usable afterwards.
            debts: As for ``fairly``.
        """
        self._now, self._traits = standing.now, lists.traits
        singles = [*lists.others.values(), *more]
        shared = list[Alike]()
        for line in lists.alike.values():
            if line.traits.spec.team in apart:
                singles += line.runs
            else:
                shared.append(line)
        owed = defaultdict[str, list[Workload]](list)
        self._borrowing = defaultdict[str, _Team](_Team)
        self._scavengers = defaultdict[str, _Team](_Team)
        after = ledger.copy()
        for run in standing.in_order(singles):
            spec = run.spec
            if not is_scavenger(spec) and spec.team in ledger.teams and after.is_owed(spec):
                owed[spec.team].append(run)
                after.add(spec)
            else:
                self._teams_of(spec)[spec.team].singles.append(run)
        for line in shared:
            cursor = _Cursor(line, line.precedence(line.places[0], self._now))
            self._teams_of(line.traits.spec)[line.traits.spec.team].lists.append(cursor)
        wanting, debts = frozenset((*owed, *self._borrowing)), debts or {}
        of_scavengers = ledger.of_scavengers() if self._scavengers else ledger
        self._idle = Filling(of_scavengers, self._scavengers, self._now, debts)
        self._owed = filled(owed, Filling(ledger, wanting, self._now, debts), self._traits) if owed else []
        self._filling = Filling(after, wanting, self._now, debts)
        self.wanting = wanting
        self.owed = frozenset(entry.uid for entry in self._owed)

    def runs(
        self,
        idle: Callable[[Alike], bool],
        held_up: Set[str],
        over: Callable[[Iterable[Alike], Collection[Workload]], bool],
    ) -> Iterator[Workload]:
        """Yield all runs, except those of lists that are idle when their turn comes.

        Args:
            idle: Returns whether considering any run of a list would change nothing; stays true once it is.
            held_up: Teams of which a run has found no room yet; grows meanwhile. Their idle lists need no turn.
            over: Returns whether none of the runs that are left starts, whatever their order: those of lists, all of
                which stay as they are then, and single ones.
        """
        yield from self._owed
        is_over = False

        def stays(alike: Alike) -> bool:
            return is_over or idle(alike)

        for teams, filling, behind_turn in (
            (self._borrowing, self._filling, held_up),
            (self._scavengers, self._idle, self._scavengers.keys()),
        ):
            for run in self._in_turn(teams, filling, stays, behind_turn):
                yield run
                singles = self._singles_left()
                is_over = is_over or over(self._lists_left(), singles)
                if is_over and len(singles) < 2:
                    yield from singles
                    return

    def _lists_left(self) -> Iterator[Alike]:
        teams = (*self._borrowing.values(), *self._scavengers.values())
        return (cursor.alike for team in teams for cursor in team.lists)

    def _singles_left(self) -> list[Workload]:
        teams = (*self._borrowing.values(), *self._scavengers.values())
        return [run for team in teams for run in team.singles[team.num_told :]]

    def _teams_of(self, spec: GangSpec) -> defaultdict[str, _Team]:
        return self._scavengers if is_scavenger(spec) else self._borrowing

    def _in_turn(
        self, teams: Mapping[str, _Team], filling: Filling, idle: Callable[[Alike], bool], held_up: Set[str]
    ) -> Iterator[Workload]:
        heap = list[tuple[Rank, float, str, str]]()
        for name, team in teams.items():
            team.held = filling.ledger.held.get(name, NOTHING)
            self._push(heap, name, team, filling)
        while heap:
            name = heap[0][-1]
            team = teams[name]
            first = team.first(self._now)
            assert first is not None, "a team without runs is not in the heap"
            _, cursor = first
            if cursor is not None and idle(cursor.alike):
                team.leave_out(idle)
            else:
                yield team.take(cursor, self._traits, self._now)
                if name in held_up:
                    team.leave_out(idle)
            heapq.heappop(heap)
            self._push(heap, name, team, filling)

    def _push(self, heap: list[tuple[Rank, float, str, str]], name: str, team: _Team, filling: Filling) -> None:
        """Push a team by its next run, as ``fair_order`` sorts them; omit it if none is left."""
        first = team.first(self._now)
        if first is None:
            return
        place, cursor = first
        run = team.next(cursor)
        traits = self._traits.of(run) if cursor is None else cursor.alike.traits
        filling.ledger.held[name] = team.held_before(place, self._now)
        rank = filling.rank(run.spec, traits.asks, run.status)
        heapq.heappush(heap, (rank, run.created_at, run.uid, name))


_precedence = attrgetter("precedence")


def _is_first_wait(run: Workload) -> bool:
    """Return whether a run has never started or requested nodes, so that its arrival determines its place."""
    spec, status = run.spec, run.status
    return (
        status.since == run.created_at
        and status.queue.raised == 0
        and status.queue.nodes_requested_at is None
        and status.queue.request_again_at is None
        and status.started_at is None
        and status.run_time.saved_s == 0.0
        and spec.most_nodes is None
        and spec.max_cost is None
        and not spec.capacity.auto
        and spec.capacity.tier is not Tier.OVERFLOW
        and run.parent is None
    )
