"""Watches the objects of engines, from the first run that uses the engine.

A cluster may lack an engine, and most have none, so nothing of them is watched before it is needed.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.api.watching import IDLE_S, ObjectCache
from fairlead.cluster.kubernetes.engines import kueue
from fairlead.cluster.kubernetes.engines.port import Driver, EngineStage, EngineStatus
from fairlead.cluster.kubernetes.engines.table import driver_of, is_queued_by_kueue, missing, needs_of, path_of
from fairlead.cluster.kubernetes.informers.pod_index import RunKey
from fairlead.cluster.kubernetes.workloads.pod_reports import Ending
from fairlead.frozen import dataclass
from fairlead.specs.engines import Engine
from fairlead.specs.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineObject:
    """An engine object for one attempt of a run.

    Attributes:
        key: ``namespace/name``.
        run_uid: The uid of the run that it names as its owner, which has it only if it is the one of ``run_key``.
        is_leaving: It is being deleted.
        is_dispatched: MultiKueue has another cluster carry it out.
        is_suspended: It may have no pods now.
        cluster: Which cluster that is, as MultiKueue names it; empty while none is chosen.
        ending: How the program ended, as its pod reported it; None while it did not.
    """

    key: str
    version: int
    uid: str
    engine: Engine
    run_uid: str
    run_key: RunKey
    attempt: int
    observed: EngineStatus
    is_leaving: bool
    is_dispatched: bool = False
    is_suspended: bool = False
    cluster: str = ""
    ending: Ending | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queued:
    """A message of Kueue on an object in its queue."""

    key: str
    version: int
    owner: str
    message: str
    cluster: str


class EngineObjects:
    """The objects of all engines. Safe to use from several threads.

    Args:
        changed: Called with the uid of a run whose object or message has changed.
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
        self._caches: dict[Engine, ObjectCache[EngineObject]] = {}
        self._queue: ObjectCache[_Queued] | None = None
        self._of_run: dict[tuple[str, RunKey], dict[str, EngineObject]] = {}
        self._by_uid: dict[str, EngineObject] = {}
        self._words: dict[tuple[str, str], _Queued] = {}
        self._warnings: dict[str, str] = {}
        self._endings: dict[str, Ending] = {}
        self._awaiting: dict[Engine, set[str]] = {}

    def watch(self, spec: Training, uid: str) -> None:
        """Start to watch the engine of a run, and Kueue if that admits it; idempotent."""
        engine = spec.engine
        if engine is None:
            return
        with self._lock:
            if not self.is_synced(engine):
                self._awaiting.setdefault(engine, set()).add(uid)
            new: list[ObjectCache[Any]] = []
            if engine not in self._caches:
                driver = driver_of(engine)
                self._caches[engine] = ObjectCache(
                    self._client, path_of(driver), partial(_read, driver), self._note, idle_s=self._idle_s,
                    synced=partial(self._tell_synced, engine),
                    query={"labelSelector": f"{names.ENGINE}={engine.value}"},
                )  # fmt: skip
                new.append(self._caches[engine])
            if self._queue is None and is_queued_by_kueue(spec):
                self._queue = ObjectCache(
                    self._client, kueue.WORKLOADS, _read_queued, self._note_words, idle_s=self._idle_s
                )
                new.append(self._queue)
        for cache in new:
            cache.start()

    def _tell_synced(self, engine: Engine) -> None:
        """Report runs whose object turns out not to exist, which no change tells."""
        with self._lock:
            awaiting = self._awaiting.pop(engine, set())
        for uid in awaiting:
            self._changed(uid)

    @property
    def caches(self) -> list[ObjectCache[Any]]:
        """The caches of the engines that are used."""
        with self._lock:
            return [*self._caches.values(), *([] if self._queue is None else [self._queue])]

    def stop(self) -> None:
        """End all watches."""
        for cache in self.caches:
            cache.stop()

    def is_synced(self, engine: Engine) -> bool:
        """Return whether an engine's objects were all listed once."""
        cache = self._caches.get(engine)
        return cache is not None and cache.is_synced

    def is_ready(self, spec: Training) -> bool:
        """Return whether everything that a run's engine needs is listed."""
        queue = self._queue
        is_queue_there = not is_queued_by_kueue(spec) or (queue is not None and queue.is_synced)
        return spec.engine is not None and self.is_synced(spec.engine) and is_queue_there

    def problem(self, spec: Training) -> str | None:
        """Return what the cluster lacks for a run's engine, or forbids, as a sentence; None if nothing is known to be
        missing."""
        engine = spec.engine
        if engine is None:
            return None
        caches: tuple[ObjectCache[Any] | None, ...] = (self._caches.get(engine), self._queue)
        for (kind, api), cache in zip(needs_of(spec), caches, strict=False):
            trouble = None if cache is None or cache.is_synced else cache.trouble
            if isinstance(trouble, ApiError) and trouble.status == 404:
                return missing(engine, kind, api)
            if isinstance(trouble, ApiError) and trouble.status == 403:
                return f"the operator may not watch {kind} ({api}): `fairlead install` gives it the right"
        return None

    def of_run(self, uid: str) -> Mapping[int, EngineObject]:
        """Return the objects of a run by their attempts."""
        key = self._key_of(uid)
        if key is None:
            return {}
        with self._lock:
            objects = {item.attempt: item for item in self._of_run.get((uid, key), {}).values()}
            messages = {attempt: self._words.get(_place(item)) for attempt, item in objects.items()}
            warned = {attempt: self._warnings.get(item.uid, "") for attempt, item in objects.items()}
            ended = {attempt: self._endings.get(item.uid) for attempt, item in objects.items()}
        return {n: _with_words(item, messages[n], warned[n], ended[n]) for n, item in objects.items()}

    def may_have_made(self, pod: PodObject) -> bool:
        """Return whether a pod that names an engine's object as its owner names the one of its run.

        True for a pod that something between creates, such as the Job of a JobSet, and while the object is not there.
        """
        kind, uid = pod.maker
        with self._lock:
            own = self._of_run.get((pod.run_uid, pod.run_key), {}).values()
            return not any(
                item.attempt == pod.attempt and driver_of(item.engine).kind == kind and item.uid != uid for item in own
            )

    def is_explained(self, item: EngineObject) -> bool:
        """Return whether Kueue reports why an object waits."""
        with self._lock:
            queued = self._words.get(_place(item))
            return queued is not None and bool(queued.message)

    def note_warning(self, item: EngineObject, warning: str) -> None:
        """Record what Events report of an object that waits; Kueue's message has precedence."""
        with self._lock:
            before, self._warnings[item.uid] = self._warnings.get(item.uid, ""), warning
        if before != warning:
            self._changed(item.run_uid)

    def note_ending(self, item: EngineObject, ending: Ending) -> None:
        """Record how the program of an object ended, as its pod reported it."""
        with self._lock:
            before, self._endings[item.uid] = self._endings.get(item.uid), ending
        if before != ending:
            self._changed(item.run_uid)

    def put(self, engine: Engine, content: Mapping[str, Any]) -> EngineObject | None:
        """Take in an object from an answer of the API server."""
        return self._caches[engine].put(dict(content))

    def _note(self, before: EngineObject | None, after: EngineObject | None) -> None:
        with self._lock:
            if before is not None and (after is None or before.uid != after.uid):
                place = before.run_uid, before.run_key
                self._of_run.get(place, {}).pop(before.uid, None)
                if not self._of_run.get(place):
                    self._of_run.pop(place, None)
                self._by_uid.pop(before.uid, None)
                self._warnings.pop(before.uid, None)
                self._endings.pop(before.uid, None)
            if after is not None:
                self._of_run.setdefault((after.run_uid, after.run_key), {})[after.uid] = after
                self._by_uid[after.uid] = after
        if before is None or after is None or before != replace(after, version=before.version):
            seen = (item for item in (before, after) if item is not None)
            for uid in {item.run_uid for item in seen if self._key_of(item.run_uid) == item.run_key}:
                self._changed(uid)

    def _note_words(self, before: _Queued | None, after: _Queued | None) -> None:
        with self._lock:
            if before is not None:
                self._words.pop(_owner_of(before), None)
            if after is not None:
                self._words[_owner_of(after)] = after
            places = [_owner_of(queued) for queued in (before, after) if queued is not None]
            objects = [(self._by_uid.get(owner), namespace) for namespace, owner in places]
        for uid in {item.run_uid for item, namespace in objects if item is not None and _place(item)[0] == namespace}:
            self._changed(uid)


