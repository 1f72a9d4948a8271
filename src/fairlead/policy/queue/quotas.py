"""Counts what teams hold against their guarantees and quotas: which runs are owed capacity, borrow, or exceed a quota.

A run counts towards its team's guarantee as a whole or not at all. Scavengers (priority below 0) are excluded: they are
owed nothing, and their holdings do not count.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairlead.policy.queue.ageing import precedence
from fairlead.policy.queue.dominant_shares import Amounts, ClusterCapacity, asked, dominant_share
from fairlead.policy.queue.priority_classes import class_of
from fairlead.specs.gang import GangSpec
from fairlead.specs.team import Quota, Team
from fairlead.state.snapshot import Workload

RESOURCES = ("gpu_milli", "cpu_milli", "memory_bytes")


def is_scavenger(spec: GangSpec) -> bool:
    """Return whether the run uses only idle capacity."""
    return spec.priority < 0


@dataclass(slots=True)
class Ledger:
    """The holdings of each team, updated as the pass starts runs.

    Attributes:
        whole: The capacity of the cluster.
        held: By team, without scavengers.
        bound: By team, with scavengers, because the quota has no exceptions.
    """

    teams: dict[str, Team]
    whole: ClusterCapacity
    held: dict[str, Amounts]
    bound: dict[str, Amounts]

    @classmethod
    def of(cls, teams: Iterable[Team], whole: ClusterCapacity, holders: Iterable[Workload]) -> "Ledger":
        """Return the ledger of the runs that hold something now."""
        ledger = cls({team.name: team for team in teams}, whole, {}, {})
        for workload in holders:
            ledger.add(workload.gang)
        return ledger

    def copy(self) -> "Ledger":
        """Return an independent copy."""
        return Ledger(self.teams, self.whole, dict(self.held), dict(self.bound))

    def add(self, spec: GangSpec) -> None:
        """Add the request of a run to the holdings of its team."""
        more = asked(spec, self.whole)
        self.bound[spec.team] = self.bound.get(spec.team, Amounts()) + more
        if not is_scavenger(spec):
            self.held[spec.team] = self.held.get(spec.team, Amounts()) + more

    def of_scavengers(self) -> "Ledger":
        """Return a ledger of what scavengers hold alone."""
        held = {team: bound.minus(self.held.get(team, Amounts())) for team, bound in self.bound.items()}
        return Ledger(self.teams, self.whole, held, dict(self.bound))

    def weight(self, team: str) -> int:
        """Return the weight of a team; 1 if it is not described."""
        known = self.teams.get(team)
        return known.weight if known is not None else 1

    def class_of(self, spec: GangSpec) -> int:
        """Return the priority of a run that counts among teams."""
        return class_of(spec, self.teams.get(spec.team))

    def share(self, team: str) -> float:
        """Return the team's weighted dominant share."""
        return dominant_share(self.held.get(team, Amounts()), self.whole, self.weight(team))

    def is_owed(self, spec: GangSpec) -> bool:
        """Return whether the run and the holdings of its team lie within the team's guarantee."""
        team = self.teams.get(spec.team)
        if team is None or is_scavenger(spec):
            return False
        return _is_within(self.held.get(spec.team, Amounts()), asked(spec, self.whole), team.guaranteed)

    def exceeds(self, spec: GangSpec) -> str | None:
        """Return the first resource of which the team would exceed its quota; None if the run may start."""
        team = self.teams.get(spec.team)
        if team is None:
            return None
        after = self.bound.get(spec.team, Amounts()) + asked(spec, self.whole)
        for name in RESOURCES:
            most = getattr(team.quota, name)
            if most is not None and getattr(after, name) > most and getattr(asked(spec, self.whole), name):
                return name
        return None


def protected(holders: Sequence[Workload], teams: Iterable[Team], whole: ClusterCapacity, now: float) -> dict[str, int]:
    """Count the nodes of each run within its team's guarantee, by priority and then age of the runs.

    A gang counts as a whole or not at all; an elastic one may also count with its smallest size. Runs without any are
    omitted.
    """
    guarantees = {team.name: team.guaranteed for team in teams if team.guaranteed != Quota()}
    if not guarantees:
        return {}
    within, sums = dict[str, int](), dict[str, Amounts]()
    for workload in sorted(holders, key=lambda run: precedence(run, now)):
        spec = workload.spec
        guaranteed = guarantees.get(spec.team)
        if guaranteed is None or is_scavenger(spec):
            continue
        before = sums.get(spec.team, Amounts())
        for size in (spec,) if spec.most_nodes is None else (workload.gang, spec):
            if _is_within(before, asked(size, whole), guaranteed):
                sums[spec.team] = before + asked(size, whole)
                within[workload.uid] = size.nodes
                break
    return within


def _is_within(held: Amounts, more: Amounts, guaranteed: Quota) -> bool:
    """Return whether ``more`` requests a guaranteed resource, and no more of any than is left."""
    asks = False
    for name in RESOURCES:
        amount = getattr(guaranteed, name)
        if amount is None:
            continue
        if getattr(more, name):
            asks = True
            if getattr(held, name) + getattr(more, name) > amount:
                return False
    return asks
