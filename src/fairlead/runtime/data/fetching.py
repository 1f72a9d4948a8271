"""Fetches bundles and objects: requests in the order in which their samples are needed, many at a time.

See decisions 210 and 224.
"""

import bisect
import hashlib
import itertools
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from fairlead.runtime.data.cache import Bundle, BundleCache, FetchClaim
from fairlead.runtime.data.concurrency import THREADS, RequestLimit
from fairlead.runtime.data.http_pool import HttpPool, Transfer
from fairlead.runtime.data.layout import BUNDLE_BYTES, BundleMember, Layout
from fairlead.runtime.data.manifest import DataManifest, bundle_name
from fairlead.runtime.data.peers import PeerRecord, Peers
from fairlead.runtime.data.s3 import S3Store
from fairlead.runtime.data.stores import DataStore, HttpStore
from fairlead.runtime.errors import DataChanged, StoreUnavailable

PART_BYTES = 2 * BUNDLE_BYTES
AHEAD = 16
"""Most bundles on their way or waiting in memory, ahead of the one that is read."""
AHEAD_BYTES = AHEAD * BUNDLE_BYTES
"""Bytes of them, beyond which only the next bundle is fetched ahead, as row groups may be large."""
POLL_S = 0.003
URGENT = -1.0
FINISH_S = 5.0
LOOKUPS = 8
"""Bundles beyond those ahead that are looked for at other nodes at a time."""
RESERVED = 1.05
"""This node's part of a version, which is not exactly divided, over an even part."""
IDLE_S = 5.0


