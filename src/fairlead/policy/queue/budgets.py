"""Keeps teams and runs within what they may spend: who waits for money, and who is stopped because it is spent.

A run starts only where what is spent, what those that run are expected to cost still, and what it costs itself all lie
within the limit. So a thousand runs that are submitted at once do not pass it together. Of a run of which nobody knows
how long it takes an hour is set aside. Where a team says so, those that run are stopped just before it is spent, early
enough for a checkpoint. Amounts are micro-dollars; docs/decisions/0021 says why it is done so.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.policy.queue.durations import Durations
from fairlead.specs.gang import GangSpec
from fairlead.specs.team import Team, WhenSpent
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import WHOLE_MILLI, Node, Pod, Snapshot, Workload
from fairlead.text.money import MICROUSD, describe_microusd

HOUR_S = 3600.0
# What is set aside of the cost of a run whose end nobody knows.
RESERVED_S = HOUR_S
NOTICES = (50, 80, 100)


def rate_of(spec: GangSpec, nodes: Iterable[Node]) -> float:
    """Micro-dollars for a second of a run, on the dearest of the nodes; 0 without any price."""
    return max((_part(spec, node) * (node.price_per_hour or 0.0) for node in nodes), default=0.0) * (
        spec.nodes * MICROUSD / HOUR_S
    )


def reached_notice(team: Team, spent: int) -> tuple[int, Reason] | None:
    """Return the highest of 50, 80 and 100 percent of a team's budget that is spent, with its sentence; None below."""
    if team.budget is None:
        return None
    limit = round(team.budget.monthly * MICROUSD)
    percent = max((percent for percent in NOTICES if spent * 100 >= limit * percent), default=None)
    if percent is None:
        return None
    message = (
        f"team {team.name} has spent {percent} % of its budget this month: "
        f"{describe_microusd(spent)} of {describe_microusd(limit)}"
    )
    return percent, Reason(code=Code.OVER_BUDGET, message=message)


@dataclass(slots=True)
class Budgets:
    """The money spent and set aside, changed by whoever starts runs.

    Attributes:
        set_aside: By team, for what those that run are expected to cost from now on.
    """

    snapshot: Snapshot
    teams: Mapping[str, Team]
    set_aside: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        holders: Iterable[Workload],
        pods: Mapping[str, Iterable[Pod]],
        durations: Durations,
        now: float,
    ) -> "Budgets":
        """The budgets with what runs now."""
        found = cls(snapshot, {team.name: team for team in snapshot.teams if team.budget is not None})
        if found.teams:
            for run in holders:
                if run.spec.team in found.teams:
                    found.start(run, durations.ends_at(run, pods.get(run.uid, ()), now) - now)
        return found

    def start(self, workload: Workload, length_s: float) -> None:
        """Set aside what a run costs that takes so long; infinity where nobody knows."""
        team = workload.spec.team
        if team in self.teams:
            self.set_aside[team] = self.set_aside.get(team, 0.0) + self._cost(workload, length_s)

    def refusal(self, workload: Workload, length_s: float) -> Reason | None:
        """Return why a run may not start for lack of money; None when it may.

        Args:
            length_s: How long it takes at most; infinity where nobody knows.
        """
        spec, spending = workload.spec, self.snapshot.spending
        team = self.teams.get(spec.team)
        if spec.max_cost is None and team is None:
            return None
        if spending is None:
            what = "its `max_cost`" if spec.max_cost is not None else f"the budget of team {spec.team}"
            return Reason(
                code=Code.OVER_BUDGET,
                message=f"{what} cannot be kept: what runs cost is not known here",
                remedy="On the local cluster set a price, as in `fairlead prices set localhost 2.50`; or leave it out.",
            )
        if team is None or team.budget is None:
            return None
        limit, spent = round(team.budget.monthly * MICROUSD), spending.by_team.get(spec.team, 0)
        aside, cost = round(self.set_aside.get(spec.team, 0.0)), round(self._cost(workload, length_s))
        if spent + aside + cost <= limit:
            return None
        others = f", {describe_microusd(aside)} is set aside for what runs" if aside else ""
        return Reason(
            code=Code.OVER_BUDGET,
            message=f"team {spec.team} has spent {describe_microusd(spent)} of {describe_microusd(limit)} this month"
            f"{others}, and this run would cost {describe_microusd(cost)}",
            remedy=f"Raise the `budget` of team {spec.team}, give the run a shorter `max_duration`, or wait for the "
            "next month.",
        )

    def _cost(self, workload: Workload, length_s: float) -> float:
        """Return the cost of a run in so long, at most what it may; all that it may where nobody knows how long."""
        spending, most = self.snapshot.spending, workload.spec.max_cost
        left = math.inf
        if most is not None and spending is not None:
            left = max(0.0, most * MICROUSD - spending.by_run.get(workload.uid, 0))
        rate = rate_of(workload.gang, self.snapshot.nodes)
        if not math.isinf(length_s):
            return min(left, rate * max(0.0, length_s))
        return rate * RESERVED_S if math.isinf(left) else left