def _place(item: EngineObject) -> tuple[str, str]:
    """Return namespace and uid of an object, by which Kueue's message on it is kept."""
    return item.key.partition("/")[0], item.uid


def _owner_of(queued: _Queued) -> tuple[str, str]:
    return queued.key.partition("/")[0], queued.owner


def _with_words(item: EngineObject, queued: _Queued | None, warning: str, ending: Ending | None) -> EngineObject:
    """Return an object with its cluster and end, and one that waits with Kueue's reason, or an Event's, for it."""
    if ending is not None:
        item = replace(item, ending=ending)
    if queued is not None and queued.cluster:
        item = replace(item, cluster=queued.cluster)
    message = warning if queued is None else queued.message or warning
    if not message or item.observed.stage is not EngineStage.WAITING:
        return item
    return replace(item, observed=replace(item.observed, message=message))


def _read(driver: Driver, content: dict[str, Any]) -> EngineObject | None:
    metadata = content["metadata"]
    labels, owner = metadata.get("labels") or {}, names.controller_of(metadata)
    attempt = labels.get(names.ATTEMPT, "")
    if names.RUN_UID not in labels or not attempt.isdigit() or names.group_of(owner) != names.DOMAIN:
        return None
    name, kind, uid = str(owner.get("name")), str(owner.get("kind")), str(owner.get("uid"))
    if labels[names.RUN_UID] != uid or metadata["name"] != names.engine_object_name_of(name, int(attempt)):
        return None
    return EngineObject(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        uid=str(metadata["uid"]),
        engine=driver.engine,
        run_uid=uid,
        run_key=(kind, f"{metadata['namespace']}/{name}"),
        attempt=int(attempt),
        observed=driver.observe(content),
        is_leaving="deletionTimestamp" in metadata,
        is_dispatched=kueue.is_dispatched(content),
        is_suspended=kueue.is_suspended(content),
    )


def _read_queued(content: dict[str, Any]) -> _Queued | None:
    metadata, owner = content["metadata"], kueue.owner_uid(content)
    if owner is None:
        return None
    return _Queued(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        owner=owner,
        message=kueue.explain(content),
        cluster=kueue.cluster_of(content),
    )
