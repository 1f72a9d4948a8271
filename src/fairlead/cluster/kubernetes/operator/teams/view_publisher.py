"""Publishes to each namespace with runs, or of a team, what its members need to see of the cluster.

It is written when it has changed, and at most once a minute, since it changes whenever anything starts or ends.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.api.client import BUSY, ApiError, Client
from fairlead.cluster.kubernetes.manifests.team_views import NAME, pack_state, render_view
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.policy.queue.shared_view import OwnPart, share
from fairlead.state.snapshot import Snapshot

log = logging.getLogger(__name__)

EVERY_S = 60.0
QUEUE = "team-views"
# A namespace that is gone or being deleted, or an object that is never accepted.
REFUSED = frozenset({400, 403, 404, 413, 422})


class ViewPublisher(Controller):
    """Writes the views of all namespaces.

    Args:
        may_act: Returns whether this process still leads; asked before each request.
        every_s: Seconds between two writes.
    """

    name = "views of teams"

    def __init__(
        self, client: Client, isolation: Isolation, *, may_act: Callable[[], bool], every_s: float = EVERY_S
    ) -> None:
        self._client = client
        self._isolation = isolation
        self._may_act = may_act
        self._every_s = every_s
        self._next_at = 0.0
        self._seen: Snapshot | None = None
        self._debts: Mapping[str, float] = {}
        self._written: dict[str, bytes] = {}

    def act(self, turn: Turn) -> None:
        """Queue the views that have changed, if it is time."""
        agent, seen, now = turn.agent, turn.snapshot, turn.now
        if time.monotonic() < self._next_at:
            return
        coarse = {team: 60.0 * round(debt_s / 60.0) for team, debt_s in turn.debts.items()}
        if seen is self._seen and coarse == self._debts:
            return
        self._seen, self._debts, self._next_at = seen, coarse, time.monotonic() + self._every_s
        agent.submit(QUEUE, f"publish views at {now}", partial(self._publish, replace(seen, debts=coarse)))

    def _publish(self, seen: Snapshot) -> None:
        state, parts = share(seen)
        packed = pack_state(state)
        if packed is None:
            log.warning("the cluster is too large for the views of its teams, which see only their own runs")
            return
        for namespace, part in parts.items():
            if not self._may_act():
                return
            with self._isolation.of(f"view of {namespace}"):
                self._write(namespace, packed, part)
        self._written = {name: digest for name, digest in self._written.items() if name in parts}

    def _write(self, namespace: str, packed: str, part: OwnPart) -> None:
        content: dict[str, Any] = render_view(namespace, packed, part)
        digest = sha256(f"{packed}{content['data']}".encode()).digest()
        if self._written.get(namespace) == digest:
            return
        try:
            self._client.apply(f"/api/v1/namespaces/{segment(namespace)}/configmaps/{NAME}", content, retried=BUSY)
        except ApiError as error:
            if error.status not in REFUSED:
                raise
            log.info("the view of %s is not published: %s", namespace, error)
        self._written[namespace] = digest
