"""A cache of a list of objects that a watch keeps up to date, through every kind of interruption.

It lists in pages, then watches from that resource version. A watch that ends, breaks or falls silent is resumed. If the
server no longer has that version (410), the list is fetched again and compared. ``read`` reduces objects as they
arrive, so that the cache is small. Objects that Fairlead writes are put in at once, so that it reads its own writes.

An object that cannot be read is set apart, and the others are followed all the same. It counts as it could last be
read, so that a pod goes on to hold its node and a run its quota, until a version of it can be read or it is deleted.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from fairlead.cluster.isolation import describe
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object, ResponseStream
from fairlead.cluster.kubernetes.api.pacing import between, jittered
from fairlead.cluster.kubernetes.api.paging import MOST_OBJECT_BYTES, cut_event
from fairlead.cluster.kubernetes.api.shallow import loads, problem_of
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.untrusted_json import fields, items, text

log = logging.getLogger(__name__)

# A server sends a bookmark about once a minute; longer silence means that the server is gone.
IDLE_S = 90.0
# client-go uses 5 to 10 minutes, so that watches spread over the servers again after one restarted.
WATCH_S = (300, 600)
FIRST_BACKOFF_S, MOST_BACKOFF_S = 0.2, 15.0
MOST_EVENT_BYTES = MOST_OBJECT_BYTES + 100
MOST_LISTING = 2
"""Lists of one client of which a page is in memory, so that a start with large objects in each list is bounded too."""
# Number of remembered deletions, so that an older event of an object does not restore it.
MOST_TOMBSTONES = 20_000


class CachedObject(Protocol):
    """An object in a cache."""

    @property
    def key(self) -> str: ...

    @property
    def version(self) -> int:
        """``metadata.resourceVersion``, which Kubernetes guarantees to be ordered."""
        ...


T = TypeVar("T", bound=CachedObject)
_listing = threading.BoundedSemaphore(MOST_LISTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """An object that cannot be read.

    Attributes:
        version: The version that could not be read; 0 if even that is unknown.
        problem: Why not.
        finalizers: As in the object.
        is_leaving: It is being deleted.
    """

    key: str
    path: str
    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    version: int
    problem: str
    finalizers: tuple[str, ...] = ()
    is_leaving: bool = False


class ObjectCache(Generic[T]):
    """The objects of one path.

    Args:
        read: Reduces an object; None leaves it out, also if it was in the cache before.
        changed: Called, for one change at a time, with the cached value before and after it; None for no value.
        synced: Called once the first list is complete, because ``changed`` is not called for an empty list.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        read: Callable[[Object], T | None],
        changed: Callable[[T | None, T | None], None],
        *,
        synced: Callable[[], None] | None = None,
        query: dict[str, str] | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._client = client
        self.path = path
        self._read = read
        self._listeners = [changed]
        self._when_synced = synced
        self._query = query or {}
        self._idle_s = idle_s
        self._lock = threading.Lock()
        # A caller of ``put`` returns once the listeners were called, from whichever thread.
        self._telling = threading.Lock()
        self._values: dict[str, T] = {}
        self._unreadable: dict[str, Unreadable] = {}
        self._traced: set[str] = set()
        self._tombstones: dict[str, int] = {}
        self._version = ""
        self._stopping = threading.Event()
        self._synced = threading.Event()
        self._stream: ResponseStream | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)
        self.trouble: ClusterError | None = None
        self._lost_at: float | None = time.monotonic()
        self.num_lists = 0
        self.num_watches = 0
        self._num_heard = 0
        self.heard_at = time.monotonic()

    def listen(self, changed: Callable[[T | None, T | None], None]) -> None:
        """Add a listener for every change; call it before ``start``."""
        self._listeners.append(changed)

    def start(self) -> None:
        """Start in a separate thread."""
        self._lost_at = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, which may take as long as one request."""
        self._stopping.set()
        stream = self._stream
        if stream is not None:
            stream.close()
        if self._thread.is_alive():
            self._thread.join(timeout=self._client.limits.try_s)

    @property
    def is_synced(self) -> bool:
        """True once the first list is complete."""
        return self._synced.is_set()

    @property
    def stale_s(self) -> float:
        """Seconds for which the list was not followed; 0 while a watch of it is open."""
        lost_at = self._lost_at
        return 0.0 if lost_at is None else time.monotonic() - lost_at

    def get(self, key: str) -> T | None:
        """Return one object as last seen, or None."""
        with self._lock:
            return self._values.get(key)

    def all(self) -> tuple[T, ...]:
        """Return all objects as last seen."""
        with self._lock:
            return tuple(self._values.values())

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """The objects of which the latest version cannot be read."""
        if not self._unreadable:
            return ()
        with self._lock:
            return tuple(self._unreadable.values())

    def was_deleted(self, key: str) -> bool:
        """Return whether the cache itself saw the deletion of the object."""
        with self._lock:
            return key in self._tombstones

    def put(self, content: Object) -> T | None:
        """Add an object that one of Fairlead's own writes returned.

        A server may return a deleted object without its version, which then says nothing that the watch will not show.
        """
        if not fields(content.get("metadata")).get("resourceVersion"):
            return None
        value = self._understand(content)
        if value is not None:
            self._take(value)
        else:
            self._leave_out(content)
        return value

    def drop(self, key: str, version: int) -> None:
        """Remove an object that is known to be gone at a version; a newer one of the same name stays."""
        with self._telling:
            with self._lock:
                before = self._pop(key, version)
            if before is not None:
                self._changed(before, None)

    def _changed(self, before: T | None, after: T | None) -> None:
        for listener in self._listeners:
            try:
                listener(before, after)
            except Exception as error:  # noqa: BLE001
                # One object that its follower cannot take is not to end the watch of all others.
                value = after or before
                self._trace("what follows from a change of", "" if value is None else value.key, error)

    def _understand(self, content: Object) -> T | None:
        """Return the value of an object; None if it is left out, or cannot be read and is therefore set apart."""
        try:
            if (problem := problem_of(content)) is not None:
                raise ValueError(problem)
            value = self._read(content)
        except Exception as error:  # noqa: BLE001
            # Anybody may write such an object. It harms itself alone: the others are followed all the same.
            self._set_apart(content, error)
            return None
        if self._unreadable:
            with self._lock:
                known = self._unreadable.pop(_key(content), None)
            if known is not None:
                log.info("%s %s can be read again", self.path, known.key)
        return value

    def _set_apart(self, content: Object, error: Exception) -> None:
        metadata = fields(fields(content).get("metadata"))
        problem, key = describe(error), _key(content)
        apart = Unreadable(
            key=key,
            path=self.path,
            api_version=text(content.get("apiVersion")) or "",
            kind=text(content.get("kind")) or "",
            namespace=text(metadata.get("namespace")) or "",
            name=text(metadata.get("name")) or "",
            uid=text(metadata.get("uid")) or "",
            version=_version(metadata),
            problem=problem,
            finalizers=tuple(
                finalizer for finalizer in items(metadata.get("finalizers")) if isinstance(finalizer, str)
            ),
            is_leaving="deletionTimestamp" in metadata,
        )
        with self._lock:
            known = self._unreadable.get(key)
            self._unreadable[key] = apart
        if known is None or known.problem != problem:
            self._trace("cannot read", key, error)

    def _trace(self, what: str, key: str, error: Exception) -> None:
        """Log the failure of one object; the first of its kind with its place in the code."""
        problem = describe(error)
        kind = problem.partition(":")[0]
        log.error(
            "%s: %s %s: %s", self.path, what, key or "?", problem, exc_info=None if kind in self._traced else error
        )
        self._traced.add(kind)

    def _run(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while not self._stopping.is_set():
            try:
                if not self._version:
                    self._list()
                heard = self._num_heard
                self._watch()
                if self._num_heard != heard:
                    # On a busy cluster a server ends a watch that falls behind; a pause would delay it further.
                    backoff_s = FIRST_BACKOFF_S
                    continue
            except ApiError as error:
                if error.status == 410:
                    log.info("%s: its instant is no longer kept, listing anew", self.path)
                    self._version = ""
                else:
                    self._note(error)
            except ClusterError as error:
                self._note(error)
            except Exception:
                # The thread has no caller; an object that cannot be read must not end the watch for good.
                log.exception("%s: internal error", self.path)
                self._version = ""
            if self._stopping.wait(jittered(backoff_s)):
                return
            backoff_s = min(2 * backoff_s, MOST_BACKOFF_S)

    def _note(self, error: ClusterError) -> None:
        if not self._stopping.is_set():
            self.trouble = error
            log.warning("%s: %s", self.path, error)

    def _list(self) -> None:
        self.num_lists += 1
        seen: set[str] = set()
        version = "0"
        pages = self._client.pages(self.path, self._query)
        while True:
            with _listing:
                page = next(pages, None)
                if page is None:
                    break
                version = str(page["metadata"]["resourceVersion"])
                self._take_page(page.pop("items", None) or [], seen)
                del page
        with self._lock:
            for key in self._unreadable.keys() - seen:
                del self._unreadable[key]
            # An object newer than the list is not gone: Fairlead wrote it in the meantime.
            gone = [value for key, value in self._values.items() if key not in seen and value.version <= int(version)]
        for value in gone:
            self._bury(value.key, int(version))
        self._version = version
        self.trouble = None
        self.heard_at = time.monotonic()
        if not self._synced.is_set():
            self._synced.set()
            if self._when_synced is not None:
                self._when_synced()

    def _take_page(self, contents: list[Object], seen: set[str]) -> None:
        """Take in the objects of a page, and forget each at once but for what is kept of it; add their keys."""
        contents.reverse()
        while contents:
            content = contents.pop()
            value = self._understand(content)
            if value is not None:
                seen.add(value.key)
                self._take(value)
            elif self._unreadable and _key(content) in self._unreadable:
                seen.add(_key(content))  # it is there, and counts as it could last be read

    def _watch(self) -> None:
        self.num_watches += 1
        seconds = between(*WATCH_S)
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }
        with self._client.stream(self.path, query, idle_s=self._idle_s, most_line_bytes=MOST_EVENT_BYTES) as stream:
            self._stream = stream
            self.trouble = self._lost_at = None
            try:
                for line in stream:
                    self.heard_at = time.monotonic()
                    self._num_heard += 1
                    if self._stopping.is_set():
                        return
                    self._hear(self._event(line))
            finally:
                self._stream = None
                self._lost_at = time.monotonic()

    def _event(self, line: bytes) -> Object:
        try:
            return _event(line)
        except ClusterError:
            self._version = ""  # the same event would come again; a list sets its object apart
            raise

    def _hear(self, event: Object) -> None:
        kind, content = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            what = f"watch of {self.path}"
            raise ApiError(
                what, int(content.get("code") or 500), str(content.get("reason") or ""), str(content.get("message"))
            )
        version = str((content.get("metadata") or {}).get("resourceVersion") or "")
        if kind != "BOOKMARK":
            value = self._understand(content)
            if value is not None and kind == "DELETED":
                self._take(value)  # the final state, such as how its containers ended
                self._bury(value.key, value.version)
            elif value is not None:
                self._take(value)
            elif kind == "DELETED" and (apart := self._pop_unreadable(_key(content))) is not None:
                self._bury(apart.key, apart.version)
            else:
                self._leave_out(content)
        self._version = version or self._version

    def _pop_unreadable(self, key: str) -> Unreadable | None:
        with self._lock:
            return self._unreadable.pop(key, None)

    def _leave_out(self, content: Object) -> None:
        """Remove an object that is left out from now on."""
        key = _key(content)
        if key in self._values and key not in self._unreadable:
            self.drop(key, _version(fields(content.get("metadata"))))

    def _take(self, value: T) -> None:
        with self._telling:
            with self._lock:
                before = self._values.get(value.key)
                if before is not None and before.version >= value.version:
                    return
                if self._tombstones.get(value.key, -1) >= value.version:
                    return
                self._values[value.key] = value
            self._changed(before, value)

    def _bury(self, key: str, version: int) -> None:
        with self._telling:
            with self._lock:
                before = self._pop(key, version)
                self._tombstones[key] = max(version, self._tombstones.get(key, -1))
                while len(self._tombstones) > MOST_TOMBSTONES:
                    del self._tombstones[next(iter(self._tombstones))]
            if before is not None:
                self._changed(before, None)

    def _pop(self, key: str, version: int) -> T | None:
        """Remove an object that is not newer: its name may have been reused before the deletion was seen."""
        known = self._values.get(key)
        return self._values.pop(key) if known is not None and known.version <= version else None


def _event(line: bytes) -> Object:
    if len(line) > MOST_EVENT_BYTES:
        return cut_event(line)
    try:
        event: Any = loads(line)
    except ValueError as error:
        raise ClusterError("the watch sent half an event") from error
    if not isinstance(event, dict):
        raise ClusterError("the watch sent something that is not an event")
    return event


def _key(content: Object) -> str:
    """Return the key of an object as caches have it: its name, after its namespace if it has one."""
    metadata = fields(fields(content).get("metadata"))
    namespace, name = text(metadata.get("namespace")), text(metadata.get("name")) or ""
    return f"{namespace}/{name}" if namespace else name


def _version(metadata: Object) -> int:
    number = text(metadata.get("resourceVersion")) or ""
    return int(number) if number.isdecimal() and len(number) < 20 else 0
