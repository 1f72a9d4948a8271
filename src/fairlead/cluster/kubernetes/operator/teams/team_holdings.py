"""Writes to the status of every Team what its runs hold, for `kubectl get teams`.

It is written when it has changed, and at most twice a minute, since it changes whenever anything starts or ends. The
patch leaves the rest of the status to the team controller.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.informers.informers import TEAMS, Informers, TeamObject
from fairlead.cluster.kubernetes.manifests.statuses import team_holdings
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.state.snapshot import Snapshot

EVERY_S = 30.0
QUEUE = "team-holdings"


class TeamHoldings(Controller):
    """The holdings of all teams.

    Args:
        may_act: Returns whether this process still leads; asked before each request.
        every_s: Seconds between two writes.
    """

    name = "holdings of teams"

    def __init__(self, view: Informers, *, may_act: Callable[[], bool], every_s: float = EVERY_S) -> None:
        self._view = view
        self._may_act = may_act
        self._every_s = every_s
        self._next_at = 0.0
        self._seen: Snapshot | None = None
        self._written: dict[str, Mapping[str, Any]] = {}

    def act(self, turn: Turn) -> None:
        """Queue the holdings that have changed, if it is time."""
        agent, seen, now = turn.agent, turn.snapshot, turn.now
        if seen is self._seen or time.monotonic() < self._next_at:
            return
        self._seen, self._next_at = seen, time.monotonic() + self._every_s
        holdings = team_holdings(seen)
        teams = [team for team in self._view.teams.all() if not team.is_leaving and team.name in holdings]
        self._written = {team.uid: self._written[team.uid] for team in teams if team.uid in self._written}
        changed = [(team, holdings[team.name]) for team in teams if self._is_news(team, holdings[team.name])]
        if changed:
            agent.submit(QUEUE, f"write holdings of teams at {now}", partial(self._write, changed))

    def _write(self, changed: Sequence[tuple[TeamObject, Mapping[str, Any]]]) -> None:
        for team, held in changed:
            if not self._may_act():
                return
            with self._view.isolation.of(f"holdings of team {team.name}"):
                self._write_one(team, held)

    def _write_one(self, team: TeamObject, held: Mapping[str, Any]) -> None:
        body = {"metadata": {"uid": team.uid}, "status": {"held": held}}
        try:
            self._view.teams.put(self._view.client.merge(f"{TEAMS}/{segment(team.name)}/status", body))
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        self._written[team.uid] = held

    def _is_news(self, team: TeamObject, held: Mapping[str, Any]) -> bool:
        """Return whether the status has to be written; a team that never held anything has none.

        An older definition of the kind drops the field, so that it is not there after it was written.
        """
        if team.held:
            return team.held != held
        return held["runs"] > 0 and self._written.get(team.uid) != held