def run_overspent(workload: Workload, snapshot: Snapshot) -> Reason | None:
    """Return why a run has to end now, to save a checkpoint before it has cost its ``max_cost``; None if it has not."""
    spec, spending = workload.spec, snapshot.spending
    if spec.max_cost is None or spending is None:
        return None
    limit, spent = round(spec.max_cost * MICROUSD), spending.by_run.get(workload.uid, 0)
    checkpoint = round(rate_of(workload.gang, snapshot.nodes) * spec.grace_s)
    if spent + checkpoint < limit:
        return None
    return Reason(
        code=Code.OVER_BUDGET,
        message=f"it has cost {describe_microusd(spent)} of its `max_cost` of {describe_microusd(limit)}, and its last "
        f"checkpoint may cost {describe_microusd(checkpoint)}",
        remedy=f"`fairlead resume {spec.name} --set max_cost={2 * spec.max_cost:g}` continues it from its newest "
        "checkpoint.",
    )


def team_overspent(workload: Workload, snapshot: Snapshot) -> Reason | None:
    """Say why a run has to save and stop until its team may spend again; None if it may go on."""
    spec, spending = workload.spec, snapshot.spending
    team = next((team for team in snapshot.teams if team.name == spec.team), None)
    if spending is None or team is None or team.budget is None or team.budget.when_spent is not WhenSpent.STOP:
        return None
    holding = {pod.workload_uid for pod in snapshot.pods if not pod.phase.is_final}
    runs = [run for run in snapshot.workloads if run.uid in holding and run.spec.team == spec.team]
    checkpoints = sum(round(rate_of(run.gang, snapshot.nodes) * run.spec.grace_s) for run in runs)
    limit, spent = round(team.budget.monthly * MICROUSD), spending.by_team.get(spec.team, 0)
    if spent + checkpoints < limit:
        return None
    return Reason(
        code=Code.OVER_BUDGET,
        message=f"team {spec.team} has spent {describe_microusd(spent)} of {describe_microusd(limit)} this month, and "
        f"the last checkpoints of its runs may cost {describe_microusd(checkpoints)}",
        remedy=f"It goes on next month, or when the `budget` of team {spec.team} is raised.",
    )


def limit_times(snapshot: Snapshot, now: float) -> Iterator[float]:
    """Yield when runs that hold something, and teams whose runs are stopped then, have to save for the last time.

    Args:
        now: When the snapshot was taken.
    """
    spending = snapshot.spending
    if spending is None:
        return
    holding = {pod.workload_uid for pod in snapshot.pods if not pod.phase.is_final}
    runs = [run for run in snapshot.workloads if run.uid in holding]
    stopped = {
        team.name: team.budget.monthly
        for team in snapshot.teams
        if team.budget is not None and team.budget.when_spent is WhenSpent.STOP
    }
    rates: dict[str, float] = {}
    graces: dict[str, float] = {}
    for run in runs:
        team = run.spec.team
        if run.spec.max_cost is None and team not in stopped:
            continue
        rate = rate_of(run.gang, snapshot.nodes)
        if run.spec.max_cost is not None and rate:
            left = run.spec.max_cost * MICROUSD - spending.by_run.get(run.uid, 0)
            yield now + left / rate - run.spec.grace_s
        rates[team] = rates.get(team, 0.0) + rate
        graces[team] = graces.get(team, 0.0) + rate * run.spec.grace_s
    for team, monthly in stopped.items():
        if rates.get(team):
            left = monthly * MICROUSD - spending.by_team.get(team, 0) - graces[team]
            yield now + left / rates[team]


def _part(spec: GangSpec, node: Node) -> float:
    """The part of a node that a member pays for, as ledger.usage divides nodes."""
    gpu = spec.resources.gpu
    if node.gpus:
        return 0.0 if gpu is None else min(1.0, gpu.milli / sum(each.milli for each in node.gpus))
    return min(1.0, (spec.resources.cpu_milli or WHOLE_MILLI) / node.cpu_milli)
