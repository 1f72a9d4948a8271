"""A cache of a list of objects that a watch keeps up to date, through every kind of interruption.

It lists in pages, then watches from that resource version. A watch that ends, breaks or falls silent is resumed. If the
server no longer has that version (410), the list is fetched again and compared. ``read`` reduces objects as they
arrive, so that the cache is small. Objects that Fairlead writes are put in at once, so that it reads its own writes.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object, Stream
from fairlead.cluster.kubernetes.api.pacing import between, jittered
from fairlead.errors import ClusterError

log = logging.getLogger(__name__)

# A server sends a bookmark about once a minute; longer silence means that the server is gone.
IDLE_S = 90.0
# client-go uses 5 to 10 minutes, so that watches spread over the servers again after one restarted.
WATCH_S = (300, 600)
FIRST_BACKOFF_S, MOST_BACKOFF_S = 0.2, 15.0
# Number of remembered deletions, so that an older event of an object does not restore it.
MOST_TOMBSTONES = 20_000


class Kept(Protocol):
    """An object in a cache."""

    @property
    def key(self) -> str: ...

    @property
    def version(self) -> int:
        """``metadata.resourceVersion``, which Kubernetes guarantees to be ordered."""
        ...


T = TypeVar("T", bound=Kept)


class Cache(Generic[T]):
    """The objects of one path.

    Args:
        read: Reduces an object; None leaves it out.
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
        self._kept: dict[str, T] = {}
        self._tombstones: dict[str, int] = {}
        self._version = ""
        self._stopping = threading.Event()
        self._synced = threading.Event()
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)
        self.trouble: ClusterError | None = None
        self.num_lists = 0
        self.num_watches = 0
        self._num_heard = 0
        self.heard_at = time.monotonic()

    def listen(self, changed: Callable[[T | None, T | None], None]) -> None:
        """Add a listener for every change; call it before ``start``."""
        self._listeners.append(changed)

    def start(self) -> None:
        """Start in a separate thread."""
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

    def get(self, key: str) -> T | None:
        """Return one object as last seen, or None."""
        with self._lock:
            return self._kept.get(key)

    def all(self) -> tuple[T, ...]:
        """Return all objects as last seen."""
        with self._lock:
            return tuple(self._kept.values())

    def was_deleted(self, key: str) -> bool:
        """Return whether the cache itself saw the deletion of the object."""
        with self._lock:
            return key in self._tombstones

    def put(self, content: Object) -> T | None:
        """Add an object that one of Fairlead's own writes returned."""
        value = self._read(content)
        if value is not None:
            self._take(value)
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
            listener(before, after)

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
        for page in self._client.pages(self.path, self._query):
            version = str(page["metadata"]["resourceVersion"])
            for content in page.get("items") or ():
                value = self._read(content)
                if value is not None:
                    seen.add(value.key)
                    self._take(value)
        with self._lock:
            # An object newer than the list is not gone: Fairlead wrote it in the meantime.
            gone = [value for key, value in self._kept.items() if key not in seen and value.version <= int(version)]
        for value in gone:
            self._bury(value.key, int(version))
        self._version = version
        self.trouble = None
        self.heard_at = time.monotonic()
        if not self._synced.is_set():
            self._synced.set()
            if self._when_synced is not None:
                self._when_synced()

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
        with self._client.stream(self.path, query, idle_s=self._idle_s) as stream:
            self._stream = stream
            self.trouble = None
            try:
                for line in stream:
                    self.heard_at = time.monotonic()
                    self._num_heard += 1
                    if self._stopping.is_set():
                        return
                    self._hear(_event(line))
            finally:
                self._stream = None

    def _hear(self, event: Object) -> None:
        kind, content = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            what = f"watch of {self.path}"
            raise ApiError(
                what, int(content.get("code") or 500), str(content.get("reason") or ""), str(content.get("message"))
            )
        version = str((content.get("metadata") or {}).get("resourceVersion") or "")
        if kind != "BOOKMARK":
            value = self._read(content)
            if value is not None and kind == "DELETED":
                self._take(value)  # the final state, such as how its containers ended
                self._bury(value.key, value.version)
            elif value is not None:
                self._take(value)
        self._version = version or self._version

    def _take(self, value: T) -> None:
        with self._telling:
            with self._lock:
                before = self._kept.get(value.key)
                if before is not None and before.version >= value.version:
                    return
                if self._tombstones.get(value.key, -1) >= value.version:
                    return
                self._kept[value.key] = value
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
        kept = self._kept.get(key)
        return self._kept.pop(key) if kept is not None and kept.version <= version else None


def _event(line: bytes) -> Object:
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise ClusterError("the watch sent half an event") from error
    if not isinstance(found, dict):
        raise ClusterError("the watch sent something that is not an event")
    return found
