"""Threads that read the cluster for the page; each opens its own, since instances are not thread-safe."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

from fairlead.cluster.listing import PagedClient
from fairlead.errors import ClusterError, FairleadError, NotAllowed
from fairlead.web.addresses import answer, split
from fairlead.web.rendering import Rendered, refusal, render
from fairlead.web.view import BadQuery, Missing, Paced, Question

NUM_THREADS = 2
WAIT_S = 1.0
PATIENCE_S = 5.0


class Readers:
    """Reads the cluster and renders views in a pool of threads.

    Args:
        open_cluster: Opens the cluster for one thread.
        reader: Name of the signed-in reader, if the page requires signing in.
    """

    def __init__(self, open_cluster: Callable[[], PagedClient], reader: str | None = None) -> None:
        self._reader = reader
        self._open = open_cluster
        self._own = threading.local()
        self.threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="reader")

    def look(self, address: str) -> tuple[int, Rendered]:
        """Read the view at an address; return it with its HTTP status. Runs in one of the threads."""
        now = time.time()
        try:
            path, query = split(address)
            cluster, paced = self._cluster()
            return 200, render(answer(path, Question(cluster=cluster, query=query, now=now, paced=paced)), now)
        except BadQuery as error:
            return 400, refusal("Not understood", str(error))
        except Missing as error:
            return 404, refusal("Not found", str(error))
        except NotAllowed as error:
            return 403, refusal("Not yours to see", str(error))
        except FairleadError as error:  # the cluster is in trouble, or keeps what this version cannot read
            return 503, refusal("Not to be read now", str(error))

    def page(self, address: str) -> tuple[int, str]:
        """Render the whole page at an address; return it with its HTTP status. Runs in one of the threads."""
        status, seen = self.look(address)
        try:
            cluster, _ = self._cluster()
            trouble = cluster.trouble() or cluster.unattended()
        except ClusterError as error:
            trouble = str(error)
        return status, seen.page(urlsplit(address).path, trouble, self._reader)

    def warm_up(self) -> None:
        """Open the cluster in one of the threads and load what the first request needs, without waiting for it."""
        self.threads.submit(self.look, "/")

    def close(self) -> None:
        """Finish the requests under way and stop the threads."""
        together = threading.Barrier(NUM_THREADS)
        for _ in range(NUM_THREADS):
            self.threads.submit(self._let_go, together)
        self.threads.shutdown(wait=True)

    def _let_go(self, together: threading.Barrier) -> None:
        """Close the cluster of one thread; a barrier makes each thread do so once."""
        with suppress(threading.BrokenBarrierError):
            together.wait(PATIENCE_S)
        if hasattr(self._own, "cluster"):
            self._own.cluster.close()

    def _cluster(self) -> tuple[PagedClient, Paced]:
        if not hasattr(self._own, "cluster"):
            self._own.cluster, self._own.paced = self._open(), Paced()
        return self._own.cluster, self._own.paced


class Watcher:
    """Watches the cluster for changes in a thread of its own while pages are open.

    Args:
        tell: Called from that thread after a change.
    """

    def __init__(self, open_cluster: Callable[[], PagedClient], tell: Callable[[], None]) -> None:
        self._open = open_cluster
        self._tell = tell
        self._is_wanted = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._thread.start()

    def want(self, is_wanted: bool) -> None:
        """Start or stop watching."""
        if is_wanted:
            self._is_wanted.set()
        else:
            self._is_wanted.clear()

    def close(self) -> None:
        """Stop the thread; takes a second at most."""
        self._is_over = True
        self._is_wanted.set()
        self._thread.join(timeout=3 * WAIT_S)

    def _watch(self) -> None:
        cluster = None
        while True:
            self._is_wanted.wait()
            if self._is_over:
                break
            try:
                if cluster is None:
                    cluster = self._open()
                before = time.monotonic()
                cluster.wait(WAIT_S)
                if time.monotonic() - before < WAIT_S:
                    self._tell()
            except ClusterError:  # the views say so; looking goes on
                time.sleep(WAIT_S)
        if cluster is not None:
            cluster.close()
