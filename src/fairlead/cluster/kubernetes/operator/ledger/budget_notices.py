"""Records an Event for each team, once a month, when half, four fifths or all of one of its budgets is spent."""

from hashlib import blake2s

from fairlead.cluster.kubernetes.informers.informers import Informers, TeamObject
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.events.event_recorder import EventRecorder, PendingEvent
from fairlead.cluster.kubernetes.operator.ledger.ledger_keeper import LedgerKeeper
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.policy.queue.budgets import NOTICES, accounts_of, reached_notice
from fairlead.specs.keys import API_VERSION
from fairlead.state.reasons import Reason

EVERY_S = 30.0


class BudgetNotices(Controller):
    """Checks budgets periodically.

    Args:
        teller: Records the Events.
        ledger: Knows what was spent, and which notices were recorded.
    """

    name = "notices of budgets"

    def __init__(
        self, view: Informers, teller: EventRecorder, ledger: LedgerKeeper, *, every_s: float = EVERY_S
    ) -> None:
        self._view = view
        self._teller = teller
        self._ledger = ledger
        self._every_s = every_s
        self._next_at = 0.0

    def act(self, turn: Turn) -> None:
        """Queue the notices that are due."""
        agent, now = turn.agent, turn.now
        teams = [team for team in self._view.teams.all() if team.spec is not None and team.spec.has_budgets]
        if now < self._next_at or not teams:
            return
        self._next_at = now + self._every_s
        spent = self._ledger.spent_this_month(now)
        if spent is None:
            return
        for team in teams:
            assert team.spec is not None, "they were chosen by it"
            for account in accounts_of([team.spec]):
                notice = reached_notice(account, spent)
                if notice is not None and self._ledger.is_first_notice(account.key, notice[0], now):
                    self._tell(agent, team, notice, now)

    def _tell(self, agent: PodAgent, team: TeamObject, notice: tuple[int, Reason], now: float) -> None:
        percent, reason = notice
        regarding = {"apiVersion": API_VERSION, "kind": "Team", "name": team.name, "uid": team.uid}
        telling = PendingEvent(
            regarding=regarding,
            # Two budgets may be reported at one time.
            name=f"{team.name}.{int(now * 1e6):x}-{blake2s(reason.message.encode(), digest_size=4).hexdigest()}",
            reason=f"Budget{percent}",
            note=reason.message,
            at=now,
            is_warning=percent == NOTICES[-1],
        )
        self._teller.tell(agent, telling, now)
