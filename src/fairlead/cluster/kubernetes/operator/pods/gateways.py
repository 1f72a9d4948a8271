"""The operator's view of gateways: which are ready, the demand that they report, and the keys that they accept.

Nothing is watched before a gateway exists: a cluster without one has no extra cost.
"""

import json
import logging
import threading
from collections.abc import Mapping

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import Client, Object
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.api.watching import IDLE_S, Cache
from fairlead.cluster.kubernetes.operator.runs.informers import Informers
from fairlead.frozen import dataclass
from fairlead.gateway.packing import DEMAND_KEY, unpacked
from fairlead.state.access_keys import AccessKey
from fairlead.state.demand import Demand, merge, read_demand

log = logging.getLogger(__name__)

REPORTS = f"/api/v1/namespaces/{names.GATEWAY_NAMESPACE}/configmaps"
KEYS = "/api/v1/configmaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A gateway's latest report of demand; ``pod`` is the uid of its pod."""

    key: str
    version: int
    pod: str
    document: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamKeys:
    """The keys that a team has created."""

    key: str
    version: int
    keys: tuple[AccessKey, ...]


class Gateways:
    """The existing gateways. Thread-safe; created before the watches start."""

    def __init__(self, client: Client, view: Informers, *, idle_s: float = IDLE_S) -> None:
        self._view = view
        self._lock = threading.Lock()
        self._pods: dict[str, PodObject] = {}
        self._is_watched = False
        chosen = {"fieldSelector": f"metadata.name={names.ACCESS_KEYS}"}
        labelled = {"labelSelector": f"{names.CONTENT}={names.DEMAND}"}
        # An empty list of reports or keys changes nothing, but routes wait until they are known.
        self._reports: Cache[Report] = Cache(
            client, REPORTS, read_report, self._changed, synced=view.wake, query=labelled, idle_s=idle_s
        )
        self._keys: Cache[TeamKeys] = Cache(
            client, KEYS, read_keys, self._changed, synced=view.wake, query=chosen, idle_s=idle_s
        )
        view.pods.listen(self._pod_changed)

    def watch(self) -> None:
        """Watch the reports of gateways once one exists."""
        if self.are_there and not self._is_watched:
            self._is_watched = True
            self._reports.start()
            self._keys.start()

    def stop(self) -> None:
        """End the watches."""
        if self._is_watched:
            self._reports.stop()
            self._keys.stop()

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
            found = [each for each in self._pods.values() if each.ready and each.told_at is None and each.address]
        return sorted(found, key=lambda each: each.key)

    def keys(self) -> tuple[AccessKey, ...]:
        """Return the keys of all teams."""
        return tuple(key for each in sorted(self._keys.all(), key=lambda each: each.key) for key in each.keys)

    def demand(self, places: Mapping[str, str]) -> dict[str, Demand]:
        """Return the demand on endpoints, by the keys of the names that gateways use for them."""
        with self._lock:
            uids = {each.uid for each in self._pods.values()}
        told: dict[str, list[Demand]] = {}
        for report in self._reports.all() if self._is_watched else ():
            if report.pod not in uids:
                continue
            try:
                found = read_demand(report.document, report.pod, places.values())
            except (KeyError, TypeError, ValueError) as error:
                log.warning("what the gateway %s tells cannot be read: %s", report.key, error)
                continue
            for uid, name in places.items():
                told.setdefault(uid, []).append(found[name])
        return {uid: merge(demands) for uid, demands in told.items()}

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


def read_report(content: Object) -> Report | None:
    """Read a gateway's report; None for any other content."""
    metadata = content["metadata"]
    owners = metadata.get("ownerReferences") or ()
    pod = next((each["uid"] for each in owners if each.get("kind") == "Pod"), None)
    try:
        document = unpacked((content.get("binaryData") or {})[DEMAND_KEY])
    except (KeyError, ValueError) as error:
        log.warning("the ConfigMap %s is not a valid demand of a gateway: %s", metadata["name"], error)
        return None
    if pod is None:
        return None
    return Report(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        pod=pod,
        document=document,
    )


def read_keys(content: Object) -> TeamKeys:
    """Read the keys of a team; invalid ones are skipped."""
    metadata = content["metadata"]
    team = metadata["namespace"]
    found = []
    for name, text in (content.get("data") or {}).items():
        try:
            told = json.loads(text)
            found.append(
                AccessKey(
                    team=team, name=name, sha256=str(told["sha256"]), created_at=float(told.get("created_at") or 0.0)
                )
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            log.warning("%s of %s in %s is no key", name, metadata["name"], team)
    return TeamKeys(
        key=f"{team}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        keys=tuple(each for each in found if is_hash(each.sha256)),
    )


def is_hash(text: str) -> bool:
    """Return whether a text may be the hash of a key."""
    return len(text) == 64 and set(text) <= set("0123456789abcdef")
