"""The ledger of a Kubernetes cluster, in a SQLite file or a PostgreSQL database.

A pod is a row from when it is first seen. Closing it adds its intervals in the same transaction, and only if it was
open: closing it again, by another operator or after a crash, adds nothing. Threads take turns.
"""

import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from fairlead.cluster.ledger_tables import Database, LedgerTables, Price, intervals_of
from fairlead.cluster.postgres import PostgresDatabase, is_postgres
from fairlead.cluster.records import dump, load
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.ledger.bills import PriceChange, cost_of
from fairlead.ledger.usage import DAY_MS, Holder, UsageInterval, Use, milliseconds
from fairlead.state.snapshot import Pod, Progress

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS held_pods (uid TEXT PRIMARY KEY, run TEXT NOT NULL, share INTEGER NOT NULL, "
    "closed INTEGER NOT NULL, pod TEXT NOT NULL, holder TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS held_pods_by_run ON held_pods (run)",
    "CREATE TABLE IF NOT EXISTS node_pools (node TEXT PRIMARY KEY, pool TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS run_costs (month TEXT NOT NULL, team TEXT NOT NULL, run TEXT NOT NULL, "
    "microusd INTEGER NOT NULL, PRIMARY KEY (month, team, run))",
    "CREATE TABLE IF NOT EXISTS ledger_marks (name TEXT PRIMARY KEY, at_ms INTEGER NOT NULL)",
)
USES = frozenset(use.value for use in Use)
BUSY_S = 10.0
SEEN = "seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPod:
    """A pod and the share of its node that it pays for.

    Attributes:
        holder: Its run; None for a pod of no run.
        use: The use of a pod of no run; None for a pod of a run, whose use changes over time.
    """

    pod: Pod
    holder: Holder | None
    share: int
    use: Use | None = None

    def intervals(
        self, progress: Progress | None, end_ms: int, idle_ms: Mapping[int, int] | None = None
    ) -> list[UsageInterval]:
        """Return what the pod held up to an end, by use; ``idle_ms`` as in ``fairlead.ledger.activity``."""
        if self.holder is not None:
            return intervals_of(self.pod, self.holder, progress, end_ms, self.share, idle_ms)
        assert self.use is not None
        start_ms = milliseconds(self.pod.created_at)
        return [
            UsageInterval(
                node=self.pod.node,
                holder=None,
                use=self.use,
                start_ms=start_ms,
                end_ms=max(start_ms, end_ms),
                share=self.share,
            )
        ]

    @property
    def payer(self) -> str:
        """Return the holder, or the use of a pod of no run, as text."""
        return self.use or "" if self.holder is None else dump(self.holder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A pod that no longer holds resources.

    Attributes:
        progress: The last report of its run.
    """

    held: HeldPod
    progress: Progress | None
    end_ms: int


class UsageLedger:
    """The tables, behind a lock. Thread-safe.

    Args:
        place: A path, or a URL ``postgresql://...``.

    Raises:
        ClusterError: The file cannot be opened, or the server cannot be reached; every method raises it too.
    """

    def __init__(self, place: str) -> None:
        self._lock = threading.RLock()
        self._errors: tuple[type[Exception], ...] = (sqlite3.Error, OSError)
        self._db: sqlite3.Connection | PostgresDatabase
        if is_postgres(place):
            self._db = PostgresDatabase(place)
            self._errors = self._db.errors
        else:
            self._db = _sqlite(place)
        database: Database = self._db
        self._tables = LedgerTables(database)
        self._prices: dict[str, list[PriceChange]] | None = None
        try:
            with self._transaction():
                self._tables.create()
                for statement in SCHEMA:
                    self._db.execute(statement)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()

    def write(self, held: Iterable[HeldPod], ended: Iterable[Ended], seen_ms: int) -> None:
        """Write pods that hold resources and pods that have ended, in one transaction.

        Args:
            seen_ms: The time up to which everything is known, in milliseconds.
        """
        with self._transaction():
            self._db.executemany(
                "INSERT INTO held_pods VALUES (?, ?, ?, 0, ?, ?) "
                "ON CONFLICT (uid) DO UPDATE SET pod = excluded.pod WHERE held_pods.closed = 0",
                [(e.pod.uid, e.pod.workload_uid, e.share, dump(e.pod), e.payer) for e in held],
            )
            ended = tuple(ended)
            for end in ended:
                self._end(end)
            # A pod of no run is gone once it has ended. Its row stays for as long as its end may be written again.
            done = self._db.execute("SELECT uid FROM held_pods WHERE run = '' AND closed = 1").fetchall()
            now = {end.held.pod.uid for end in ended}
            self._db.executemany("DELETE FROM held_pods WHERE uid = ?", [row for row in done if row[0] not in now])
            self._db.execute(
                "INSERT INTO ledger_marks VALUES (?, ?) ON CONFLICT (name) DO UPDATE "
                "SET at_ms = max(ledger_marks.at_ms, excluded.at_ms)",
                (SEEN, seen_ms),
            )

    def _end(self, ended: Ended) -> None:
        held = ended.held
        done = self._db.execute(
            "INSERT INTO held_pods VALUES (?, ?, ?, 1, '', '') "
            "ON CONFLICT (uid) DO UPDATE SET closed = 1, pod = '', holder = '' WHERE held_pods.closed = 0",
            (held.pod.uid, held.pod.workload_uid, held.share),
        )
        if done.rowcount != 1:
            return  # already charged
        intervals = held.intervals(ended.progress, ended.end_ms, self._tables.idle_of(held.pod.uid))
        self._tables.forget_idle(held.pod.uid)
        self._tables.add(intervals)
        holder = held.holder
        if holder is None:
            return
        for month, part in _by_month(intervals).items():
            amount = cost_of(part, self._price_changes())
            if amount is not None:
                self._db.execute(
                    "INSERT INTO run_costs VALUES (?, ?, ?, ?) ON CONFLICT (month, team, run) "
                    "DO UPDATE SET microusd = run_costs.microusd + excluded.microusd",
                    (month, holder.team, holder.uid, amount),
                )

    def add_idle(self, measured: Iterable[tuple[str, int, int, float]]) -> None:
        """Record the measured use of what pods hold: uids with beginnings, ends and utilisations.

        Pods that are not open are skipped: they are charged already, or unknown.
        """
        with self._transaction():
            for uid, start_ms, end_ms, busy in measured:
                row = self._db.execute("SELECT 1 FROM held_pods WHERE uid = ? AND closed = 0", (uid,)).fetchone()
                if row is not None:
                    self._tables.add_idle(uid, start_ms, end_ms, busy)

    def idle_of(self, uid: str) -> dict[int, int]:
        """Return how long the resources of an open pod were idle, by hour."""
        with self._reading():
            return self._tables.idle_of(uid)

    def set_price(self, price: Price, pool: str | None = None) -> None:
        """Record the price of a node from a time on, and its pool."""
        self.set_prices([(price, pool)])

    def set_prices(self, prices: Iterable[tuple[Price, str | None]]) -> None:
        """Record prices with the pools of their nodes, in one transaction."""
        with self._transaction():
            for price, pool in prices:
                self._tables.set_price(price)
                if pool is not None:
                    self._db.execute(
                        "INSERT INTO node_pools VALUES (?, ?) ON CONFLICT (node) DO UPDATE SET pool = excluded.pool",
                        (price.node, pool),
                    )
            self._prices = None

    def newest_prices(self) -> dict[str, Price]:
        """Return the latest price of each node."""
        with self._reading():
            return {price.node: price for price in self._tables.prices()}

    def price_changes(self) -> Mapping[str, list[PriceChange]]:
        """Return all prices by node."""
        with self._reading():
            return self._price_changes()

    def pools(self) -> dict[str, str]:
        """Return the pool of each node."""
        with self._reading():
            return {
                str(row[0]): str(row[1]) for row in self._db.execute("SELECT node, pool FROM node_pools").fetchall()
            }

    def open_pods(self) -> dict[str, HeldPod]:
        """Return the pods that held resources when they were last seen, by uid."""
        with self._reading():
            rows = self._db.execute("SELECT pod, holder, share FROM held_pods WHERE closed = 0").fetchall()
        pods = (_held(str(row[0]), str(row[1]), int(row[2])) for row in rows)
        return {pod.pod.uid: pod for pod in pods}

    def closed_pods(self) -> dict[str, set[str]]:
        """Return the uids of charged pods, by run."""
        with self._reading():
            rows = self._db.execute("SELECT run, uid FROM held_pods WHERE closed = 1").fetchall()
        uids: defaultdict[str, set[str]] = defaultdict(set)
        for run, uid in rows:
            uids[str(run)].add(str(uid))
        return uids

    def forget(self, runs: Iterable[str]) -> None:
        """Forget the charged pods of runs whose objects are gone and never return."""
        with self._transaction():
            self._db.executemany("DELETE FROM held_pods WHERE run = ? AND closed = 1", [(run,) for run in runs])

    def seen_ms(self) -> int | None:
        """Return the time up to which everything is known; None in a new ledger."""
        with self._reading():
            row = self._db.execute("SELECT at_ms FROM ledger_marks WHERE name = ?", (SEEN,)).fetchone()
        return None if row is None else int(row[0])

    def of_run(self, uid: str) -> list[UsageInterval]:
        """Return what the ended pods of a run held."""
        with self._reading():
            return self._tables.of_run(uid)

    def of_day(self, day: int) -> list[UsageInterval]:
        """Return what ended pods held on a day; days are counted from 1970, UTC."""
        with self._reading():
            return self._tables.of_day(day)

    def spent_by_account(self, month: str) -> dict[tuple[str, str], int]:
        """Return the micro-dollars of ended pods in a month, such as 2026-11, by team and project."""
        with self._reading():
            # For a run whose label changed, the newest counts.
            rows = self._db.execute(
                "SELECT c.team, h.project, sum(c.microusd) FROM run_costs c JOIN holders h ON h.id = "
                "(SELECT max(id) FROM holders WHERE uid = c.run) WHERE c.month = ? GROUP BY c.team, h.project",
                (month,),
            )
            return {(str(row[0]), str(row[1])): int(row[2]) for row in rows.fetchall()}

    def spent_by_run(self, uid: str) -> int:
        """Return the micro-dollars of the ended pods of a run."""
        with self._reading():
            row = self._db.execute("SELECT sum(microusd) FROM run_costs WHERE run = ?", (uid,)).fetchone()
        return int(row[0] or 0)

    def is_told(self, account: str, month: str, percent: int) -> bool:
        """Return whether this share of a budget, or a larger one, was reported this month."""
        with self._reading():
            return self._tables.is_told(account, month, percent)

    def note_told(self, account: str, month: str, percent: int) -> None:
        """Record that this share of a budget was reported."""
        with self._transaction():
            self._tables.note_told(account, month, percent)

    def _price_changes(self) -> dict[str, list[PriceChange]]:
        if self._prices is None:
            self._prices = self._tables.price_changes()
        return self._prices

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._reading():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                self._prices = None
                raise
            self._db.execute("COMMIT")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except self._errors as error:
                raise ClusterError(f"The ledger cannot be read or written: {str(error).strip()}") from error


def _sqlite(place: str) -> sqlite3.Connection:
    try:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(place, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        # The volume may be on a network, where the shared memory of WAL does not work.
        db.execute("PRAGMA journal_mode = TRUNCATE")
        db.execute("PRAGMA synchronous = FULL")
    except (sqlite3.Error, OSError) as error:
        raise ClusterError(f"The ledger {place} cannot be opened: {error}") from error
    return db


def _held(pod: str, payer: str, share: int) -> HeldPod:
    if payer in USES:
        return HeldPod(pod=load(Pod, pod), holder=None, share=share, use=Use(payer))
    return HeldPod(pod=load(Pod, pod), holder=load(Holder, payer), share=share)


def _by_month(intervals: Iterable[UsageInterval]) -> dict[str, list[UsageInterval]]:
    """Return the intervals cut at the beginning of each month, UTC."""
    by_month: defaultdict[str, list[UsageInterval]] = defaultdict(list)
    for interval in intervals:
        start = interval.start_ms
        while start < interval.end_ms:
            at = datetime.fromtimestamp(start / 1000, UTC)
            following = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
            end = min(interval.end_ms, round(following.timestamp() * 1000))
            part = UsageInterval(
                node=interval.node,
                holder=interval.holder,
                use=interval.use,
                start_ms=start,
                end_ms=end,
                share=interval.share,
            )
            by_month[at.strftime("%Y-%m")].append(part)
            start = end
    return by_month


def day_of(at_ms: int) -> int:
    """Return the day of a time, counted from 1970, UTC."""
    return at_ms // DAY_MS