class Workers:
    """Threads that make requests, those needed soonest first. They start when there is work, and end when idle."""

    def __init__(self, most: int = THREADS) -> None:
        self._limit = RequestLimit(time.monotonic(), most)
        self._tasks: queue.PriorityQueue[tuple[float, int, Callable[[], None]]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._mutex = threading.Lock()
        self._running = 0
        self._idle = 0

    def submit(self, priority: float, task: Callable[[], None]) -> None:
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
        for _ in range(min(count, self._limit.value - self._running)):
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
            if self._limit.count(now, begun):
                self._start(self._tasks.qsize())
            if self._running <= self._limit.value:
                return False
            self._running -= 1
            return True


class _Latch:
    """Wakes one thread once all that it waits for is here, or cannot come."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._mutex = threading.Lock()
        self._event = threading.Event()

    def down(self, count: int) -> None:
        with self._mutex:
            self._count -= count
            if self._count <= 0:
                self._event.set()

    def wait(self, timeout_s: float | None = None) -> None:
        self._event.wait(timeout_s)


class _Buffers:
    """Memory of bundles that are stored by now, for those that follow: pages that are new to a process cost it time."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        try:
            buffer = self._free.pop()
        except IndexError:
            return bytearray(size if size > BUNDLE_BYTES else BUNDLE_BYTES)
        return buffer if len(buffer) >= size else bytearray(size)

    def give_back(self, buffer: bytearray) -> None:
        if len(self._free) < AHEAD and len(buffer) == BUNDLE_BYTES:
            self._free.append(buffer)


class _Fetch:
    """A bundle on its way, of which a range can be read as soon as it is here.

    Attributes:
        buffer: Its bytes, and more behind them; None once they are read from the file of the cache.
        record: Its entry at the node that is its home; None without other nodes.
        digest: SHA-256 of what came from another node; None for bytes of the store.
    """

    def __init__(self, parts: Sequence[BundleMember], claim: FetchClaim | None, buffers: _Buffers) -> None:
        self.parts = parts
        self.starts = [0]
        for part in parts:
            self.starts.append(self.starts[-1] + part.stop - part.start)
        self.size = self.starts.pop()
        self._buffers = buffers
        self.buffer: bytearray | None = buffers.take(self.size)
        self.claim = claim
        self.is_done = False
        self.error: BaseException | None = None
        self.record: PeerRecord | None = None
        self.digest: str | None = None
        self._has = bytearray(len(parts) + 1)  # the last one is for what is stored, and stays 0
        self._missing = len(parts)
        self._mutex = threading.Lock()
        self._latches: dict[int, list[_Latch]] = {}
        self._stored: Bundle | None = None

    @property
    def is_here(self) -> bool:
        """Return whether all parts are in their places."""
        return not self._missing

    def into(self, number: int) -> memoryview:
        """Return the place of a part."""
        start, part = self.starts[number], self.parts[number]
        assert self.buffer is not None
        return memoryview(self.buffer)[start : start + part.stop - part.start]

    def whole(self) -> memoryview:
        """Return the place of all parts."""
        assert self.buffer is not None
        return memoryview(self.buffer)[: self.size]

    def all_arrived(self) -> None:
        """Note that all parts are in their places."""
        with self._mutex:
            self._has[:-1] = b"\1" * len(self.parts)
            self._missing = 0
            latches = [latch for waiting in self._latches.values() for latch in waiting]
            self._latches.clear()
        for latch in latches:
            latch.down(1)

    def arrived(self, number: int) -> bool:
        """Note a part that is in its place; return whether it was the last one."""
        with self._mutex:
            self._has[number] = 1
            self._missing -= 1
            latches = self._latches.pop(number, ()) if self._latches else ()
            is_last = self._missing == 0
        for latch in latches:
            latch.down(1)
        return is_last

    def end(self, error: BaseException | None = None) -> None:
        """Note that all is here and stored, or that it never will be; give up the right to fetch it."""
        with self._mutex:
            self.error = self.error or error
            self.is_done = True
            claim, self.claim = self.claim, None
            record, self.record = self.record, None
            latches = [latch for waiting in self._latches.values() for latch in waiting]
            self._latches.clear()
        if claim is not None:
            claim.release()
        if record is not None:
            record.close()
        for latch in latches:
            latch.down(1)

    def parts_of(self, start: int, stop: int) -> list[int]:
        """Return the parts of a range that are not here yet."""
        if not self._missing:
            return []
        first, last = bisect.bisect_right(self.starts, start) - 1, bisect.bisect_left(self.starts, stop)
        return [number for number in range(first, last) if not self._has[number]]

    def expect(self, numbers: Sequence[int], latch: _Latch) -> None:
        """Count parts down that are here, or once they are."""
        with self._mutex:
            for number in numbers:
                if self._has[number] or self.is_done:
                    latch.down(1)
                else:
                    self._latches.setdefault(number, []).append(latch)

    def wait(self) -> None:
        """Wait until all is here and stored.

        Raises:
            BaseException: The error of a request.
        """
        latch = _Latch(1)
        self.expect((len(self.parts),), latch)
        latch.wait()
        if self.error is not None:
            raise self.error

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes of the bundle once they are here.

        Raises:
            BaseException: The error of a request.
        """
        numbers = self.parts_of(start, stop)
        if numbers:
            latch = _Latch(len(numbers))
            self.expect(numbers, latch)
            latch.wait()
            if self.error is not None and self.parts_of(start, stop):
                raise self.error
        with self._mutex:
            if self.buffer is not None:
                return bytes(memoryview(self.buffer)[start:stop])
        assert self._stored is not None
        return self._stored.read(start, stop)

    def store(self, reserve: int | None = None) -> bool:
        """Store what has arrived as a whole, and read it from there from now on; return whether it is stored.

        Args:
            reserve: For a copy of another node's bundle the bytes that stay free; None for one of the store.

        Raises:
            OSError: The disk cannot be written, for another reason than being full.
        """
        claim, buffer = self.claim, self.buffer
        if claim is None or buffer is None:
            return False
        stored = claim.write(memoryview(buffer)[: self.size], reserve)
        if stored is not None:
            with self._mutex:
                self._stored, self.buffer = stored, None
            self._buffers.give_back(buffer)
        return stored is not None


class Bundles:
    """The bundles of a version, from the cache or the store.

    Args:
        cache: None for bundles in memory alone.
        held: Bundles that are held open behind the one that is read.
        peers: The other nodes of the run; None if there are none, or nothing is kept.
    """

    def __init__(
        self,
        manifest: DataManifest,
        layout: Layout,
        store: DataStore,
        cache: BundleCache | None,
        workers: Workers,
        held: int,
        peers: Peers | None = None,
    ) -> None:
        self._entries = manifest.entries
        self._version = manifest.version
        self._peers = peers
        self._lookups = Workers(AHEAD + LOOKUPS)
        # This node's part of the version, which the others rely on, is stored before copies of their parts.
        self._reserve = 0 if peers is None else int(manifest.num_bytes * RESERVED) // peers.num_nodes
        self._layout = layout
        self._store = store
        self._cache = cache if cache is None or cache.takes_files() else None
        self._workers = workers
        self._pool = HttpPool(store) if isinstance(store, S3Store | HttpStore) else None
        self._held = held
        self._open: OrderedDict[int, Bundle | _Fetch] = OrderedDict()
        self._fetches: dict[int, _Fetch] = {}
        self._buffers = _Buffers()
        self._recording: set[_Fetch] = set()
        self._names: dict[int, str] = {}
        self._sizes: dict[int, int] = {}
        self._stored: set[int] = set()

    def ahead(self, upcoming: Sequence[int], need: Callable[[int], Sequence[float]]) -> None:
        """Begin to fetch bundles that are needed soon, in their order; those of other processes are left to them.

        Args:
            need: Returns when the samples of a bundle are needed, on a scale of the caller: one value for all of them,
                or one for each of its members.
        """
        size = 0
        for place, bundle in enumerate(upcoming[:AHEAD]):
            size += self._size(bundle)
            if place > 1 and size > AHEAD_BYTES:
                return
            if bundle in self._stored or bundle in self._open or bundle in self._fetches:
                continue
            if self._cache is None:
                self._begin(bundle, None, need(bundle))
                continue
            name = self._name(bundle)
            if self._cache.has(name):
                self._stored.add(bundle)
                continue
            claim = self._cache.claim(name)
            if claim is None:
                continue
            if self._cache.has(name):  # another process was just done
                claim.release()
                continue
            self._begin(bundle, claim, need(bundle))

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

    def wait_for(self, members: Iterable[BundleMember]) -> None:
        """Wait for ranges of objects that are on their way: all at once, since a wake takes the interpreter's lock."""
        missing: list[tuple[_Fetch, list[int]]] = []
        for member in members:
            for bundle, start, stop in self._layout.pieces(*member):
                opened = self._get(bundle)
                if isinstance(opened, _Fetch) and (numbers := opened.parts_of(start, stop)):
                    missing.append((opened, numbers))
        latch = _Latch(sum(len(numbers) for _, numbers in missing))
        for fetch, numbers in missing:
            fetch.expect(numbers, latch)
        if missing:
            latch.wait()

    def warm(self) -> int:
        """Fetch all bundles that are not stored, in order; return the bytes of those that are stored then."""
        if self._cache is None:
            return 0
        size = 0
        for bundle in range(len(self._layout.bundles)):
            self.ahead(range(bundle, min(bundle + AHEAD, len(self._layout.bundles))), lambda number: (number,))
            opened = self._arrived(bundle)
            if isinstance(opened, _Fetch):
                opened.wait()
            if self._cache is not None and self._cache.has(self._name(bundle)):
                size += opened.size
        return size

    def finish(self) -> None:
        """Wait a while for bundles that this process reads from the store for other ranks too, which wait for them."""
        deadline = time.monotonic() + FINISH_S
        self._await_stored(lambda fetch: fetch.claim is not None and fetch.digest is None, deadline)
        while self._recording and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _await_stored(self, is_wanted: "Callable[[_Fetch], bool]", deadline: float) -> None:
        for fetch in [*self._fetches.values(), *self._open.values()]:
            if isinstance(fetch, _Fetch) and is_wanted(fetch):
                latch = _Latch(1)
                fetch.expect((len(fetch.parts),), latch)
                latch.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Give up what is on its way; what is here as a whole is stored first, so that nobody reads it again."""
        self._await_stored(lambda fetch: fetch.is_here, time.monotonic() + FINISH_S)
        self._workers.clear()
        self._lookups.clear()
        if self._pool is not None:
            self._pool.close()
        for fetch in [*self._fetches.values(), *self._open.values()]:
            if isinstance(fetch, _Fetch) and not fetch.is_done:
                fetch.end(StoreUnavailable("data: it was closed"))
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
                    self._stored.discard(bundle)
            except (DataChanged, StoreUnavailable, OSError):
                self._open.pop(bundle, None)  # the next read asks again
                raise
        self._begin(bundle, None, (URGENT,))  # past the cache, whose disk returns other bytes than were written
        return self._fetches.pop(bundle).read(start, stop)

    def _get(self, bundle: int) -> "Bundle | _Fetch":
        opened = self._open.get(bundle)
        if opened is not None:
            self._open.move_to_end(bundle)
            return opened
        opened = self._open[bundle] = self._arrived(bundle)
        while len(self._open) > self._held:
            self._open.popitem(last=False)
        if self._cache is not None:
            self._cache.note(opened.size)
        return opened

    def _arrived(self, bundle: int) -> "Bundle | _Fetch":
        """Return a bundle that is not open yet, once it is stored here or on its way to this process."""
        while True:
            fetch = self._fetches.pop(bundle, None)
            if fetch is not None:
                return fetch
            if self._cache is None:
                self._begin(bundle, None, (URGENT,))
                continue
            name = self._name(bundle)
            opened = self._cache.open(name)
            if opened is not None:
                return opened
            self._stored.discard(bundle)
            claim = self._cache.claim(name)
            if claim is not None:
                opened = self._cache.open(name)
                if opened is not None:
                    claim.release()
                    return opened
                self._begin(bundle, claim, (URGENT,))
                continue
            if not self._cache.takes_files():
                self._cache = None
                continue
            time.sleep(POLL_S)  # another process fetches it, or dies and leaves it to this one

    def _begin(self, bundle: int, claim: FetchClaim | None, need: Sequence[float]) -> None:
        """Ask for the parts of a bundle, each when it is needed."""
        parts: list[BundleMember] = []
        needs: list[float] = []
        for number, member in enumerate(self._layout.bundles[bundle]):
            for at in range(member.start, member.stop, PART_BYTES):
                parts.append(BundleMember(member.entry, at, min(member.stop, at + PART_BYTES)))
                needs.append(need[number if len(need) > 1 else 0])
        fetch = self._fetches[bundle] = _Fetch(parts, claim, self._buffers)
        if not parts:  # empty files
            self._finish(fetch)
        elif self._peers is not None and claim is not None:
            peers = self._peers
            self._lookups.submit(min(needs), lambda: self._look_up(peers, bundle, fetch, needs))
        else:
            self._request(fetch, needs)

    def _look_up(self, peers: Peers, bundle: int, fetch: _Fetch, needs: Sequence[float]) -> None:
        """Get a bundle from another node, or ask the store for it."""
        try:
            result = peers.obtain(self._version, self._name(bundle), fetch.whole())
        except BaseException as error:  # noqa: BLE001  # raised again where the bundle is read
            fetch.end(error)
            return
        fetch.record, fetch.digest = result.record, result.digest
        if fetch.is_done:  # closed meanwhile
            fetch.end()
        elif result.data is None:
            self._request(fetch, needs)
        else:
            fetch.all_arrived()
            self._finish(fetch)

    def _request(self, fetch: _Fetch, needs: Sequence[float]) -> None:
        """Ask the store for the parts of a bundle."""
        parts = fetch.parts
        if self._pool is None:
            for number, own in enumerate(needs):
                self._workers.submit(own, lambda number=number: self._part(fetch, number))  # type: ignore[misc]
            return

        def transfer(number: int, own: float) -> tuple[float, Transfer]:
            def done(is_here: bool) -> None:
                if is_here:
                    self._note(fetch, number)
                else:
                    self._workers.submit(own, lambda: self._part(fetch, number))

            part = parts[number]
            return own, Transfer(self._entries[part.entry], part.start, part.stop, fetch.into(number), done)

        self._pool.submit(transfer(number, own) for number, own in enumerate(needs))

    def _part(self, fetch: _Fetch, number: int) -> None:
        """Read a part by the store's own request."""
        if fetch.error is not None:
            return
        part = fetch.parts[number]
        try:
            fetch.into(number)[:] = self._store.get(self._entries[part.entry], part.start, part.stop)
        except BaseException as error:  # noqa: BLE001  # raised again where the bundle is read
            fetch.end(error)
            return
        if fetch.arrived(number):
            self._finish(fetch)

    def _note(self, fetch: _Fetch, number: int) -> None:
        """Note a part that the pool received; a bundle is stored by a thread of its own."""
        if fetch.arrived(number):
            self._workers.submit(URGENT, lambda: self._finish(fetch))

    def _finish(self, fetch: _Fetch) -> None:
        if fetch.record is not None:
            self._recording.add(fetch)
        try:
            self._store_and_record(fetch)
        finally:
            self._recording.discard(fetch)

    def _store_and_record(self, fetch: _Fetch) -> None:
        """Store a bundle that is here as a whole, and let other nodes know."""
        record, fetch.record = fetch.record, None
        is_copy, digest = fetch.digest is not None, fetch.digest
        if record is not None and digest is None:
            digest = hashlib.sha256(fetch.whole()).hexdigest()
        try:
            is_stored = fetch.store(self._reserve if is_copy else None)
        except OSError as error:
            is_stored = False
            fetch.end(error)
        else:
            fetch.end()
        if record is None:
            return
        if is_stored and digest is not None:
            record.fetched(digest, fetch.size)
        else:
            record.release(is_kept=is_copy)

    def _size(self, bundle: int) -> int:
        size = self._sizes.get(bundle)
        if size is None:
            size = sum(member.stop - member.start for member in self._layout.bundles[bundle])
            self._sizes[bundle] = size
        return size

    def _name(self, bundle: int) -> str:
        name = self._names.get(bundle)
        if name is None:
            members = self._layout.bundles[bundle]
            name = self._names[bundle] = bundle_name(
                self._store.url, ((self._entries[member.entry], member.start, member.stop) for member in members)
            )
        return name
