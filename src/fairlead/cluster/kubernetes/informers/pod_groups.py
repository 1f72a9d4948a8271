"""Detects whether the API server has PodGroups, and watches those of gangs where it does.

Kubernetes serves them from 1.37 on where its feature gate GenericWorkload is on. Earlier versions have other shapes of
them (``v1alpha1`` and ``v1alpha2``), which are not used.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.api.paging import TooLong
from fairlead.cluster.kubernetes.api.watching import IDLE_S, ObjectCache
from fairlead.cluster.kubernetes.informers.pod_index import RunKey
from fairlead.cluster.kubernetes.manifests.pod_groups import BASE, RESOURCE
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.untrusted_json import fields, items, text, whole

log = logging.getLogger(__name__)

SERVED_S = 300.0
"""How long an answer counts; an administrator may turn the feature on or off meanwhile."""
MOST_ANSWER_BYTES = 1 << 20
# A gang that starts before the first list would go without a group.
SYNC_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroupObject:
    """A PodGroup that is, by name, owner and label, of an attempt of a run.

    Attributes:
        key: ``namespace/name``.
        run_uid: The uid of the run that it names as its owner, which has it only if it is the one of ``run_key``.
        min_count: Pods that are placed together or not at all; 0 if it is no group of a gang.
        priority: As the API server has resolved it; None if it did not.
        is_whole: Its pods can only be evicted together.
        is_leaving: It is being deleted, for which Kubernetes waits until none of its pods is alive.
    """

    key: str
    version: int
    uid: str
    run_uid: str
    run_key: RunKey
    attempt: int
    min_count: int
    priority: int | None
    is_whole: bool
    is_leaving: bool


class PodGroups:
    """The PodGroups of gangs. Safe to use from several threads.

    Args:
        changed: Called with the uid of a run whose groups have changed.
        key_of: Returns kind, and namespace and name, of the run of a uid; None if there is none.
    """

    def __init__(
        self,
        client: Client,
        changed: Callable[[str], None],
        key_of: Callable[[str], RunKey | None],
        *,
        idle_s: float = IDLE_S,
    ) -> None:
        self._client = client
        self._changed = changed
        self._key_of = key_of
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._served = False
        self._asked_at = float("-inf")
        self._cache: ObjectCache[PodGroupObject] | None = None
        self._of_run: dict[tuple[str, RunKey], dict[str, PodGroupObject]] = {}

    @property
    def is_due(self) -> bool:
        """Return whether the API server is to be asked again."""
        return time.monotonic() - self._asked_at >= SERVED_S

    @property
    def is_used(self) -> bool:
        """Return whether the API server has PodGroups, and those that exist are known."""
        cache = self._cache
        return self._served and cache is not None and cache.is_synced

    def look(self) -> None:
        """Ask the API server whether it has PodGroups, and watch them from the first time that it does.

        Raises:
            ClusterError: It does not answer.
        """
        served = self._is_served()
        self._served, self._asked_at = served, time.monotonic()
        with self._lock:
            is_new = served and self._cache is None
            if is_new:
                self._cache = ObjectCache(
                    self._client, f"{BASE}/{RESOURCE}", read_pod_group, self._note, idle_s=self._idle_s,
                    query={"labelSelector": f"{names.RUN_UID},{names.MANAGED_BY}={names.MANAGER}"},
                )  # fmt: skip
        if is_new and self._cache is not None:
            self._cache.start()

    def start(self) -> None:
        """Ask for the first time, and wait shortly for the list; what fails here is tried again later."""
        try:
            self.look()
        except ClusterError as error:
            log.warning("it is unknown whether the API server has PodGroups: %s", error)
            return
        deadline = time.monotonic() + SYNC_S
        while self._served and not self.is_used and time.monotonic() < deadline:
            cache = self._cache
            if cache is not None and isinstance(cache.trouble, ApiError) and cache.trouble.status in (403, 404):
                log.warning("gangs have no PodGroups: %s", cache.trouble)
                return
            time.sleep(0.02)

    def stop(self) -> None:
        """End the watch."""
        if self._cache is not None:
            self._cache.stop()

    def refuse(self) -> None:
        """Use none until the API server was asked again, because it does not take them as it says."""
        self._served, self._asked_at = False, time.monotonic()

    def of_run(self, uid: str) -> Mapping[str, PodGroupObject]:
        """Return the groups of a run by their names."""
        key = self._key_of(uid)
        if key is None:
            return {}
        with self._lock:
            return dict(self._of_run.get((uid, key), {}))

    def put(self, content: Object) -> PodGroupObject | None:
        """Take in a group from an answer of the API server; return None for one that is of no run."""
        cache = self._cache
        return read_pod_group(content) if cache is None else cache.put(content)

    def _is_served(self) -> bool:
        try:
            listing, _ = self._client.page(BASE, {}, most_bytes=MOST_ANSWER_BYTES)
        except TooLong:
            return False
        except ApiError as error:
            if error.status in (403, 404):
                return False
            raise
        resources = {text(fields(entry).get("name")) for entry in items(fields(listing).get("resources"))}
        return RESOURCE in resources

    def _note(self, before: PodGroupObject | None, after: PodGroupObject | None) -> None:
        with self._lock:
            if before is not None:
                place = before.run_uid, before.run_key
                self._of_run.get(place, {}).pop(_name(before), None)
                if not self._of_run.get(place):
                    self._of_run.pop(place, None)
            if after is not None:
                self._of_run.setdefault((after.run_uid, after.run_key), {})[_name(after)] = after
        # Its status, which the scheduler writes, changes nothing here.
        if before is None or after is None or before != replace(after, version=before.version):
            groups = [group for group in (before, after) if group is not None]
            for uid in {group.run_uid for group in groups if self._key_of(group.run_uid) == group.run_key}:
                self._changed(uid)


def read_pod_group(content: Object) -> PodGroupObject | None:
    """Read a PodGroup; None for one that is not of a run by its label, its owner and its name."""
    metadata, spec = content["metadata"], fields(content.get("spec"))
    labels, owner = fields(metadata.get("labels")), names.controller_of(metadata)
    attempt = text(labels.get(names.ATTEMPT)) or ""
    name, kind, uid = (str(owner.get(key) or "") for key in ("name", "kind", "uid"))
    if not (attempt.isascii() and attempt.isdigit()) or names.group_of(owner) != names.DOMAIN:
        return None
    if labels.get(names.RUN_UID) != uid or metadata["name"] != names.pod_group_name_of(name, uid, int(attempt)):
        return None
    gang = fields(fields(spec.get("schedulingPolicy")).get("gang"))
    return PodGroupObject(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        uid=str(metadata["uid"]),
        run_uid=uid,
        run_key=(kind, f"{metadata['namespace']}/{name}"),
        attempt=int(attempt),
        min_count=whole(gang.get("minCount")) or 0,
        priority=whole(spec.get("priority")),
        is_whole="all" in fields(spec.get("disruptionMode")),
        is_leaving="deletionTimestamp" in metadata,
    )


def _name(group: PodGroupObject) -> str:
    return group.key.partition("/")[2]
