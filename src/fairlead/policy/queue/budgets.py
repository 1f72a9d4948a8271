"""Keeps teams, their projects and runs within what they may spend: who waits for money, and who is stopped because it
is spent.

A run starts only where what is spent, what those that run are expected to cost still, and what it costs itself all lie
within the limit. So a thousand runs that are submitted at once do not pass it together. Of a run of which nobody knows
how long it takes an hour is set aside. Where a team says so, those that run are stopped just before it is spent, early
enough for a checkpoint. Amounts are micro-dollars; docs/decisions/0021 says why it is done so.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from fairlead.frozen import dataclass
from fairlead.policy.queue.durations import Durations
from fairlead.specs.gang import GangSpec
from fairlead.specs.team import PROJECT_LABEL, Budget, Team, WhenSpent
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import WHOLE_MILLI, Node, Pod, Snapshot, Spending, Workload
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A budget and the runs that are charged to it: all those of a team, or those of one of its projects."""

    team: str
    project: str | None = None
    budget: Budget

    @property
    def key(self) -> str:
        """Return the name that no other has, under which is noted what was told of it."""
        return self.team if self.project is None else f"{self.team}/{self.project}"

    @property
    def name(self) -> str:
        return f"team {self.team}" if self.project is None else f"project {self.project} of team {self.team}"

    @property
    def setting(self) -> str:
        """Tell where the limit is set."""
        own = "budget" if self.project is None else "project_budgets"
        return f"the `{own}` of team {self.team}"

    @property
    def limit(self) -> int:
        """Return the micro-dollars of a month."""
        return round(self.budget.monthly * MICROUSD)

    @property
    def stops(self) -> bool:
        return self.budget.when_spent is WhenSpent.STOP

    def charges(self, spec: GangSpec) -> bool:
        """Return whether a run is charged to it."""
        return spec.team == self.team and (self.project is None or spec.labels.get(PROJECT_LABEL) == self.project)

    def spent(self, spending: Spending) -> int:
        """Return the micro-dollars of this month."""
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
            *(Account(team=team.name, project=name, budget=each) for name, each in team.project_budgets.items()),
        )
    )


def reached_notice(account: Account, spending: Spending) -> tuple[int, Reason] | None:
    """Return the highest of 50, 80 and 100 percent of a budget that is spent, with its sentence; None below."""
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
    """The money spent and set aside, changed by whoever starts runs.

    Attributes:
        set_aside: By the keys of accounts, for what those that run are expected to cost from now on.
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
        """The budgets with what runs now."""
        found = cls(snapshot, {team.name: accounts_of([team]) for team in snapshot.teams if team.has_budgets})
        if found.accounts:
            for run in holders:
                if run.spec.team in found.accounts:
                    found.start(run, durations.ends_at(run, pods.get(run.uid, ()), now) - now)
        return found

    def start(self, workload: Workload, length_s: float) -> None:
        """Set aside what a run costs that takes so long; infinity where nobody knows."""
        for account in self._accounts_of(workload):
            self.set_aside[account.key] = self.set_aside.get(account.key, 0.0) + self._cost(workload, length_s)

    def refusal(self, workload: Workload, length_s: float) -> Reason | None:
        """Return why a run may not start for lack of money; None when it may.

        Args:
            length_s: How long it takes at most; infinity where nobody knows.
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
        return next((each for each in refusals if each is not None), None)

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
        return [each for each in self.accounts.get(workload.spec.team, ()) if each.charges(workload.spec)]

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


def budget_overspent(workload: Workload, snapshot: Snapshot) -> Reason | None:
    """Say why a run has to save and stop until its team, or its project, may spend again; None if it may go on."""
    spec, spending = workload.spec, snapshot.spending
    if spending is None:
        return None
    accounts = accounts_of(team for team in snapshot.teams if team.name == spec.team and team.has_budgets)
    for account in accounts:
        if account.stops and account.charges(spec):
            reason = _overspent(account, snapshot, spending)
            if reason is not None:
                return reason
    return None


def _overspent(account: Account, snapshot: Snapshot, spending: Spending) -> Reason | None:
    holding = {pod.workload_uid for pod in snapshot.pods if not pod.phase.is_final}
    runs = [run for run in snapshot.workloads if run.uid in holding and account.charges(run.spec)]
    checkpoints = sum(round(rate_of(run.gang, snapshot.nodes) * run.spec.grace_s) for run in runs)
    spent, limit = account.spent(spending), account.limit
    if spent + checkpoints < limit:
        return None
    return Reason(
        code=Code.OVER_BUDGET,
        message=f"{account.name} has spent {describe_microusd(spent)} of {describe_microusd(limit)} this month, and "
        f"the last checkpoints of its runs may cost {describe_microusd(checkpoints)}",
        remedy=f"It goes on next month, or when {account.setting} is raised.",
    )


def limit_times(snapshot: Snapshot, now: float) -> Iterator[float]:
    """Yield when runs that hold something, and those of a budget that stops them, have to save for the last time.

    Args:
        now: When the snapshot was taken.
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
    """The part of a node that a member pays for, as ledger.usage divides nodes."""
    gpu = spec.resources.gpu
    if node.gpus:
        return 0.0 if gpu is None else min(1.0, gpu.milli / sum(each.milli for each in node.gpus))
    return min(1.0, (spec.resources.cpu_milli or WHOLE_MILLI) / node.cpu_milli)
