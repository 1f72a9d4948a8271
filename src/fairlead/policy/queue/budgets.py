"""Enforces budgets of teams and projects and cost limits of runs: delays starts and stops runs that reach a limit.

A run starts only if the amount spent, the expected remaining cost of running runs and its own cost together lie within
the limit, so that a thousand runs submitted at once do not exceed it together. For a run of unknown duration the cost
of an hour is reserved. If a team configures it, running runs are stopped just before the budget is spent, early enough
for a checkpoint. Amounts are micro-dollars; docs/decisions/0021 gives the reasons.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from fairlead.frozen import dataclass
from fairlead.policy.placement.memo import cached_last
from fairlead.policy.queue.durations import Durations
from fairlead.specs.gang import GangSpec
from fairlead.specs.resources import Resources
from fairlead.specs.team import PROJECT_LABEL, Budget, Team, WhenSpent
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import WHOLE_MILLI, Node, Pod, Snapshot, Spending, Workload
from fairlead.text.money import MICROUSD, describe_microusd

HOUR_S = 3600.0
# The duration whose cost is reserved for a run with unknown end.
RESERVED_S = HOUR_S
NOTICES = (50, 80, 100)


def rate_of(spec: GangSpec, nodes: Iterable[Node]) -> float:
    """Return the micro-dollars per second of a run on the most expensive of the nodes; 0 without any price."""
    return max((_part(spec, node) * (node.price_per_hour or 0.0) for node in nodes), default=0.0) * (
        spec.nodes * MICROUSD / HOUR_S
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A budget with the runs charged to it: all those of a team, or those of one of its projects."""

    team: str
    project: str | None = None
    budget: Budget

    @property
    def key(self) -> str:
        """Return the unique key under which notices are recorded."""
        return self.team if self.project is None else f"{self.team}/{self.project}"

    @property
    def name(self) -> str:
        return f"team {self.team}" if self.project is None else f"project {self.project} of team {self.team}"

    @property
    def setting(self) -> str:
        """Return a description of where the limit is set."""
        own = "budget" if self.project is None else "project_budgets"
        return f"the `{own}` of team {self.team}"

    @property
    def limit(self) -> int:
        """Return the limit per month in micro-dollars."""
        return round(self.budget.monthly * MICROUSD)

    @property
    def stops(self) -> bool:
        return self.budget.when_spent is WhenSpent.STOP

    def charges(self, spec: GangSpec) -> bool:
        """Return whether a run is charged to this budget."""
        return spec.team == self.team and (self.project is None or spec.labels.get(PROJECT_LABEL) == self.project)

    def spent(self, spending: Spending) -> int:
        """Return the micro-dollars spent this month."""
        if self.project is None:
            return spending.by_team.get(self.team, 0)
        return spending.by_project.get((self.team, self.project), 0)


def accounts_of(teams: Iterable[Team]) -> tuple[Account, ...]:
    """Return the budgets of teams, each before those of its projects."""
    return tuple(
        account
        for team in teams
        for account in (
            *([] if team.budget is None else [Account(team=team.name, budget=team.budget)]),
            *(Account(team=team.name, project=name, budget=budget) for name, budget in team.project_budgets.items()),
        )
    )


def reached_notice(account: Account, spending: Spending) -> tuple[int, Reason] | None:
    """Return the highest of 50, 80 and 100 percent of a budget that is spent, with its message; None below."""
    spent, limit = account.spent(spending), account.limit
    percent = max((percent for percent in NOTICES if spent * 100 >= limit * percent), default=None)
    if percent is None:
        return None
    message = (
        f"{account.name} has spent {percent} % of its budget this month: "
        f"{describe_microusd(spent)} of {describe_microusd(limit)}"
    )
    return percent, Reason(code=Code.OVER_BUDGET, message=message)


@dataclass(slots=True)
class Budgets:
    """The amounts spent and reserved, updated as the pass starts runs.

    Attributes:
        set_aside: Reserved for the expected cost of running runs from now on, by account key.
    """

    snapshot: Snapshot
    accounts: Mapping[str, tuple[Account, ...]]
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
        """Return the budgets with reservations for the running runs."""
        accounts = cls(snapshot, {team.name: accounts_of([team]) for team in snapshot.teams if team.has_budgets})
        if accounts.accounts:
            for run in holders:
                if run.spec.team in accounts.accounts:
                    accounts.start(run, durations.ends_at(run, pods.get(run.uid, ()), now) - now)
        return accounts

    def start(self, workload: Workload, length_s: float) -> None:
        """Reserve the cost of a run of this length in seconds; infinity if unknown."""
        for account in self._accounts_of(workload):
            self.set_aside[account.key] = self.set_aside.get(account.key, 0.0) + self._cost(workload, length_s)

    def refusal(self, workload: Workload, length_s: float) -> Reason | None:
        """Return why a run may not start for lack of budget; None if it may.

        Args:
            length_s: The longest time that the run takes; infinity if unknown.
        """
        spec, spending = workload.spec, self.snapshot.spending
        accounts = self._accounts_of(workload)
        if spec.max_cost is None and not accounts:
            return None
        if spending is None:
            what = "its `max_cost`" if spec.max_cost is not None else f"the budget of {accounts[0].name}"
            return Reason(
                code=Code.OVER_BUDGET,
                message=f"{what} cannot be kept: what runs cost is not known here",
                remedy="On the local cluster set a price, as in `fairlead prices set localhost 2.50`; or leave it out.",
            )
        refusals = (self._over(account, workload, length_s, spending) for account in accounts)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def _over(self, account: Account, workload: Workload, length_s: float, spending: Spending) -> Reason | None:
        spent, limit = account.spent(spending), account.limit
        aside, cost = round(self.set_aside.get(account.key, 0.0)), round(self._cost(workload, length_s))
        if spent + aside + cost <= limit:
            return None
        others = f", {describe_microusd(aside)} is set aside for what runs" if aside else ""
        return Reason(
            code=Code.OVER_BUDGET,
            message=f"{account.name} has spent {describe_microusd(spent)} of {describe_microusd(limit)} this month"
            f"{others}, and this run would cost {describe_microusd(cost)}",
            remedy=f"Raise {account.setting}, give the run a shorter `max_duration`, or wait for the next month.",
        )

    def _accounts_of(self, workload: Workload) -> list[Account]:
        return [account for account in self.accounts.get(workload.spec.team, ()) if account.charges(workload.spec)]

    def _cost(self, workload: Workload, length_s: float) -> float:
        """Return the cost of a run over a time, within the rest of ``max_cost``; all of that for an unknown time."""
        spending, most = self.snapshot.spending, workload.spec.max_cost
        left = math.inf
        if most is not None and spending is not None:
            left = max(0.0, most * MICROUSD - spending.by_run.get(workload.uid, 0))
        rate = rate_of(workload.gang, self.snapshot.nodes)
        if not math.isinf(length_s):
            return min(left, rate * max(0.0, length_s))
        return rate * RESERVED_S if math.isinf(left) else left


