"""Orders pending runs: among teams by what they hold, within a team by priority.

Runs within their team's guarantee come first, then the others, then scavengers, each of the three in the same
order. Within a team the order is by priority, which waiting raises, then by age, or by least remaining work
(``fairlead.policy.queue.queue_score``). No number that a team chooses is compared with a number of another team. Among
teams the next is, by progressive filling (Ghodsi et al., NSDI 2011, Algorithm 1), as if every earlier run had started:

1. the team whose first run has the highest priority of those that an administrator lets count among teams;
2. one whose first run is overdue: alone it is wider than the team's fair share, it has waited ``OVERDUE_S``, and its
   team holds no more than its fair share, and has had less than that lately (``fairlead.policy.queue.team_debts``), by
   as much as the run takes from the others in ``OVERDUE_S``, or in its ``max_duration`` if that is shorter;
3. one that with its first run holds no more than its fair share, ``weight`` over the weights of all teams that hold or
   want something; of these the one with the smallest weighted dominant share;
4. the team with the smallest debt for its weight; then with the smallest weighted dominant share; then the one whose
   run came first.

So a team that asks for no more than its share never waits for one that holds more than its own, and a run that is wider
than the share of its team waits a day for those of others, if these never leave it room, and pays for what it keeps
free. O(n log n) for n runs.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fairlead.policy.queue.dominant_shares import Amounts, asked, dominant_share
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import Ledger, is_scavenger
from fairlead.policy.queue.spec_traits import SpecTraits
from fairlead.specs.gang import GangSpec
from fairlead.state.snapshot import Phase, Status, Workload

# A run that is wider than the share of its team has its turn after a day.
OVERDUE_S = 86_400.0
# It is never kept waiting for more than its team's share of this time.
MOST_SAVED_S = 14 * OVERDUE_S
# Sums of shares are not exact.
ROUNDING = 1e-9
NOTHING = Amounts()
Rank = tuple[int, int, float, float]


def first_come(waiting: Iterable[Workload], ledger: Ledger) -> list[Workload]:
    """Return the runs by arrival, where runs of one team change places by priority.

    A priority counts among teams as far as an administrator lets it.
    """
    runs = list(waiting)
    own = defaultdict[str, list[Workload]](list)
    for run in sorted(
        runs, key=lambda own_run: (-own_run.spec.priority, own_run.created_at, own_run.uid), reverse=True
    ):
        own[run.spec.team].append(run)
    places = sorted(runs, key=lambda own_run: (-ledger.class_of(own_run.spec), own_run.created_at, own_run.uid))
    return [own[own_run.spec.team].pop() for own_run in places]


def fairly(
    waiting: Iterable[Workload],
    ledger: Ledger,
    standing: Standing,
    traits: SpecTraits | None = None,
    debts: Mapping[str, float] | None = None,
) -> tuple[list[Workload], frozenset[str]]:
    """Return all runs in order, and the uids of those within their team's guarantee.

    Args:
        ledger: The current holdings; modified, so not usable afterwards.
        standing: Sorts runs of one team.
        traits: Known traits of the specs.
        debts: What teams have had beyond their shares, in seconds of the cluster; nothing for those not named.
    """
    owed, borrowing, scavengers = (defaultdict[str, list[Workload]](list) for _ in range(3))
    counted = ledger.copy()
    for workload in standing.in_order(waiting):
        spec = workload.spec
        if is_scavenger(spec):
            scavengers[spec.team].append(workload)
        elif spec.team in counted.teams and counted.is_owed(spec):
            owed[spec.team].append(workload)
            counted.add(spec)
        else:
            borrowing[spec.team].append(workload)
    wanting = {*owed, *borrowing}
    idle = Filling(ledger.of_scavengers(), scavengers, standing.now, debts or {})
    first = filled(owed, Filling(ledger, wanting, standing.now, debts or {}), traits)
    rest = filled(borrowing, Filling(counted, wanting, standing.now, debts or {}), traits)
    return [*first, *rest, *filled(scavengers, idle, traits)], frozenset(run.uid for run in first)


@dataclass(slots=True)
class Filling:
    """The holdings of teams while they are filled up in turn.

    Attributes:
        ledger: What they hold, with the runs so far; modified.
        wanting: The teams with pending runs.
        debts: What teams have had beyond their shares, in seconds of the cluster.
    """

    ledger: Ledger
    wanting: Iterable[str]
    now: float
    debts: Mapping[str, float]
    _wanting: frozenset[str] = field(init=False)
    _weights: float = field(init=False)
    _fair: dict[str, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._wanting = frozenset(self.wanting)
        teams = self._wanting.union(team for team, held in self.ledger.held.items() if held != NOTHING)
        self._weights = float(sum(map(self.ledger.weight, teams)))

    def fair_share(self, team: str) -> float:
        """Return the part of the cluster that is the team's by its weight, if all others want theirs."""
        share = self._fair.get(team)
        if share is None:
            share = self._fair[team] = self.ledger.weight(team) / self._weights if self._weights else 1.0
        return share

    def is_within_share(self, team: str) -> bool:
        """Return whether the team holds no more than its fair share."""
        held = self.ledger.held.get(team, NOTHING)
        return dominant_share(held, self.ledger.whole) <= self.fair_share(team) + ROUNDING

    def rank(self, spec: GangSpec, asks: Amounts, status: Status) -> Rank:
        """Return the sort key of a team by the first of its runs; the smallest comes first."""
        ledger, team = self.ledger, spec.team
        held = ledger.held.get(team, NOTHING)
        weighted, most = ledger.share(team), self.fair_share(team) + ROUNDING
        if dominant_share(held + asks, ledger.whole) <= most:
            return -ledger.class_of(spec), 1, 0.0, weighted
        wide = dominant_share(asks, ledger.whole)
        is_overdue = wide > most and self._is_overdue(spec, wide, status)
        return -ledger.class_of(spec), 0 if is_overdue else 2, self.debts.get(team, 0.0) / ledger.weight(team), weighted

    def is_early(self, spec: GangSpec, asks: Amounts, status: Status) -> bool:
        """Return whether a run is wider than its team's share, other teams wait, and it has not its turn yet.

        What is held free for it would be taken by their runs within their shares before it is enough.
        """
        share = dominant_share(asks, self.ledger.whole)
        return (
            share > self.fair_share(spec.team) + ROUNDING
            and len(self._wanting) > (spec.team in self._wanting)
            and not self._is_overdue(spec, share, status)
        )

    def _is_overdue(self, spec: GangSpec, share: float, status: Status) -> bool:
        """Return whether a run of that dominant share, wider than its team's, has its turn."""
        if status.phase is not Phase.PENDING or self.now - status.since < OVERDUE_S:
            return False
        debt_s = self.debts.get(spec.team, 0.0)
        # Most teams have no credit: then what a run would have to save, which is never negative, is not needed.
        return debt_s <= 0.0 and debt_s <= -self._saving_s(spec, share) and self.is_within_share(spec.team)

    def _saving_s(self, spec: GangSpec, share: float) -> float:
        """Return how much a team has to have had less than its share before a run wider than that has its turn."""
        fair = self.fair_share(spec.team)
        length_s = OVERDUE_S if spec.max_duration_s is None else min(spec.max_duration_s, OVERDUE_S)
        return min(share * (1.0 - fair) * length_s, fair * MOST_SAVED_S)

    def add(self, team: str, asks: Amounts) -> None:
        """Let the team hold more."""
        # As ``Ledger.add``, which also counts amounts not needed here: this runs for each pending run.
        self.ledger.held[team] = self.ledger.held.get(team, NOTHING) + asks


def filled(teams: Mapping[str, list[Workload]], filling: Filling, traits: SpecTraits | None) -> list[Workload]:
    """Return the runs of all teams in turn; each team's are in order."""

    def asks_of(workload: Workload) -> Amounts:
        return asked(workload.spec, filling.ledger.whole) if traits is None else traits.of(workload).asks

    def entry(team: str, index: int) -> tuple[Rank, float, str, int, str]:
        first = teams[team][index]
        return filling.rank(first.spec, asks_of(first), first.status), first.created_at, first.uid, index, team

    heap = [entry(team, 0) for team in teams]
    heapq.heapify(heap)
    order = list[Workload]()
    while heap:
        *_, index, team = heap[0]
        if len(heap) == 1:
            order += teams[team][index:]
            break
        runs = teams[team]
        order.append(runs[index])
        filling.add(team, asks_of(runs[index]))
        if index + 1 < len(runs):
            heapq.heapreplace(heap, entry(team, index + 1))
        else:
            heapq.heappop(heap)
    return order
