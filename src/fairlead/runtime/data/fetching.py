"""Fetches bundles and objects: requests in the order in which their samples are needed, many at a time.

See decision 210.
"""

import hashlib
import itertools
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from fairlead.runtime.data.cache import Bundle, Cache, Claim, in_memory
from fairlead.runtime.data.layout import BUNDLE_BYTES, Layout, Member
from fairlead.runtime.data.manifest import DataManifest
from fairlead.runtime.data.stores import DataStore

THREADS = 128
"""Most requests at a time."""
LEAST_THREADS = 32
WINDOW_S = 0.2
PART_BYTES = 2 * BUNDLE_BYTES
AHEAD = 16
"""Bundles on their way or waiting in memory, ahead of the one that is read."""
POLL_S = 0.003
IDLE_S = 5.0


class Workers:
    """Threads that make requests, those needed soonest first. They start when there is work, and end when idle.

    Twice as many requests are on their way as the fastest one so far takes of the requests that are answered a second
    (Little's law): fewer would leave a distant store idle, and more would only wait for each other in a near one.
    """

    def __init__(self, most: int = THREADS) -> None:
        self._most = most
        self._limit = min(LEAST_THREADS, most)
        self._tasks: queue.PriorityQueue[tuple[int, int, Callable[[], None]]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._mutex = threading.Lock()
        self._running = 0
        self._idle = 0
        self._fastest_s = float("inf")
        self._num_done = 0
        self._since = time.monotonic()

    def submit(self, priority: int, task: Callable[[], None]) -> None:
        """Queue a task, which must not raise; lower priorities run first."""
        self._tasks.put((priority, next(self._numbers), task))
        with self._mutex:
            if self._idle == 0:
                self._start(1)

    def clear(self) -> None:
        """Drop the tasks that have not begun."""
        while True:
            try:
                self._tasks.get_nowait()
            except queue.Empty:
                return

    def _start(self, count: int) -> None:
        """Start threads up to the limit; called with the mutex."""
        for _ in range(min(count, self._limit - self._running)):
            self._running += 1
            threading.Thread(target=self._work, name="fairlead-data", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._mutex:
                self._idle += 1
            try:
                _, _, task = self._tasks.get(timeout=IDLE_S)
            except queue.Empty:
                with self._mutex:
                    self._idle -= 1
                    if self._tasks.empty():
                        self._running -= 1
                        return
                continue
            with self._mutex:
                self._idle -= 1
            begun = time.monotonic()
            task()
            if self._is_enough(time.monotonic(), begun):
                return

    def _is_enough(self, now: float, begun: float) -> bool:
        """Count a request, adapt the number of threads, and return whether this one has to end."""
        with self._mutex:
            self._num_done += 1
            self._fastest_s = min(self._fastest_s, now - begun)
            elapsed = now - self._since
            if elapsed > WINDOW_S:
                at_a_time = int(2 * self._fastest_s * self._num_done / elapsed) + 1
                self._limit = max(min(LEAST_THREADS, self._most), min(self._most, at_a_time))
                self._num_done, self._since = 0, now
                self._start(self._tasks.qsize())
            if self._running <= self._limit:
                return False
            self._running -= 1
            return True


class _Fetch:
    """A bundle on its way."""

    def __init__(self, num_parts: int, claim: Claim | None) -> None:
        self.parts: list[bytes] = [b""] * num_parts
        self.missing = num_parts
        self.claim = claim
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.bundle: Bundle | None = None
        self.mutex = threading.Lock()


class Bundles:
    """The bundles of a version, from the cache or the store.

    Args:
        cache: None for bundles in memory alone.
        held: Bundles that are held open behind the one that is read.
    """

    def __init__(
        self, manifest: DataManifest, layout: Layout, store: DataStore, cache: Cache | None, workers: Workers, held: int
    ) -> None:
        self._entries = manifest.entries
        self._layout = layout
        self._store = store
        self._cache = cache if cache is None or cache.takes_files() else None
        self._workers = workers
        self._held = held
        self._open: OrderedDict[int, Bundle] = OrderedDict()
        self._fetches: dict[int, _Fetch] = {}
        self._priorities = itertools.count(1)
        self.fetched_bytes = 0

    def ahead(self, upcoming: Sequence[int]) -> None:
        """Begin to fetch bundles that are needed soon, in their order; those of other processes are left to them."""
        for bundle in upcoming[:AHEAD]:
            if bundle in self._open or bundle in self._fetches:
                continue
            if self._cache is None:
                self._begin(bundle, None, next(self._priorities))
                continue
            name = self._name(bundle)
            if self._cache.path(name).exists():
                continue
            claim = self._cache.claim(name)
            if claim is None:
                continue
            if self._cache.path(name).exists():  # another process was just done
                claim.release()
                continue
            self._begin(bundle, claim, next(self._priorities))

    def ranges(self, entry: int, start: int, stop: int) -> bytes:
        """Return a range of an object.

        Raises:
            DataChanged: An object is not the one of the manifest any more.
            StoreUnavailable: The store cannot be reached, or refuses.
        """
        pieces = self._layout.pieces(entry, start, stop)
        if len(pieces) == 1:
            return self._read(*pieces[0])
        return b"".join(self._read(*piece) for piece in pieces)

    def warm(self) -> int:
        """Fetch all bundles that are not stored, in order; return the bytes of those that are stored then."""
        if self._cache is None:
            return 0
        size = 0
        for bundle in range(len(self._layout.bundles)):
            self.ahead(range(bundle, min(bundle + AHEAD, len(self._layout.bundles))))
            opened = self._arrived(bundle)
            if self._cache is not None and self._cache.path(self._name(bundle)).exists():
                size += opened.size
        return size

    def close(self) -> None:
        """Give up what is on its way."""
        self._workers.clear()
        for fetch in self._fetches.values():
            with fetch.mutex:
                if fetch.claim is not None and not fetch.done.is_set():
                    fetch.claim.release()
                    fetch.claim = None
        self._fetches.clear()
        self._open.clear()

    def _read(self, bundle: int, start: int, stop: int) -> bytes:
        for _ in range(3):
            opened = self._get(bundle)
            try:
                return opened.read(start, stop)
            except ValueError:
                del self._open[bundle]
                if self._cache is not None:
                    self._cache.damaged(self._name(bundle))
        return self._fetch_now(bundle).read(start, stop)

    def _get(self, bundle: int) -> Bundle:
        opened = self._open.get(bundle)
        if opened is not None:
            self._open.move_to_end(bundle)
            return opened
        opened = self._arrived(bundle)
        self._open[bundle] = opened
        while len(self._open) > self._held:
            self._open.popitem(last=False)
        if self._cache is not None:
            self._cache.note(opened.size)
        return opened

    def _arrived(self, bundle: int) -> Bundle:
        """Return a bundle that is not open yet, once it is here."""
        while True:
            fetch = self._fetches.pop(bundle, None)
            if fetch is not None:
                fetch.done.wait()
                if fetch.error is not None:
                    raise fetch.error
                assert fetch.bundle is not None
                return fetch.bundle
            if self._cache is None:
                self._begin(bundle, None, 0)
                continue
            name = self._name(bundle)
            opened = self._cache.open(name)
            if opened is not None:
                return opened
            claim = self._cache.claim(name)
            if claim is not None:
                opened = self._cache.open(name)
                if opened is not None:
                    claim.release()
                    return opened
                self._begin(bundle, claim, 0)
                continue
            if not self._cache.takes_files():
                self._cache = None
                continue
            time.sleep(POLL_S)  # another process fetches it, or dies and leaves it to this one

    def _fetch_now(self, bundle: int) -> Bundle:
        """Fetch a bundle past the cache, whose disk returns other bytes than were written."""
        self._begin(bundle, None, 0)
        fetch = self._fetches.pop(bundle)
        fetch.done.wait()
        if fetch.error is not None:
            raise fetch.error
        assert fetch.bundle is not None
        return fetch.bundle

    def _begin(self, bundle: int, claim: Claim | None, priority: int) -> None:
        parts = [
            Member(member.entry, at, min(member.stop, at + PART_BYTES))
            for member in self._layout.bundles[bundle]
            for at in range(member.start, member.stop, PART_BYTES)
        ]
        fetch = self._fetches[bundle] = _Fetch(len(parts), claim)
        if not parts:  # empty files
            self._finish(fetch)
        for number, part in enumerate(parts):
            self._workers.submit(priority, lambda number=number, part=part: self._part(fetch, number, part))  # type: ignore[misc]

    def _part(self, fetch: _Fetch, number: int, part: Member) -> None:
        if fetch.error is not None:
            return
        try:
            data = self._store.get(self._entries[part.entry], part.start, part.stop)
        except BaseException as error:  # noqa: BLE001  # raised again where the bundle is read
            with fetch.mutex:
                fetch.error = fetch.error or error
                if fetch.claim is not None:
                    fetch.claim.release()
                    fetch.claim = None
            fetch.done.set()
            return
        with fetch.mutex:
            fetch.parts[number] = data
            fetch.missing -= 1
            if fetch.missing:
                return
        self._finish(fetch)

    def _finish(self, fetch: _Fetch) -> None:
        data = b"".join(fetch.parts)
        fetch.parts = []
        self.fetched_bytes += len(data)
        fetch.bundle = in_memory(data)
        with fetch.mutex:
            claim, fetch.claim = fetch.claim, None
        if claim is not None:
            try:
                claim.write(data)
            except OSError as error:
                fetch.error = error
        fetch.done.set()

    def _name(self, bundle: int) -> str:
        digest = hashlib.sha256(self._store.url.encode())
        for member in self._layout.bundles[bundle]:
            entry = self._entries[member.entry]
            digest.update(
                f"\0{entry.key}\0{entry.etag}\0{member.start}\0{member.stop}".encode("utf-8", "surrogatepass")
            )
        return digest.hexdigest()[:32]