def stopping_teams(snapshot: Snapshot) -> frozenset[str]:
    """Return the teams with a budget that stops runs: time alone may bring any of these to its end."""
    if snapshot.spending is None:
        return frozenset()
    return frozenset(account.team for account in accounts_of(snapshot.teams) if account.stops)


def run_overspent(workload: Workload, snapshot: Snapshot) -> Reason | None:
    """Return why a run has to stop now, so that its last checkpoint stays within ``max_cost``; None if it need not."""
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


def budget_overspent(workload: Workload, snapshot: Snapshot) -> Reason | None:
    """Return why a run has to save and stop until its team or project may spend again; None if it may go on."""
    spec, spending = workload.spec, snapshot.spending
    if spending is None:
        return None
    last_costs = _last_costs((snapshot.pods, snapshot.workloads, snapshot.nodes, snapshot.teams))
    for account, checkpoints in last_costs.get(spec.team, ()):
        if account.charges(spec):
            reason = _overspent(account, spending, checkpoints)
            if reason is not None:
                return reason
    return None


@cached_last
def _last_costs(
    observed: tuple[tuple[Pod, ...], tuple[Workload, ...], tuple[Node, ...], tuple[Team, ...]],
) -> dict[str, list[tuple[Account, int]]]:
    """Return the budgets that stop runs, by team, with the micro-dollars that the last checkpoints of their runs cost.

    Computed once for all runs of a snapshot: P pods, R runs that hold something, K kinds of requests among them and N
    nodes take P + R + K N steps.
    """
    pods, workloads, nodes, teams = observed
    stopping = {team.name: [(account, 0) for account in accounts_of([team]) if account.stops] for team in teams}
    holding = {pod.workload_uid for pod in pods if not pod.phase.is_final}
    rates = dict[tuple[Resources, int], float]()
    for run in workloads:
        if run.uid not in holding or not stopping.get(run.spec.team):
            continue
        gang = run.gang
        kind = gang.resources, gang.nodes
        if kind not in rates:
            rates[kind] = rate_of(gang, nodes)
        cost, charged = round(rates[kind] * run.spec.grace_s), stopping[run.spec.team]
        stopping[run.spec.team] = [
            (account, amount + cost if account.charges(run.spec) else amount) for account, amount in charged
        ]
    return stopping


def _overspent(account: Account, spending: Spending, checkpoints: int) -> Reason | None:
    spent, limit = account.spent(spending), account.limit
    if spent + checkpoints < limit:
        return None
    return Reason(
        code=Code.OVER_BUDGET,
        message=f"{account.name} has spent {describe_microusd(spent)} of {describe_microusd(limit)} this month, and "
        f"the last checkpoints of its runs may cost {describe_microusd(checkpoints)}",
        remedy=f"It continues next month, or when {account.setting} is raised.",
    )


def limit_times(snapshot: Snapshot, now: float) -> Iterator[float]:
    """Yield the times at which running runs with a cost limit, and those of budgets that stop runs, have to save last.

    Args:
        now: The time of the snapshot.
    """
    spending = snapshot.spending
    if spending is None:
        return
    holding = {pod.workload_uid for pod in snapshot.pods if not pod.phase.is_final}
    runs = [run for run in snapshot.workloads if run.uid in holding]
    rates = {run.uid: rate_of(run.gang, snapshot.nodes) for run in runs}
    for run in runs:
        if run.spec.max_cost is not None and rates[run.uid]:
            left = run.spec.max_cost * MICROUSD - spending.by_run.get(run.uid, 0)
            yield now + left / rates[run.uid] - run.spec.grace_s
    for account in accounts_of(snapshot.teams):
        charged = [run for run in runs if account.charges(run.spec)] if account.stops else []
        rate = sum(rates[run.uid] for run in charged)
        if rate:
            left = account.limit - account.spent(spending)
            yield now + (left - sum(rates[run.uid] * run.spec.grace_s for run in charged)) / rate


def _part(spec: GangSpec, node: Node) -> float:
    """Return the part of a node that a pod pays for, divided as in ledger.usage."""
    gpu = spec.resources.gpu
    if node.gpus:
        return 0.0 if gpu is None else min(1.0, gpu.milli / sum(other.milli for other in node.gpus))
    return min(1.0, (spec.resources.pod_cpu_milli or WHOLE_MILLI) / node.cpu_milli)
