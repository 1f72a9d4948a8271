"""The operator's view of gateways: which are ready, the demand that they report, and the keys that they accept.

Nothing is watched before a gateway exists: a cluster without one has no extra cost.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.api.watching import IDLE_S, ObjectCache
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.workloads.team_keys import TeamKeys, read_keys
from fairlead.frozen import dataclass
from fairlead.gateway.packing import DEMAND_KEY, unpacked
from fairlead.policy.serving.routes import places_on_cluster
from fairlead.state.access_keys import AccessKey
from fairlead.state.demand import Demand, merge, read_demand
from fairlead.state.snapshot import Snapshot
from fairlead.untrusted_json import moment

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

REPORTS = f"/api/v1/namespaces/{names.GATEWAY_NAMESPACE}/configmaps"
KEYS = "/api/v1/configmaps"
USES_S = 600.0
"""Seconds between two writes of when the keys of a team were last used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandReport:
    """A gateway's latest report of demand; ``pod`` is the uid of its pod."""

    key: str
    version: int
    pod: str
    document: Object


class Gateways(Controller):
    """The existing gateways. Thread-safe; created before the watches start."""

    name = "gateways"

    def __init__(
        self, client: Client, view: Informers, *, may_act: Callable[[], bool] = lambda: True, idle_s: float = IDLE_S
    ) -> None:
        self._client = client
        self._may_act = may_act
        self._uses_at = 0.0
        self._view = view
        self._lock = threading.Lock()
        self._pods: dict[str, PodObject] = {}
        self._is_watched = False
        chosen = {"fieldSelector": f"metadata.name={names.ACCESS_KEYS}"}
        labelled = {"labelSelector": f"{names.CONTENT}={names.DEMAND}"}
        # An empty list of reports or keys changes nothing, but routes wait until they are known.
        self._reports: ObjectCache[DemandReport] = ObjectCache(
            client, REPORTS, read_report, self._changed, synced=view.wake, query=labelled, idle_s=idle_s
        )
        self._keys: ObjectCache[TeamKeys] = ObjectCache(
            client, KEYS, read_keys, self._changed, synced=view.wake, query=chosen, idle_s=idle_s
        )
        view.pods.listen(self._pod_changed)

    def watch(self) -> None:
        """Watch the reports of gateways once one exists."""
        if self.are_there and not self._is_watched:
            self._is_watched = True
            self._reports.start()
            self._keys.start()

    @property
    def caches(self) -> tuple[ObjectCache[Any], ...]:
        """The caches, once a gateway exists."""
        return (self._reports, self._keys) if self._is_watched else ()

    def stop(self) -> None:
        """End the watches."""
        for cache in self.caches:
            cache.stop()

    @property
    def are_there(self) -> bool:
        """Return whether any gateway exists, ready or not."""
        with self._lock:
            return bool(self._pods)

    @property
    def is_known(self) -> bool:
        """Return whether all reports and keys were listed once, so that routes can be written."""
        return self._is_watched and self._keys.is_synced and self._reports.is_synced

    def ready(self) -> list[PodObject]:
        """Return the ready gateways, by their names."""
        with self._lock:
            gateways = [
                gateway
                for gateway in self._pods.values()
                if gateway.ready and gateway.told_at is None and gateway.address
            ]
        return sorted(gateways, key=lambda gateway: gateway.key)

    def keys(self) -> tuple[AccessKey, ...]:
        """Return the keys of all teams."""
        return tuple(
            key for team_keys in sorted(self._keys.all(), key=lambda team_keys: team_keys.key) for key in team_keys.keys
        )

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        if not snapshot.parents or not self.are_there:
            return snapshot
        demand = self.demand({uid: place.name for uid, place in places_on_cluster(snapshot).items()})
        return replace(snapshot, demand=demand) if demand else snapshot

    def act(self, turn: Turn) -> None:
        """Queue the annotations that show when the keys of a team were last used, each at most every ten minutes."""
        agent, now = turn.agent, turn.now
        if now < self._uses_at or not self.is_known:
            return
        self._uses_at = now + USES_S
        uses: dict[str, float] = {}
        for report in self._reports.all():
            epochs = report.document.get("keys")
            for digest, epoch in epochs.items() if isinstance(epochs, dict) else ():
                uses[digest] = max(uses.get(digest, 0.0), moment(epoch) or 0.0)
        for team in self._keys.all():
            known = {key.sha256: key.last_used_at or 0.0 for key in team.keys}
            latest = {digest: max(epoch, uses.get(digest, 0.0)) for digest, epoch in known.items()}
            if latest != known:
                name = f"tell when the keys of {team.key} were used {now}"
                agent.submit(f"keys of {team.key}", name, partial(self._write_uses, team, latest))

    def _write_uses(self, team: TeamKeys, uses: Mapping[str, float]) -> None:
        if not self._may_act():
            return
        namespace, _, name = team.key.partition("/")
        annotation = json.dumps({digest: round(epoch) for digest, epoch in uses.items() if epoch})
        body = {"metadata": {"uid": team.uid, "annotations": {names.KEY_USES: annotation}}}
        try:
            self._client.merge(f"/api/v1/namespaces/{segment(namespace)}/configmaps/{segment(name)}", body)
        except ApiError as error:
            if error.status not in (404, 409):  # the keys were removed
                raise

    def demand(self, places: Mapping[str, str]) -> dict[str, Demand]:
        """Return the demand on endpoints, by the keys of the names that gateways use for them."""
        with self._lock:
            uids = {gateway.uid for gateway in self._pods.values()}
        demands_by_endpoint: dict[str, list[Demand]] = {}
        for report in self._reports.all() if self._is_watched else ():
            if report.pod not in uids:
                continue
            try:
                demand_by_name = read_demand(report.document, report.pod, places.values())
            except ValueError as error:
                log.warning("what the gateway %s tells cannot be read: %s", report.key, error)
                continue
            for uid, name in places.items():
                demands_by_endpoint.setdefault(uid, []).append(demand_by_name[name])
        return {uid: merge(demands) for uid, demands in demands_by_endpoint.items()}

    def _changed(self, before: object, after: object) -> None:
        self._view.wake()

    def _pod_changed(self, before: PodObject | None, after: PodObject | None) -> None:
        last = after or before
        if last is None or not last.is_gateway:
            return
        with self._lock:
            if after is None:
                self._pods.pop(last.key, None)
            else:
                self._pods[last.key] = after
        self._view.wake()


def read_report(content: Object) -> DemandReport | None:
    """Read a gateway's report; None for any other content."""
    metadata = content["metadata"]
    owners = metadata.get("ownerReferences") or ()
    pod = next((owner["uid"] for owner in owners if owner.get("kind") == "Pod"), None)
    try:
        document = unpacked((content.get("binaryData") or {})[DEMAND_KEY])
    except (KeyError, ValueError) as error:
        log.warning("the ConfigMap %s is not a valid demand of a gateway: %s", metadata["name"], error)
        return None
    if pod is None:
        return None
    return DemandReport(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        pod=pod,
        document=document,
    )
