"""Accounts for what each team has had beyond its share, its debt, so that shares hold over weeks too.

An order by what teams hold now has no memory: a team whose runs take the whole cluster one after another holds nothing
each time that one of them ends, and what is drained for each of them would be paid by the others. In a time dt, the
debt of a team i among those that compete for room grows by

    (h_i - w_i / W * H) dt    h_i: the dominant share that it holds, or that is held free for its runs; H: the sum of h
                              w_i: its weight; W: the sum of weights

so that debts add up to zero: the deficit counter of Shreedhar and Varghese (SIGCOMM 1995) in continuous time, and the
negative of the lag of Stoica et al. (RTSS 1996). Teams compete whose runs have found no room, or that hold more than
their share; a team that asks for less is neither debtor nor creditor. Debts are in seconds of the whole cluster. They
fade by e in ``FADING_S``, and none exceeds ``MOST_S``.

What is held free for a run counts once it has started, or lost the place: a team that has saved up for a wide run would
otherwise lose its turn by waiting for it.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field

from fairlead.frozen import dataclass, replace
from fairlead.policy.queue.dominant_shares import Amounts, capacity, dominant_share
from fairlead.policy.queue.known_facts import KnownFacts
from fairlead.policy.queue.quotas import Ledger
from fairlead.state.plan import Plan
from fairlead.state.snapshot import Snapshot

DAY_S = 86_400.0
FADING_S = 30 * DAY_S
MOST_S = 7 * DAY_S
# What is held free for one run is overlooked only up to here.
MOST_RESERVED_S = DAY_S
# Less is as good as none.
LEAST_S = 1.0
NOTHING = Amounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The debt that a team has for what is still held free for one of its runs."""

    team: str
    debt_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DebtRecord:
    """All debts at one time, as a loop leaves them to the next.

    Attributes:
        at: That time; before all others if nothing was observed yet.
        debts_s: By team; negative if it has had less than its share.
        reserved: By uid of the pending run; part of the debts.
    """

    at: float = -math.inf
    debts_s: Mapping[str, float] = field(default_factory=dict)
    reserved: Mapping[str, Reserved] = field(default_factory=dict)

    def counted(self) -> dict[str, float]:
        """Return the debts that order teams."""
        counted = dict(self.debts_s)
        for account in self.reserved.values():
            counted[account.team] = counted.get(account.team, 0.0) - min(account.debt_s, MOST_RESERVED_S)
        return counted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Competition:
    """Holdings of the teams that compete for room, from one pass to the next.

    Attributes:
        parts: The part of all that these teams hold that is a team's own by its weight.
        held: Dominant shares by team.
        free: Dominant shares that are held free for runs of these teams, by uid, with the team.
    """

    parts: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, tuple[str, float]] = field(default_factory=dict)


class TeamDebts:
    """The debts of one loop.

    Attributes:
        record: As they are now.
    """

    def __init__(self, record: DebtRecord | None = None) -> None:
        self.record = DebtRecord() if record is None else record
        self._competition = _Competition()
        self._rivals: tuple[object, ...] = ()

    def known_to(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Return the snapshot with the debts up to now."""
        before = self.record
        if before.at < now:
            elapsed_s = 0.0 if before.at == -math.inf else now - before.at
            self.record = _later(before, self._competition, elapsed_s, now)
        elif before.at > now:  # by the clock of an earlier process
            self.record = replace(before, at=now)
        counted = self.record.counted()
        return replace(snapshot, debts=counted) if counted else snapshot

    def observe(self, snapshot: Snapshot, plan: Plan, cache: KnownFacts | None) -> None:
        """Record who competes for what from the time of the last pass on."""
        reserved = {entry.uid for entry in plan.held}
        if not self.record.reserved.keys() <= reserved:
            still_reserved = {uid: account for uid, account in self.record.reserved.items() if uid in reserved}
            self.record = replace(self.record, reserved=still_reserved)
        if not plan.contending:
            self._competition, self._rivals = _Competition(), ()
            return
        if cache is not None:
            cache.look(snapshot)
            ledger = cache.ledger(())
        else:
            holding = {pod.workload_uid for pod in snapshot.pods if not pod.phase.is_final}
            holders = (run for run in snapshot.workloads if run.spec.engine is None and run.uid in holding)
            ledger = Ledger.of(snapshot.teams, capacity(snapshot.nodes), holders)
        # Several passes at one instant, and many at others, end with the same holdings.
        rivals = plan.contending, plan.held, ledger.held, ledger.teams, ledger.whole
        if rivals != self._rivals:
            self._competition, self._rivals = _compete(plan, ledger), rivals


def _compete(plan: Plan, ledger: Ledger) -> _Competition:
    held = {team: dominant_share(amounts, ledger.whole) for team, amounts in ledger.held.items() if amounts != NOTHING}
    present = {*held, *plan.contending}
    weights = sum(ledger.weight(team) for team in present)
    over = {team for team, share in held.items() if share > ledger.weight(team) / weights}
    competing = plan.contending | over
    weights = sum(ledger.weight(team) for team in competing)
    free = defaultdict[str, Amounts](Amounts)
    teams = {h.uid: h.team for h in plan.held if h.team in competing}
    for holding in plan.held:
        if holding.uid in teams:
            free[holding.uid] += Amounts(holding.gpu_milli, holding.cpu_milli)
    return _Competition(
        parts={team: ledger.weight(team) / weights for team in competing},
        held=held,
        free={uid: (teams[uid], dominant_share(amounts, ledger.whole)) for uid, amounts in free.items()},
    )


def _later(before: DebtRecord, competition: _Competition, elapsed_s: float, now: float) -> DebtRecord:
    """Return the debts after some time of a competition."""
    left = math.exp(-elapsed_s / FADING_S)
    debts = defaultdict[str, float](float, {team: left * debt_s for team, debt_s in before.debts_s.items()})
    reserved = dict(before.reserved)
    had = {team: competition.held.get(team, 0.0) for team in competition.parts}
    for uid, (team, share) in competition.free.items():
        had[team] += share
        own = share * (1.0 - competition.parts[team]) * elapsed_s
        earlier = reserved.get(uid)
        reserved[uid] = Reserved(team=team, debt_s=own + (0.0 if earlier is None else earlier.debt_s))
    whole = sum(had.values())
    for team, part in competition.parts.items():
        debts[team] += (had[team] - part * whole) * elapsed_s
    # Of teams that compete the smallest parts count too, as passes may be closer to each other than any debt is large.
    bounded = {
        team: max(-MOST_S, min(MOST_S, debt_s))
        for team, debt_s in debts.items()
        if debt_s and (abs(debt_s) >= LEAST_S or team in competition.parts)
    }
    return DebtRecord(at=now, debts_s=bounded, reserved=reserved)
