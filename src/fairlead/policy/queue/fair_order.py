"""Orders pending runs by fair share.

Runs within their team's guarantee come first, then the others, then scavengers. Within a team the order is by priority,
which waiting raises, then by age, or by least remaining work (``fairlead.policy.queue.queue_score``). Among teams that
borrow, the next is the one whose first run has the highest

    effective priority x AGEING_S - FAIR_S x weighted dominant share of the team,

by progressive filling (Ghodsi et al., NSDI 2011, Algorithm 1), as if every earlier run had started. So a team that
holds little goes first, and no run starves: no run precedes another that arrived so much earlier that the wait
outweighs the whole cluster and their whole difference in priority. O(n log n) for n runs.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable

from fairlead.policy.queue.ageing import AGEING_S, effective_priority
from fairlead.policy.queue.dominant_shares import Amounts, asked
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import Ledger
from fairlead.policy.queue.spec_traits import SpecTraits
from fairlead.state.snapshot import Workload

# A team that holds the whole cluster waits a day longer than one that holds nothing.
FAIR_S = 86_400.0
NOTHING = Amounts()


def first_come(waiting: Iterable[Workload]) -> list[Workload]:
    """Return the runs by requested priority, then by arrival."""
    return sorted(waiting, key=lambda each: (-each.spec.priority, each.created_at, each.uid))


def fairly(
    waiting: Iterable[Workload], ledger: Ledger, standing: Standing, traits: SpecTraits | None = None
) -> tuple[list[Workload], frozenset[str]]:
    """Return all runs in order, and the uids of those within their team's guarantee.

    Args:
        ledger: The current holdings; modified, so not usable afterwards.
        standing: Sorts runs of one team; across teams the remaining work of a run does not count.
        traits: Known traits of the specs.
    """
    owed, teams = list[Workload](), defaultdict[str, list[Workload]](list)
    scavengers = list[Workload]()
    guaranteed = ledger.teams
    for workload in standing.in_order(waiting):
        spec = workload.spec
        if spec.priority < 0:
            scavengers.append(workload)
        elif spec.team in guaranteed and ledger.is_owed(spec):
            owed.append(workload)
            ledger.add(spec)
        else:
            teams[spec.team].append(workload)
    heap = [_entry(team, 0, runs, ledger, standing.now) for team, runs in teams.items()]
    heapq.heapify(heap)
    borrowing = []
    while heap:
        *_, index, team = heap[0]
        if len(heap) == 1:
            borrowing += teams[team][index:]
            break
        runs = teams[team]
        borrowing.append(runs[index])
        if index + 1 < len(runs):
            # As ``add``, which also counts amounts not needed here: this runs for each pending run.
            more = asked(runs[index].spec, ledger.whole) if traits is None else traits.of(runs[index]).asks
            ledger.held[team] = ledger.held.get(team, NOTHING) + more
            heapq.heapreplace(heap, _entry(team, index + 1, runs, ledger, standing.now))
        else:
            heapq.heappop(heap)
    return [*owed, *borrowing, *scavengers], frozenset(each.uid for each in owed)


def _entry(
    team: str, index: int, runs: list[Workload], ledger: Ledger, now: float
) -> tuple[float, float, str, int, str]:
    """Return the sort key for the first run of a team; the share of a team grows as its runs start."""
    first = runs[index]
    waited = effective_priority(first, now) * AGEING_S
    return FAIR_S * ledger.share(team) - waited, first.created_at, first.uid, index, team
