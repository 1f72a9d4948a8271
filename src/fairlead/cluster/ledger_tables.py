"""Stores usage and costs in a cluster's database. The callers manage transactions.

A pod that terminates adds its intervals, cut at midnight UTC, in the same transaction; a live pod is charged from its
own row. So a crash at any time neither counts usage twice nor loses any. Daily sums are stored beside the intervals, so
that a month is summed up in milliseconds.

The statements are SQLite's; ``fairlead.cluster.postgres`` translates them to PostgreSQL: ``min`` and ``max`` take two
values here and never aggregate rows.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any, Protocol

from fairlead.cluster.ledger_schema import LEDGER_SCHEMA
from fairlead.frozen import dataclass
from fairlead.ledger.activity import activity
from fairlead.ledger.bills import BillLine, PriceChange, Stretch, priced_spans
from fairlead.ledger.usage import DAY_MS, HOUR_MS, Holder, UsageInterval, Use
from fairlead.specs.team import PROJECT_LABEL
from fairlead.specs.training import Training
from fairlead.state.snapshot import Pod, Progress, Spending

INTERVAL = 'u.node, u.use, u.start_ms, u.end_ms, u.share, h.uid, h.run, h.team, h.model, h.project, h."user"'
# In the tables, the holder of what no run holds.
NO_HOLDER = Holder(uid="", run="", team="", model="")
MODEL_LABEL = "model"
# The payer: the words of a row, or None for idle capacity without a payer. In daily rows the day comes first.
Payer = tuple[str, ...] | None


class CostGrouping(StrEnum):
    """The key by which a listing of costs is grouped; an account is a project of a team, as in budgets."""

    RUN = "run"
    MODEL = "model"
    TEAM = "team"
    PROJECT = "project"
    USER = "user"
    POOL = "pool"
    DAY = "day"
    ACCOUNT = "account"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of an hour of a node in micro-dollars from a time on; None where unknown. ``source`` is its origin."""

    node: str
    from_ms: int
    rate: int | None
    source: str


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Database(Protocol):
    """The part of a database connection in use; SQLite's and that of ``fairlead.cluster.postgres`` both provide it."""

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /) -> Rows: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object: ...


def holder_of(uid: str, spec: Training, user: str = "") -> Holder:
    """Return the run as bills name it."""
    return Holder(
        uid=uid,
        run=spec.name,
        team=spec.team,
        model=spec.labels.get(MODEL_LABEL) or spec.name,
        project=spec.labels.get(PROJECT_LABEL, ""),
        user=user,
    )


def intervals_of(
    pod: Pod,
    holder: Holder,
    progress: Progress | None,
    end_ms: int,
    share: int,
    idle_ms: Mapping[int, int] | None = None,
) -> list[UsageInterval]:
    """Divide what a pod held up to an end into intervals by use; ``idle_ms`` as in ``activity``."""
    return [
        UsageInterval(node=pod.node, holder=holder, use=use, start_ms=start, end_ms=end, share=share)
        for use, start, end in activity(pod, progress, end_ms, idle_ms)
    ]


