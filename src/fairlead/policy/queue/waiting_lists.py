"""Keeps pending runs in sorted lists, and yields them in order without those that cannot start.

Most runs of a long queue are alike: they have the same request, have never started, and wait their turn. Such runs form
a list by arrival time, which is their order for as long as they wait. A pass that has found no room for one of them
skips the others, whose status would not change. The order is that of ``fairlead.policy.queue.fair_order.fairly``: the
position of a run in its team follows from how many of each list precede it. So a pass costs its teams and lists, and a
look at each run that may start or is new.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from fairlead.policy.queue.ageing import AGEING_S, precedence
from fairlead.policy.queue.dominant_shares import Amounts
from fairlead.policy.queue.fair_order import FAIR_S, NOTHING
from fairlead.policy.queue.pending_reasons import behind, scavenger
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import Ledger, is_scavenger
from fairlead.policy.queue.spec_traits import SpecTraits, Traits
from fairlead.specs.training import Tier
from fairlead.state.snapshot import Workload

Precedence = tuple[int, float, str]


@dataclass(slots=True)
class Alike:
    """Runs that are equivalent for a pass, with the same result.

    Attributes:
        places: Their arrival times and uids, ascending; ``runs`` are in the same order.
    """

    traits: Traits
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
        if not _is_plain(run):
            self.others[run.uid] = run
            return
        traits, spec = self.traits.of(run), run.spec
        kind = traits.alike, traits.kind, spec.max_duration_s, spec.expected_duration_s, spec.grace_s
        found = self.alike.get(kind)
        if found is None:
            found = self.alike[kind] = Alike(traits)
        place = run.created_at, run.uid
        found.runs.insert(bisect_left(found.places, place), run)
        insort(found.places, place)
        self._lists[run.uid] = kind, place

    def remove(self, uid: str) -> None:
        """Remove a run, if present."""
        if self.others.pop(uid, None) is not None or uid not in self._lists:
            return
        kind, place = self._lists.pop(uid)
        found = self.alike[kind]
        at = bisect_left(found.places, place)
        del found.places[at], found.runs[at]
        if not found.runs:
            del self.alike[kind]


@dataclass(slots=True)
class _Cursor:
    """A position in a list: the number of runs already passed."""

    alike: Alike
    told: int = 0

    def precedence(self, now: float) -> Precedence:
        """Return the sort key of the next run."""
        return self.alike.precedence(self.alike.places[self.told], now)


@dataclass(slots=True)
class _Team:
    """The remaining runs of one team, or all scavengers.

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
        found: tuple[Precedence, _Cursor | None] | None = None
        if self.num_told < len(self.singles):
            found = precedence(self.singles[self.num_told], now), None
        for cursor in self.lists:
            place = cursor.precedence(now)
            if found is None or place < found[0]:
                found = place, cursor
        return found

    def take(self, cursor: _Cursor | None, traits: SpecTraits) -> Workload:
        """Return the next run, from that list if given, and advance."""
        if cursor is None:
            run = self.singles[self.num_told]
            self.num_told += 1
            self.held = self.held + traits.of(run).asks
            return run
        run = cursor.alike.runs[cursor.told]
        cursor.told += 1
        if cursor.told == len(cursor.alike.runs):
            self.lists.remove(cursor)
            self.done.append(cursor.alike)
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
            if cursor.told:
                held = held + cursor.alike.traits.asks.times(cursor.told)
        for each in self.done:
            held = held + each.traits.asks.times(each.before(place, now))
        return held


class Turns:
    """The pending runs at one time, in order.

    Attributes:
        owed: Uids of runs within their team's guarantee.
    """

    def __init__(
        self,
        lists: WaitingLists,
        more: Iterable[Workload],
        apart: Collection[str],
        ledger: Ledger,
        standing: Standing,
    ) -> None:
        """Prepare the order.

        Args:
            more: Pending runs that are not in the lists.
            apart: Teams of which no run is skipped.
            ledger: The current holdings; modified, so not usable afterwards.
        """
        self._ledger, self._now, self._traits = ledger, standing.now, lists.traits
        singles = [*lists.others.values(), *more]
        shared = list[Alike]()
        for each in lists.alike.values():
            if each.traits.spec.team in apart:
                singles += each.runs
            else:
                shared.append(each)
        self._owed, self._last = list[Workload](), _Team()
        self._teams = dict[str, _Team]()
        for run in standing.in_order(singles):
            spec = run.spec
            if is_scavenger(spec):
                self._last.singles.append(run)
            elif spec.team in ledger.teams and ledger.is_owed(spec):
                self._owed.append(run)
                ledger.add(spec)
            else:
                self._team(spec.team).singles.append(run)
        for each in shared:
            asks = each.traits.spec
            team = self._last if is_scavenger(asks) else self._team(asks.team)
            team.lists.append(_Cursor(each))
        for name, team in self._teams.items():
            team.held = ledger.held.get(name, NOTHING)
        self.owed = frozenset(each.uid for each in self._owed)

    def runs(self, idle: Callable[[Alike], bool]) -> Iterator[Workload]:
        """Yield all runs, except those of lists that are idle when their turn comes.

        Args:
            idle: Returns whether considering any run of a list would change nothing; stays true once it is.
        """
        yield from self._owed
        now, heap = self._now, list[tuple[float, float, str, str]]()
        for name in self._teams:
            self._push(heap, name)
        while heap:
            name = heap[0][-1]
            team = self._teams[name]
            found = team.first(now)
            assert found is not None, "a team without runs is not in the heap"
            _, cursor = found
            if cursor is not None and idle(cursor.alike):
                team.leave_out(idle)
            else:
                yield team.take(cursor, self._traits)
            heapq.heappop(heap)
            self._push(heap, name)
        while (found := self._last.first(now)) is not None:
            _, cursor = found
            if cursor is not None and idle(cursor.alike):
                self._last.leave_out(idle)
            else:
                yield self._last.take(cursor, self._traits)

    def _team(self, name: str) -> _Team:
        found = self._teams.get(name)
        if found is None:
            found = self._teams[name] = _Team()
        return found

    def _push(self, heap: list[tuple[float, float, str, str]], name: str) -> None:
        """Push a team by its next run, as ``fair_order`` sorts them; omit it if none is left."""
        team, ledger = self._teams[name], self._ledger
        found = team.first(self._now)
        if found is None:
            return
        place, _ = found
        waited, created_at, uid = place
        ledger.held[name] = team.held_before(place, self._now)
        heapq.heappush(heap, (FAIR_S * ledger.share(name) + waited * AGEING_S, created_at, uid, name))


def _is_plain(run: Workload) -> bool:
    """Return whether a run has never started and waits its turn, so that its arrival determines its place."""
    spec, status = run.spec, run.status
    return (
        status.since == run.created_at
        and status.raised == 0
        and status.asked_at is None
        and status.ask_again_at is None
        and status.started_at is None
        and status.ran_s == 0.0
        and spec.most_nodes is None
        and spec.max_cost is None
        and not spec.capacity.auto
        and spec.capacity.tier is not Tier.OVERFLOW
        and run.parent is None
        and status.reason == (scavenger(run) if is_scavenger(spec) else behind(run))
    )
