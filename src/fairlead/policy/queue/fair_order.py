"""Orders those that wait by whose turn it is.

First those that lie within their team's guarantee, then the others, then scavengers. Within a team by priority, which
waiting raises, then the oldest, or those first of which less is left (``fairlead.policy.queue.queue_score``). Among
teams that borrow, the next is the one whose first run has the most of

    effective priority x AGEING_S - FAIR_S x weighted dominant share of the team,

by progressive filling (Ghodsi et al., NSDI 2011, Algorithm 1), as if every run before had started. So a team that holds
little goes first, and nobody starves: no run goes before another that came so much earlier that the wait outweighs
all of the cluster and all of the priority between them. n log n for n runs.
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

# A team that holds the whole cluster has to wait a day longer than one that holds nothing.
FAIR_S = 86_400.0
NOTHING = Amounts()


def first_come(waiting: Iterable[Workload]) -> list[Workload]:
    """By priority as it was asked for, then first come."""
    return sorted(waiting, key=lambda each: (-each.spec.priority, each.created_at, each.uid))


def fairly(
    waiting: Iterable[Workload], ledger: Ledger, standing: Standing, traits: SpecTraits | None = None
) -> tuple[list[Workload], frozenset[str]]:
    """All of them in their turn, and the uids of those within their team's guarantee.

    Args:
        ledger: What is held now; it is of no use afterwards.
        standing: Sorts runs of one team; among teams what is left to do of a run does not count.
        traits: What is known of their specs already.
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
            # As ``add``, which also counts what nobody asks for here: this is for each that waits.
            more = asked(runs[index].spec, ledger.whole) if traits is None else traits.of(runs[index]).asks
            ledger.held[team] = ledger.held.get(team, NOTHING) + more
            heapq.heapreplace(heap, _entry(team, index + 1, runs, ledger, standing.now))
        else:
            heapq.heappop(heap)
    return [*owed, *borrowing, *scavengers], frozenset(each.uid for each in owed)


def _entry(
    team: str, index: int, runs: list[Workload], ledger: Ledger, now: float
) -> tuple[float, float, str, int, str]:
    """Sorts the first runs of teams; a team in which somebody starts has a larger share afterwards."""
    first = runs[index]
    waited = effective_priority(first, now) * AGEING_S
    return FAIR_S * ledger.share(team) - waited, first.created_at, first.uid, index, team
