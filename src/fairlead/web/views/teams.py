"""Shows teams: usage against quotas, and spending against budgets."""

from collections.abc import Mapping
from typing import Any

from fairlead.cluster.ledger_tables import CostGrouping, month_of, spending_of
from fairlead.policy.queue.budgets import Account, accounts_of
from fairlead.policy.queue.dominant_shares import Amounts, capacity
from fairlead.policy.queue.quotas import Ledger
from fairlead.specs.team import Quota, Team
from fairlead.state.snapshot import Phase, Snapshot, Spending
from fairlead.text.money import MICROUSD, describe_microusd
from fairlead.text.quantities import describe_memory
from fairlead.web.bills import bill_of, is_local
from fairlead.web.expected_starts import snapshot_of
from fairlead.web.view import Answer, Question

HOLDS = (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)


def teams(question: Question) -> Answer:
    """List the configured teams, and those that have runs or bills."""
    seen = snapshot_of(question)
    spent = question.paced.value("spent", lambda: _spent(question))
    known = {team.name: team for team in seen.teams}
    holders = [run for run in seen.workloads if run.status.phase in HOLDS]
    ledger = Ledger.of(seen.teams, capacity(seen.nodes), holders)
    names = sorted({*known, *(run.spec.team for run in seen.workloads), *(spent.by_team if spent else ())})
    by_team = {} if spent is None else spent.by_team
    rows = [
        _row(known.get(name, Team(name=name)), name in known, ledger, seen, None if spent is None else by_team)
        for name in names
    ]
    projects = [_project(account, spent) for account in accounts_of(seen.teams) if account.project is not None]
    values = {"rows": rows, "projects": projects, "has_prices": spent is not None, "is_local": is_local(question)}
    return Answer(title="Teams", template="teams.html", values=values)


def _row(
    team: Team, is_described: bool, ledger: Ledger, seen: Snapshot, spent: Mapping[str, int] | None
) -> dict[str, Any]:
    runs = [run for run in seen.workloads if run.spec.team == team.name and not run.status.phase.is_final]
    amount = None if spent is None else spent.get(team.name, 0)
    budget = None if team.budget is None else round(team.budget.monthly * MICROUSD)
    return {
        "name": team.name,
        "is_described": is_described,
        "weight": team.weight,
        "num_running": sum(run.status.phase in HOLDS for run in runs),
        "num_waiting": sum(run.status.phase in (Phase.PENDING, Phase.RESTARTING) for run in runs),
        "holds": _amounts(ledger.bound.get(team.name, Amounts())),
        "guaranteed": _quota(team.guaranteed),
        "quota": _quota(team.quota),
        "spent": "-" if amount is None else describe_microusd(amount),
        "budget": "-" if budget is None else describe_microusd(budget),
        "when_spent": "" if team.budget is None else team.budget.when_spent.value,
        "used": None if budget is None or amount is None else amount / budget,
    }


def _project(account: Account, spent: Spending | None) -> dict[str, Any]:
    amount = None if spent is None else account.spent(spent)
    return {
        "team": account.team,
        "project": account.project,
        "spent": "-" if amount is None else describe_microusd(amount),
        "budget": describe_microusd(account.limit),
        "when_spent": account.budget.when_spent.value,
        "used": None if amount is None else amount / account.limit,
    }


def _spent(question: Question) -> Spending | None:
    """Return micro-dollars of this month, from the same rows as ``fairlead cost``; None if costs are not recorded."""
    bill = bill_of(question, CostGrouping.ACCOUNT, month_of(question.now)[1])
    return None if bill is None else spending_of(bill.lines)


def _amounts(held: Amounts) -> str:
    return f"{held.gpu_milli / 1000:g} GPU, {held.cpu_milli / 1000:g} CPU, {describe_memory(held.memory_bytes)}"


def _quota(quota: Quota) -> str:
    parts = [] if quota.gpu_milli is None else [f"{quota.gpu_milli / 1000:g} GPU"]
    parts += [] if quota.cpu_milli is None else [f"{quota.cpu_milli / 1000:g} CPU"]
    parts += [] if quota.memory_bytes is None else [describe_memory(quota.memory_bytes)]
    return ", ".join(parts) or "-"
