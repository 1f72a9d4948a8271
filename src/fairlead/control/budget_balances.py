"""Computes balances of budgets this month, for both the command line and the web page."""

from collections.abc import Iterable

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.ledger_tables import CostGrouping, Payer, month_of, spending_of
from fairlead.frozen import dataclass
from fairlead.ledger.bills import Statement
from fairlead.policy.queue.budgets import Account, accounts_of
from fairlead.specs.team import Team
from fairlead.text.money import describe_microusd


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """A budget and the micro-dollars spent of it this month."""

    account: Account
    spent: int

    @property
    def part(self) -> float:
        return self.spent / self.account.limit

    def __str__(self) -> str:
        spent, limit = describe_microusd(self.spent), describe_microusd(self.account.limit)
        return f"{self.account.name} has spent {spent} of {limit} this month ({self.part:.0%})"


def balances(cluster: ClusterClient, now: float) -> list[Balance]:
    """Return the balances of teams and their projects, in order; empty without budgets.

    Raises:
        NotFound, NotAllowed: No costs are recorded, or the user may not read them.
    """
    teams = [team for team in cluster.teams() if team.has_budgets]
    if not teams:
        return []
    return balances_of(teams, cluster.costs(CostGrouping.ACCOUNT, since=month_of(now)[1], until=now))


def balances_of(teams: Iterable[Team], bill: Statement[Payer]) -> list[Balance]:
    """Return the balances of teams, given the bill of this month by account."""
    spent = spending_of(bill.lines)
    return [Balance(account=account, spent=account.spent(spent)) for account in accounts_of(teams)]
