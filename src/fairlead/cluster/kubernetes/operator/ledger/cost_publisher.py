"""Publishes the costs of each day in ConfigMaps, which people read with their own rights.

All costs are in the operator's namespace, those of a team in the team's. They are updated from the ledger while their
day lasts, and again when later findings change that day.
"""

import logging
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.manifests.cost_objects import (
    LINES,
    TEAM,
    WHOLE,
    DayCosts,
    of_team,
    render_costs,
)
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.ledger.ledger_keeper import DayBills, LedgerKeeper
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.errors import ClusterError
from fairlead.ledger.comparison import pool_loads
from fairlead.ledger.usage import DAY_MS

log = logging.getLogger(__name__)

EVERY_S = 60.0
QUEUE = "costs"
# A namespace that is gone or being deleted, and an object that is never accepted, such as one that is too large.
GONE = frozenset({403, 404})
REFUSED = GONE | {400, 413, 422}


class CostPublisher(Controller):
    """Updates the objects of days that have changed.

    Args:
        namespace: The operator's own.
        may_act: Returns whether this process still leads; asked before each request.
        every_s: Seconds between two checks.
    """

    name = "costs"

    def __init__(
        self,
        client: Client,
        ledger: LedgerKeeper,
        namespace: str,
        *,
        may_act: Callable[[], bool] = lambda: True,
        every_s: float = EVERY_S,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._namespace = namespace
        self._may_act = may_act
        self._every_s = every_s
        self._next_at = 0.0
        self._days: set[int] = set()
        self._written: dict[tuple[str, str], bytes] = {}

    def act(self, turn: Turn) -> None:
        """Queue the objects that are to be written now."""
        agent, now = turn.agent, turn.now
        if now < self._next_at:
            return
        self._next_at = now + self._every_s
        self._days |= self._ledger.touched_days(now)
        try:
            for day in sorted(self._days):
                costs = self._ledger.costs_of(day, now)
                if costs is None:
                    return  # checked again as soon as the ledger is available
                if self._publish(agent, costs, day, min(now, (day + 1) * DAY_MS / 1000)):
                    self._days.discard(day)
        except ClusterError as error:
            log.warning("costs are not renewed: %s", error)

    def _publish(self, agent: PodAgent, bills: DayBills, day: int, at: float) -> bool:
        """Queue what is not written yet; return whether nothing was left."""
        lines, pools = bills.statement.lines, bills.pools
        if not lines:
            return True
        loads = pool_loads(bills.held, pools, day * DAY_MS, round(at * 1000))
        costs = DayCosts(day=day, at=at, lines=lines, pools=pools, loads=loads.get(None, {}))
        teams = sorted({line.key.team for line in costs.lines if line.key is not None})
        objects = [render_costs(costs, WHOLE, self._namespace)]
        objects += [render_costs(of_team(costs, team, loads.get(team, {})), TEAM, team) for team in teams]
        done = [self._give(agent, content) for content in objects]
        return all(done)

    def _give(self, agent: PodAgent, content: dict[str, Any]) -> bool:
        metadata = content["metadata"]
        key = metadata["namespace"], metadata["name"]
        if self._written.get(key) == _digest(content):
            return True
        agent.submit(QUEUE, f"write {'/'.join(key)} {content['data']['at']}", partial(self._write, key, content))
        return False

    def _write(self, key: tuple[str, str], content: dict[str, Any]) -> None:
        if not self._may_act():
            return
        namespace, name = key
        try:
            self._client.apply(f"/api/v1/namespaces/{segment(namespace)}/configmaps/{segment(name)}", content)
        except ApiError as error:
            if error.status not in REFUSED:
                raise
            if error.status not in GONE:
                log.error("the costs %s of %s are not shown: %s", name, namespace, error)
        self._written[key] = _digest(content)


def _digest(content: dict[str, Any]) -> bytes:
    """Return a hash of the costs, which takes less memory than the costs of each day and team."""
    return sha256(content["binaryData"][LINES].encode()).digest()
