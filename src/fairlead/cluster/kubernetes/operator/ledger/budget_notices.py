"""Tells of each team once a month, as an Event, that half, four fifths or all of its budget is spent."""

from fairlead.cluster.kubernetes.operator.events.event_recorder import EventRecord, EventRecorder
from fairlead.cluster.kubernetes.operator.ledger.ledger_keeper import LedgerKeeper
from fairlead.cluster.kubernetes.operator.pods.pod_agent import Agent
from fairlead.cluster.kubernetes.operator.runs.informers import Informers
from fairlead.policy.queue.budgets import NOTICES, reached_notice
from fairlead.specs.keys import API_VERSION

EVERY_S = 30.0


class BudgetNotices:
    """Looks at budgets now and then.

    Args:
        teller: Creates the Events.
        ledger: Knows what was spent, and what was told.
    """

    def __init__(
        self, view: Informers, teller: EventRecorder, ledger: LedgerKeeper, *, every_s: float = EVERY_S
    ) -> None:
        self._view = view
        self._teller = teller
        self._ledger = ledger
        self._every_s = every_s
        self._next_at = 0.0

    def act(self, agent: Agent, now: float) -> None:
        """Give out what is to be told now."""
        teams = [team for team in self._view.teams.all() if team.spec is not None and team.spec.budget is not None]
        if now < self._next_at or not teams:
            return
        self._next_at = now + self._every_s
        spent = self._ledger.spent_by_team(now)
        if spent is None:
            return
        for team in teams:
            assert team.spec is not None, "they were chosen by it"
            notice = reached_notice(team.spec, spent.get(team.name, 0))
            if notice is not None and self._ledger.is_first_notice(team.name, notice[0], now):
                percent, reason = notice
                regarding = {"apiVersion": API_VERSION, "kind": "Team", "name": team.name, "uid": team.uid}
                telling = EventRecord(
                    regarding=regarding,
                    name=f"{team.name}.{int(now * 1e6):x}",
                    reason=f"Budget{percent}",
                    note=reason.message,
                    at=now,
                    is_warning=percent == NOTICES[-1],
                )
                self._teller.tell(agent, telling, now)