def idle_hours(start_ms: int, end_ms: int, busy: float) -> Iterator[tuple[int, int]]:
    """Yield hours since 1970 with their idle milliseconds, given the busy share of a span."""
    for hour in range(start_ms // HOUR_MS, -(-end_ms // HOUR_MS)):
        length_ms = min(end_ms, (hour + 1) * HOUR_MS) - max(start_ms, hour * HOUR_MS)
        idle_ms = round((1.0 - min(max(busy, 0.0), 1.0)) * length_ms)
        if idle_ms > 0:
            yield hour, idle_ms


class LedgerTables:
    """The tables of the ledger, on a connection that the caller owns."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def create(self) -> None:
        for statement in LEDGER_SCHEMA.split(";\n"):
            self._db.execute(statement)

    def add(self, intervals: Iterable[UsageInterval]) -> None:
        """Add intervals, also to the daily sums."""
        known: dict[Holder, int] = {}
        rows, sums = [], defaultdict[tuple[object, ...], int](int)
        for whole in intervals:
            holder = NO_HOLDER if whole.holder is None else whole.holder
            if holder not in known:
                known[holder] = self._id_of(holder)
            for day, interval in _by_day(whole):
                rows.append(
                    (
                        day,
                        interval.node,
                        known[holder],
                        interval.use,
                        interval.start_ms,
                        interval.end_ms,
                        interval.share,
                    )
                )
                key = day, interval.node, holder.team, holder.model, holder.project, holder.user, interval.use
                sums[key] += (interval.end_ms - interval.start_ms) * interval.share
        self._db.executemany("INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        self._db.executemany(
            "INSERT INTO usage_days VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
            'ON CONFLICT (day, node, team, model, project, "user", use) '
            "DO UPDATE SET unit_ms = usage_days.unit_ms + excluded.unit_ms",
            [(*key, unit_ms) for key, unit_ms in sums.items()],
        )

    def add_idle(self, pod: str, start_ms: int, end_ms: int, busy: float) -> None:
        """Record how busy a pod's resources were in a span; spans of a pod must not overlap."""
        self._db.executemany(
            "INSERT INTO idle_hours VALUES (?, ?, ?) ON CONFLICT (pod, hour) "
            "DO UPDATE SET idle_ms = idle_hours.idle_ms + excluded.idle_ms",
            [(pod, hour, idle_ms) for hour, idle_ms in idle_hours(start_ms, end_ms, busy)],
        )

    def idle_of(self, pod: str) -> dict[int, int]:
        """Return the idle milliseconds of an uncharged pod by hour, as ``activity`` takes them."""
        rows = self._db.execute("SELECT hour, idle_ms FROM idle_hours WHERE pod = ?", (pod,)).fetchall()
        return {int(hour): int(idle_ms) for hour, idle_ms in rows}

    def forget_idle(self, pod: str) -> None:
        """Delete the idle measurements of a pod that is charged."""
        self._db.execute("DELETE FROM idle_hours WHERE pod = ?", (pod,))

    def set_price(self, price: Price) -> None:
        """Store a price, replacing one from the same moment."""
        self._db.execute(
            "INSERT INTO prices VALUES (?, ?, ?, ?) "
            "ON CONFLICT (node, from_ms) DO UPDATE SET rate = excluded.rate, source = excluded.source",
            (price.node, price.from_ms, price.rate, price.source),
        )

    def prices(self) -> tuple[Price, ...]:
        """Return all prices ever set, by node and time."""
        rows = self._db.execute("SELECT node, from_ms, rate, source FROM prices ORDER BY node, from_ms").fetchall()
        return tuple(Price(node=row[0], from_ms=row[1], rate=row[2], source=row[3]) for row in rows)

    def price_changes(self) -> dict[str, list[PriceChange]]:
        """Return all price changes by node."""
        changes = defaultdict[str, list[PriceChange]](list)
        for price in self.prices():
            changes[price.node].append(PriceChange(price.from_ms, price.rate))
        return dict(changes)

    def first_ms(self) -> int | None:
        """Return the beginning of the first recorded interval; None without one."""
        first = self._db.execute("SELECT min(start_ms) FROM usage WHERE day = (SELECT min(day) FROM usage)").fetchone()
        return None if first[0] is None else int(first[0])

    def rate_at(self, node: str, at_ms: int) -> int | None:
        """Return micro-dollars for an hour of a node at a time; None where unknown."""
        row = self._db.execute(
            "SELECT rate FROM prices WHERE node = ? AND from_ms <= ? ORDER BY from_ms DESC LIMIT 1", (node, at_ms)
        ).fetchone()
        return None if row is None else row[0]

    def stretches(
        self, by: CostGrouping, start_ms: int, end_ms: int, live: Sequence[UsageInterval], *, daily: bool = False
    ) -> list[Stretch[Payer]]:
        """Return what was held within a window, per node and price, with the intervals of live pods.

        Args:
            daily: Separate rows for each day, UTC.
        """
        daily = daily or by is CostGrouping.DAY
        stretches = []
        for node, changed in self.price_changes().items():
            for low, high, rate in priced_spans(changed, start_ms, end_ms):
                for begin, end in _days(low, high) if daily else [(low, high)]:
                    date = (_date(begin),) if daily else ()
                    held = defaultdict[tuple[Payer, Use], int](int)
                    for payer, use, unit_ms in self._held(by, node, begin, end):
                        held[(*date, *payer), use] += unit_ms
                    for interval in live:
                        if interval.node == node and (overlap_ms := interval.overlap_ms(begin, end)) > 0:
                            held[(*date, *_payer(by, interval)), interval.use] += overlap_ms * interval.share
                    rest = (*date, *([node] if by is CostGrouping.POOL else [])) or None
                    stretches.append(
                        Stretch(node=node, start_ms=begin, end_ms=end, rate=rate, rest=rest, held=dict(held))
                    )
        return stretches

    def holders(self) -> dict[str, Holder]:
        """Return the newest record of each charged run, by uid."""
        rows = self._db.execute('SELECT uid, run, team, model, project, "user" FROM holders ORDER BY id').fetchall()
        return {
            row[0]: Holder(uid=row[0], run=row[1], team=row[2], model=row[3], project=row[4], user=row[5])
            for row in rows
        }

    def is_told(self, account: str, month: str, percent: int) -> bool:
        """Return whether a notice of that percentage of a budget, or a higher one, was recorded in this month."""
        row = self._db.execute(
            "SELECT 1 FROM budget_notices WHERE team = ? AND month = ? AND percent >= ?", (account, month, percent)
        ).fetchone()
        return row is not None

    def note_told(self, account: str, month: str, percent: int) -> None:
        """Record a notice of that percentage of a budget."""
        self._db.execute(
            "INSERT INTO budget_notices VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (account, month, percent)
        )

    def spans(self, start_ms: int, end_ms: int) -> list[tuple[str, int, int]]:
        """Return nodes with the beginning and end of each recorded interval within a window, terminated pods only."""
        rows = self._db.execute(
            "SELECT node, max(start_ms, :low), min(end_ms, :high) FROM usage WHERE end_ms > :low AND start_ms < :high "
            "AND day BETWEEN :first AND :last AND share > 0",
            {"low": start_ms, "high": end_ms, "first": start_ms // DAY_MS, "last": end_ms // DAY_MS},
        ).fetchall()
        return [(str(node), int(start), int(end)) for node, start, end in rows]

    def of_run(self, uid: str) -> list[UsageInterval]:
        """Return the intervals of the terminated pods of a run."""
        rows = self._db.execute(
            f"SELECT {INTERVAL} FROM holders h JOIN usage u ON u.holder = h.id WHERE h.uid = ?", (uid,)
        ).fetchall()
        return _intervals(rows)

    def of_day(self, day: int) -> list[UsageInterval]:
        """Return the intervals of all terminated pods on a day; days are counted from 1970, UTC."""
        rows = self._db.execute(
            f"SELECT {INTERVAL} FROM usage u JOIN holders h ON h.id = u.holder WHERE u.day = ?", (day,)
        ).fetchall()
        return _intervals(rows)

    def _id_of(self, holder: Holder) -> int:
        values = (holder.uid, holder.run, holder.team, holder.model, holder.project, holder.user)
        self._db.execute(
            'INSERT INTO holders (uid, run, team, model, project, "user") VALUES (?, ?, ?, ?, ?, ?) '
            "ON CONFLICT DO NOTHING",
            values,
        )
        row = self._db.execute(
            "SELECT id FROM holders WHERE uid = ? AND run = ? AND team = ? AND model = ? AND project = ? "
            'AND "user" = ?',
            values,
        ).fetchone()
        return int(row[0])

    def _held(self, by: CostGrouping, node: str, low: int, high: int) -> list[tuple[tuple[str, ...], Use, int]]:
        """Return sums by payer and use of recorded intervals, within bounds."""
        named = {
            CostGrouping.RUN: ("h.run", "h.uid"), CostGrouping.POOL: (":node",), CostGrouping.DAY: (),
            CostGrouping.ACCOUNT: ("h.team || '/' || h.project",),
        }  # fmt: skip
        columns = ", ".join((*named.get(by, (f'h."{by}"',)), "use"))
        # Group by the numeric id first: grouping by text is slow.
        pieces = (
            f"SELECT {columns}, unit_ms FROM (SELECT holder, use, "
            "sum((min(end_ms, :high) - max(start_ms, :low)) * share) AS unit_ms FROM usage "
            "WHERE node = :node AND end_ms > :low AND start_ms < :high AND day BETWEEN :first AND :last "
            "GROUP BY holder, use) held JOIN holders h ON h.id = held.holder"
        )
        first, last = low // DAY_MS, (high - 1) // DAY_MS
        whole = range(-(-low // DAY_MS), high // DAY_MS)
        if by is CostGrouping.RUN or not whole:
            queries = [(pieces, first, last)]
        else:
            # Whole days have sums already; the days at the edges are summed up from intervals.
            days = {CostGrouping.POOL: ["node"], CostGrouping.DAY: [], CostGrouping.ACCOUNT: ["team || '/' || project"]}
            group = ", ".join([*days.get(by, [f'"{by}"']), "use"])
            sums = (
                f"SELECT {group}, sum(unit_ms) FROM usage_days "
                f"WHERE node = :node AND day BETWEEN :first AND :last GROUP BY {group}"
            )
            edges = [day for day in (first, last) if day not in whole]
            queries = [(sums, whole[0], whole[-1]), *((pieces, day, day) for day in edges)]
        totals = []
        for query, since, until in queries:
            values = {"node": node, "low": low, "high": high, "first": since, "last": until}
            totals += [
                (tuple(map(str, row[:-2])), Use(row[-2]), int(row[-1]))
                for row in self._db.execute(query, values).fetchall()
            ]
        return totals


def _intervals(rows: list[Any]) -> list[UsageInterval]:
    return [
        UsageInterval(
            node=row[0],
            use=Use(row[1]),
            start_ms=row[2],
            end_ms=row[3],
            share=row[4],
            holder=Holder(uid=row[5], run=row[6], team=row[7], model=row[8], project=row[9], user=row[10])
            if row[5]
            else None,
        )
        for row in rows
    ]


def _by_day(interval: UsageInterval) -> list[tuple[int, UsageInterval]]:
    return [
        (start // DAY_MS, replace(interval, start_ms=start, end_ms=end))
        for start, end in _days(interval.start_ms, interval.end_ms)
    ]


def _days(start_ms: int, end_ms: int) -> list[tuple[int, int]]:
    """Split a span at each midnight, UTC."""
    cuts = [start_ms, *range((start_ms // DAY_MS + 1) * DAY_MS, end_ms, DAY_MS), end_ms]
    return [(low, high) for low, high in pairwise(cuts) if low < high]


def _payer(by: CostGrouping, interval: UsageInterval) -> tuple[str, ...]:
    holder = interval.holder
    assert holder is not None, "only runs hold anything here"
    match by:
        case CostGrouping.RUN:
            return holder.run, holder.uid
        case CostGrouping.POOL:
            return (interval.node,)
        case CostGrouping.DAY:
            return ()
        case _:
            return (str(getattr(holder, by.value)),)


def month_of(now: float) -> tuple[str, float]:
    """Return the calendar month, UTC, and its beginning as a Unix time."""
    first = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return first.strftime("%Y-%m"), first.timestamp()


def spending_of(lines: Iterable[BillLine[Payer]]) -> Spending:
    """Sum up a bill by account, by team and by project."""
    by_team, by_project = defaultdict[str, int](int), defaultdict[tuple[str, str], int](int)
    for line in lines:
        if line.key is not None:
            team, _, project = line.key[0].partition("/")
            by_team[team] += line.microusd
            by_project[team, project] += line.microusd
    return Spending(by_team=dict(by_team), by_project=dict(by_project))


def _date(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")
