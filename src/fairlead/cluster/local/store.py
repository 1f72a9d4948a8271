"""The database of the local cluster: one SQLite file that every process opens for itself.

Each public call is one transaction. WAL lets clients read while the supervisor writes. A process killed at any instant
leaves either all of a transaction or none of it.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import cached_property, wraps
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from fairlead.cluster.ledger_schema import LEDGER_SCHEMA
from fairlead.cluster.local import pages
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.model_tables import ModelTables
from fairlead.cluster.local.room import write_problem
from fairlead.cluster.local.tables import (
    ACTIVE,
    INDEXES,
    MODEL_SCHEMA,
    POD,
    POINTS,
    SCHEMA,
    SCHEMA_VERSION,
    UPGRADE,
    WANTED,
    WORKLOAD,
    PodRow,
    pod_of,
    progress_of,
    readable,
    training_of,
    workload_of,
)
from fairlead.cluster.model_versions import is_same, updated
from fairlead.cluster.port import EventRecord, Spec
from fairlead.cluster.records import dump, load, load_all
from fairlead.cluster.selection import RunSelection
from fairlead.deferred import deferred
from fairlead.errors import ClusterError, Conflict, NameTaken, NoRoom, NotAllowed, NotFound
from fairlead.frozen import dataclass
from fairlead.ledger.activity import ended_ms
from fairlead.ledger.usage import divided, reshared
from fairlead.runtime.podfiles import is_locked, read_json
from fairlead.specs.formats.serialization import to_json
from fairlead.specs.team import PROJECT_LABEL
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.plan import Event
from fairlead.state.pod_uids import pod_uid
from fairlead.state.reasons import JUST_SUBMITTED, Code, Reason
from fairlead.state.series import Point, continued, thinned
from fairlead.state.snapshot import (
    WHOLE_MILLI,
    AnyWorkload,
    Completed,
    Grant,
    Intent,
    Pace,
    Phase,
    Pod,
    PodPhase,
    Progress,
    Status,
    Usage,
    Workload,
    is_leaf,
)

# Maximum wait for another process that writes.
PATIENCE_S = 30.0
# Initial number of rows to remove in one transaction on a full disk: each row takes about two pages of the log.
MAX_ROWS_AT_ONCE = 64
# Limit per metric of a run; beyond it the points are thinned to half, keeping the extremes of each stretch.
MOST_POINTS = 20_000


if TYPE_CHECKING:
    from fairlead.cluster import ledger_tables
    from fairlead.cluster.ledger_tables import CostGrouping, Payer, Price
    from fairlead.cluster.listing import Listing
    from fairlead.cluster.local import node_tables
    from fairlead.cluster.local.model_tables import ModelTables
    from fairlead.ledger import bills
    from fairlead.ledger.bills import Statement
    from fairlead.ledger.usage import Holder, UsageInterval
    from fairlead.policy.kinds import spec_updates
    from fairlead.policy.queue.budgets import Account
    from fairlead.state import transitions
    from fairlead.state.models import ModelVersion
    from fairlead.state.node_health import Histories, Incident
    from fairlead.state.plan import Change, CreatePod, Event
    from fairlead.state.series import Point
    from fairlead.state.snapshot import Spending
    from fairlead.state.transitions import Transition
else:
    ledger_tables = deferred("fairlead.cluster.ledger_tables")
    node_tables = deferred("fairlead.cluster.local.node_tables")
    bills = deferred("fairlead.ledger.bills")
    spec_updates = deferred("fairlead.policy.kinds.spec_updates")
    transitions = deferred("fairlead.state.transitions")


def _held_intervals(
    pod: Pod, spec: str, progress: str | None, end_ms: int, share: int, idle_ms: Mapping[int, int], shares: str | None
) -> list[UsageInterval]:
    """Return the intervals in which a pod held resources up to an end, by use; shared GPUs count by its share."""
    holder = ledger_tables.holder_of(pod.workload_uid, training_of(spec), _user())
    intervals = ledger_tables.intervals_of(pod, holder, progress_of(progress), end_ms, share, idle_ms)
    return intervals if shares is None else reshared(intervals, json.loads(shares))


def _user() -> str:
    """Return the name of the user who runs this cluster."""
    import pwd  # here and not above: listing runs does not need it

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # mostly in containers
        return str(os.getuid())


def _point(row: Sequence[Any]) -> Point:
    attempt, step, at, value = row
    return Point(at=at, step=step, value=value, attempt=attempt)


_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _retried_when_disk_full(
    write: Callable[Concatenate[LocalStore, Arguments], Result],
) -> Callable[Concatenate[LocalStore, Arguments], Result]:
    """Retry a transaction that fails for lack of space once, within the existing write-ahead log."""

    @wraps(write)
    def tried(store: LocalStore, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return write(store, *args, **kwargs)
        except NoRoom:
            store.checkpoint_wal()
            return write(store, *args, **kwargs)

    return tried


@dataclass(frozen=True, slots=True, kw_only=True)
class PodObservation:
    """An agent's observation of one pod, to be recorded in one transaction."""

    row: PodRow
    progress: Progress | None = None
    events: tuple[tuple[float, Event], ...] = field(default=())
    points: tuple[tuple[str, Point], ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageMeasurement:
    """A measurement of a pod's usage.

    Attributes:
        start_ms, end_ms: The span that it covers.
        busy: Utilisation of what the pod holds, from 0 to 1; None where it holds nothing whose utilisation counts.
        points: Metrics of its run, only with the first of its pods.
    """

    workload_uid: str
    pod_uid: str
    start_ms: int
    end_ms: int
    busy: float | None
    points: tuple[tuple[str, Point], ...] = ()


class LocalStore:
    """The database. An instance belongs to one thread."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = home.database
        # Cached by parent for one state of the database, except for changes by this connection, since a parent may have
        # thousands of finished children, which the loop reads at each pass.
        self._children: dict[str, dict[str, AnyWorkload]] = {}
        self._children_version = -1
        self._touched: set[str] = set()
        self._ended: tuple[AnyWorkload, ...] = ()
        self._known_active: dict[str, tuple[tuple[object, ...], AnyWorkload]] = {}
        # Cached by age for one state of the database, except for changes by this connection.
        self._completed: list[tuple[float, str, Completed | None]] = []
        self._completed_version = -1, -1
        self._touched_for_completed: set[str] = set()
        with self._translated():
            self._db = sqlite3.connect(self._path, timeout=PATIENCE_S, isolation_level=None)
        try:
            with self._translated():
                self._refuse_foreign_database()
                # NORMAL in WAL mode: a killed process loses nothing; a power cut may lose the last moments.
                self._use_write_ahead_log()
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._migrate()
        except ClusterError:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def limit_cache(self) -> None:
        """Cache a quarter of a megabyte of the database, not two: for readers, which the kernel's cache serves well."""
        with self._translated():
            self._db.execute("PRAGMA cache_size = -256")

    def _use_write_ahead_log(self) -> None:
        """Set the journal mode; SQLite itself does not wait for another process that sets it at the same moment."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    @cached_property
    def _ledger(self) -> ledger_tables.LedgerTables:
        return ledger_tables.LedgerTables(self._db)

    @cached_property
    def _models(self) -> ModelTables:
        return ModelTables(self._db)

    def checkpoint_wal(self) -> None:
        """Let the write-ahead log be written from its beginning again, so that the file does not grow."""
        with self._translated():
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def check(self) -> None:
        """Check the whole database, which takes a moment.

        Raises:
            ClusterError: It is damaged.
        """
        with self._translated():
            verdict = str(self._db.execute("PRAGMA quick_check(1)").fetchone()[0])
        if verdict != "ok":
            raise self._damaged(" ".join(verdict.split()))

    @_retried_when_disk_full
    def submit(self, uid: str, spec: Spec, now: float, *, max_objects: float = math.inf) -> Workload[Spec]:
        """Store a new workload, Pending.

        Args:
            max_objects: The most workloads of its kind that its team may have, finished ones included.

        Raises:
            NameTaken: An unfinished workload of that team has the name.
            NotAllowed: The team has as many as it may have.
        """
        with self._transaction():
            if max_objects < math.inf and (count := self._num_objects(spec)) >= max_objects:
                raise NotAllowed(
                    f"{spec.name}: the team {spec.team} has {count} objects of this kind, finished ones included, and "
                    f"may have {max_objects:.0f}. Delete some with `fairlead delete NAME...`, or raise `max_objects` "
                    "of the Team."
                )
            try:
                status = self._insert(uid, spec, None, now)
            except sqlite3.IntegrityError as error:
                raise NameTaken(
                    f"A run named {spec.name!r} of team {spec.team!r} is not finished. "
                    f"Follow it with `fairlead attach {spec.name}`, stop it with `fairlead stop {spec.name}`, "
                    "or choose another name with `--name`."
                ) from error
        return Workload(uid=uid, spec=spec, intent=Intent.RUN, status=status, version=1, created_at=now)

    def _num_objects(self, spec: WorkloadSpec) -> int:
        of_kind = "SELECT count(*) FROM workloads WHERE team = ? AND kind = ?"
        return int(self._db.execute(of_kind, (spec.team, type(spec).__name__)).fetchone()[0])

    def _insert(self, uid: str, spec: WorkloadSpec, parent: str | None, now: float) -> Status:
        """Insert a new workload; return its status."""
        status = Status(phase=Phase.PENDING, reason=JUST_SUBMITTED, since=now)
        self._touch(uid)
        self._db.execute(
            "INSERT INTO workloads "
            "(uid, team, name, spec, intent, version, phase, final, attempt, status, created_at, kind, parent) "
            "VALUES (?, ?, ?, ?, ?, 1, ?, 0, 0, ?, ?, ?, ?)",
            (
                uid, spec.team, spec.name, to_json(spec), Intent.RUN, status.phase, dump(status), now,
                type(spec).__name__, parent,
            ),
        )  # fmt: skip
        self._record(uid, spec.name, Event(type="Submitted", reason=JUST_SUBMITTED), now)
        return status

    @_retried_when_disk_full
    def set_intent(self, uid: str, intent: Intent) -> Workload[Any]:
        """Record the user's intent; the same intent again changes nothing.

        Raises:
            NameTaken: The intent is RUN, but another unfinished workload has the name by now.
        """
        with self._transaction():
            other = self._db.execute(
                "SELECT other.uid FROM workloads w JOIN workloads other ON other.team = w.team AND other.name = w.name "
                "WHERE other.final = 0 AND other.uid <> w.uid AND w.uid = ?",
                (uid,),
            ).fetchone()
            if intent is Intent.RUN and other is not None:
                raise NameTaken(
                    f"Another run of that name is not finished ({other[0]}); wait for it, or stop it first."
                )
            self._touch(uid)
            self._db.execute(
                "UPDATE workloads SET intent = ?, version = version + 1 WHERE uid = ? AND intent <> ?",
                (intent, uid, intent),
            )
        return self.get(uid)

    def update(self, uid: str, spec: Spec, version: int, now: float) -> Workload[Spec]:
        """Replace the spec of a run or sweep.

        Raises:
            NotFound: No such workload.
            Conflict: It is at another version, or its phase or the change does not allow it.
        """
        with self._transaction():
            run = self.get(uid)
            if run.version != version:
                raise Conflict(spec_updates.changed_meanwhile(run.spec.name))
            changes = spec_updates.check_update(run, spec)
            if not changes:
                return run
            self._touch(uid)
            self._db.execute(
                "UPDATE workloads SET spec = ?, status = ?, version = version + 1 WHERE uid = ?",
                (to_json(spec), dump(spec_updates.updated_status(run.status)), uid),
            )
            self._record(uid, run.spec.name, spec_updates.changed(changes), now)
        return self.get(uid)

    @_retried_when_disk_full
    def revise(self, uid: str, spec: Spec, now: float) -> Workload[Spec]:
        """Replace the spec of an endpoint, with the event ``Changed``."""
        with self._transaction():
            before, after = json.loads(to_json(self.get(uid).spec)), json.loads(to_json(spec))
            names = ", ".join(name for name in after if after[name] != before.get(name, after[name]))
            reason = Reason(code=Code.SPEC_CHANGED, message=f"its spec changed: {names}")
            self._touch(uid)
            self._db.execute("UPDATE workloads SET spec = ?, version = version + 1 WHERE uid = ?", (to_json(spec), uid))
            self._record(uid, spec.name, Event(type=spec_updates.CHANGED, reason=reason), now)
        return self.get(uid)

    def apply(
        self,
        change: Change,
        now: float,
        on_forget: Callable[[str], None] = lambda _: None,
        share_of: Callable[[Grant], int] | None = None,
    ) -> bool:
        """Apply one change atomically; return False when it is stale.

        Args:
            on_forget: Called with the uid of a workload just before it is forgotten; only a crash can still prevent
                that.
            share_of: Returns the share of the node that a new pod pays for; without it ``settle_shares`` sets it later.
        """
        try:
            return self._apply(change, now, on_forget, share_of)
        except sqlite3.IntegrityError:
            # It would be unfinished again, but a workload of its name was submitted in between.
            return False
        except NoRoom:
            if not change.forget or not self._shrink(change):
                raise
            return self._apply(change, now, on_forget, share_of)

    @_retried_when_disk_full
    def _apply(
        self,
        change: Change,
        now: float,
        on_forget: Callable[[str], None],
        share_of: Callable[[Grant], int] | None,
    ) -> bool:
        with self._transaction():
            uid = change.workload_uid
            workload = self._stored(uid)
            effect = None if workload is None else self._transition(workload, change, now)
            if workload is None or effect is None:
                return False
            self._touch(uid)
            if effect.after is None:
                self._remove(uid, on_forget)
                return True
            self._store_workload(workload, effect.after)
            for creation in effect.created:
                self._insert_pod(uid, creation, now, None if share_of is None else share_of(creation.grant))
                self._update_shares(creation.node, creation.grant, now)
            for notice in effect.notices:
                self._db.execute(
                    "UPDATE pods SET terminating_since = ?, kill_at = ? WHERE uid = ? AND final = 0",
                    (notice.since, notice.kill_at, notice.pod_uid),
                )
            if effect.event is not None:
                self._record(uid, workload.spec.name, effect.event, now)
            if change.incident is not None:
                node_tables.charge(self._db, change.incident)
            for child in effect.submitted:
                self._insert(child.uid, child.spec, uid, now)
            for request in effect.requested:
                self._touch(request.uid)
                self._db.execute(
                    "UPDATE workloads SET intent = ?, version = version + 1 WHERE uid = ?",
                    (request.intent, request.uid),
                )
            return True

    def _stored(self, uid: str) -> AnyWorkload | None:
        """Return a workload as it is stored now, without reading it again if the last snapshot has it so."""
        row = self._db.execute(f"SELECT {WORKLOAD} FROM workloads WHERE uid = ?", (uid,)).fetchone()
        if row is None:
            return None
        cached = self._known_active.get(uid)
        return workload_of(row) if cached is None or cached[0] != row else cached[1]

    def _transition(self, workload: AnyWorkload, change: Change, now: float) -> Transition[Any] | None:
        """Return the effect of a change; None if it is stale."""
        pods, children = list[transitions.LivePod](), list[transitions.Child]()
        if change.needs_pods:
            for uid, since, kill_at in self._db.execute(
                "SELECT uid, terminating_since, kill_at FROM pods WHERE workload_uid = ? AND final = 0", (workload.uid,)
            ):
                notice = None
                if since is not None:
                    notice = transitions.Notice(
                        pod_uid=uid, since=since, kill_at=math.inf if kill_at is None else kill_at
                    )
                pods.append(transitions.LivePod(uid=uid, notice=notice))
        if change.needs_children:
            rows = self._db.execute("SELECT uid, name, intent FROM workloads WHERE parent = ?", (workload.uid,))
            children = [transitions.Child(uid=uid, name=name, intent=Intent(intent)) for uid, name, intent in rows]
        return transitions.transition(workload, change, now, pods=pods, children=children)

    def _store_workload(self, before: AnyWorkload, after: AnyWorkload) -> None:
        """Write what a change has made of a workload itself."""
        if after.status is not before.status:
            status = after.status
            self._db.execute(
                "UPDATE workloads SET phase = ?, final = ?, attempt = ?, status = ? WHERE uid = ?",
                (status.phase, int(status.phase.is_final), status.attempt, dump(status), after.uid),
            )
        self._db.execute(
            "UPDATE workloads SET intent = ?, version = ? WHERE uid = ?", (after.intent, after.version, after.uid)
        )

    @_retried_when_disk_full
    def observe(self, observation: PodObservation, now: float) -> None:
        """Record an observation of a pod. Final phases stay final."""
        row, pod = observation.row, observation.row.pod
        with self._transaction():
            cursor = self._db.execute(
                "UPDATE pods SET phase = ?, final = ?, started_at = ?, active_at = ?, exits = ?, message = ?, "
                "event_offsets = ?, ready = ?, usage = ? WHERE uid = ? AND final = 0",
                (
                    pod.phase,
                    int(pod.phase.is_final),
                    pod.started_at,
                    pod.active_at,
                    dump(pod.exits),
                    pod.message,
                    row.event_offsets,
                    int(pod.ready),
                    None if pod.usage is None else dump(pod.usage),
                    pod.uid,
                ),
            )
            if observation.progress is not None:
                text = dump(observation.progress)
                self._touch(pod.workload_uid)
                self._db.execute("UPDATE workloads SET progress = ? WHERE uid = ?", (text, pod.workload_uid))
            for at, event in observation.events:
                name = self._db.execute("SELECT name FROM workloads WHERE uid = ?", (pod.workload_uid,)).fetchone()
                self._record(pod.workload_uid, name[0] if name else "", event, at)
            self._keep_points(pod.workload_uid, observation.points)
            if pod.phase.is_final and cursor.rowcount:
                self._charge(pod.uid, now)
                self._update_shares(pod.node, pod.grant, max((rank_exit.at for rank_exit in pod.exits), default=now))

    @_retried_when_disk_full
    def charge(self, incident: Incident) -> None:
        """Enter a failure that this machine reports by itself in its history."""
        with self._transaction():
            node_tables.charge(self._db, incident)

    def keep_measured(self, measurements: Sequence[UsageMeasurement]) -> None:
        """Record measurements of pods: points of their runs, and idle time of what they hold."""
        with self._transaction():
            for measurement in measurements:
                live_row = self._db.execute(
                    "SELECT 1 FROM pods WHERE uid = ? AND final = 0", (measurement.pod_uid,)
                ).fetchone()
                if live_row is None:
                    continue  # it has ended and is charged
                self._keep_points(measurement.workload_uid, measurement.points)
                if measurement.busy is not None:
                    self._ledger.add_idle(
                        measurement.pod_uid, measurement.start_ms, measurement.end_ms, measurement.busy
                    )

    def points_since(self, uid: str, attempt: int, names: Sequence[str], since: float) -> dict[str, list[Point]]:
        """Return metrics of one attempt of a workload from a time on, by name."""
        with self._translated():
            rows_by_name = {
                name: self._db.execute(
                    "SELECT attempt, step, at, value FROM points WHERE workload_uid = ? AND name = ? AND attempt = ? "
                    "AND at > ? ORDER BY id",
                    (uid, name, attempt, since),
                ).fetchall()
                for name in names
            }
        return {name: [_point(row) for row in rows] for name, rows in rows_by_name.items()}

    def _keep_points(self, uid: str, points: tuple[tuple[str, Point], ...]) -> None:
        rows = ((uid, name, point.attempt, point.step, point.at, point.value) for name, point in points)
        self._db.executemany(
            "INSERT INTO points (workload_uid, name, attempt, step, at, value) VALUES (?, ?, ?, ?, ?, ?)", rows
        )
        for name in {name for name, _ in points}:
            of_series = "workload_uid = ? AND name = ?"
            (count,) = self._db.execute(f"SELECT count(*) FROM points WHERE {of_series}", (uid, name)).fetchone()
            if count <= MOST_POINTS:
                continue
            stored = self._db.execute(
                f"SELECT id, attempt, step, at, value FROM points WHERE {of_series} ORDER BY id", (uid, name)
            ).fetchall()
            ids = {_point(row[1:]): row[0] for row in stored}
            remaining = {ids[point] for point in thinned([_point(row[1:]) for row in stored], MOST_POINTS // 2)}
            gone = ((row[0],) for row in stored if row[0] not in remaining)
            self._db.executemany("DELETE FROM points WHERE id = ?", gone)

    def series(self, uid: str) -> dict[str, tuple[Point, ...]]:
        """Return the metrics of a workload over time, by name."""
        with self._translated():
            rows = self._db.execute(
                "SELECT name, attempt, step, at, value FROM points WHERE workload_uid = ? ORDER BY name, id", (uid,)
            ).fetchall()
        series: dict[str, list[Point]] = {}
        for name, *rest in rows:
            series.setdefault(name, []).append(_point(rest))
        return {name: continued(points) for name, points in series.items()}

    def note(self, uid: str, event: Event, now: float) -> None:
        """Record an event of a workload, if the workload still exists."""
        with self._transaction():
            name = self._db.execute("SELECT name FROM workloads WHERE uid = ?", (uid,)).fetchone()
            if name is not None:
                self._record(uid, str(name[0]), event, now)

    def _touch(self, uid: str) -> None:
        """Mark a workload as written by this connection, since `data_version` counts other connections' writes only."""
        self._touched.add(uid)
        self._touched_for_completed.add(uid)

    def active(self) -> tuple[tuple[AnyWorkload, ...], tuple[Pod, ...], tuple[AnyWorkload, ...]]:
        """Return the active workloads, their current or live pods, and their inactive children, at one instant.

        A workload is active if it is unfinished, is to run again or to be deleted, or has live pods.
        """
        with self._reading():
            rows = self._db.execute(
                f"SELECT {WORKLOAD} FROM workloads WHERE uid IN ({ACTIVE}) ORDER BY created_at, uid"
            ).fetchall()
            columns = ", ".join(f"p.{column.strip()}" for column in POD.split(","))
            pods = self._db.execute(
                f"SELECT {columns} FROM workloads w JOIN pods p ON p.workload_uid = w.uid WHERE w.uid IN ({ACTIVE}) "
                # The exits of a failed attempt's pods are still needed when the next attempt is counted.
                "AND (p.final = 0 OR p.attempt = w.attempt "
                f"OR (w.phase = '{Phase.RESTARTING.value}' AND p.attempt = w.attempt - 1)) ORDER BY p.uid"
            ).fetchall()
            cached = self._known_active
            unchanged = {row[0] for row in rows if row[0] in cached and cached[row[0]][0] == row}
            workloads = {
                workload.uid: workload for workload in readable(row for row in rows if row[0] not in unchanged)
            }
            self._known_active = {
                row[0]: cached[row[0]] if row[0] in unchanged else (row, workloads[row[0]])
                for row in rows
                if row[0] in unchanged or row[0] in workloads
            }
            active = tuple(workload for _, workload in self._known_active.values())
            children = self._ended_children({workload.uid: workload for workload in active})
        replaced = {
            workload.uid: workload for workload in active if workload.status.failures.lost_pods and is_leaf(workload)
        }
        candidates = (pod_of(row).pod for row in pods)
        included = (
            pod for pod in candidates if pod.workload_uid not in replaced or replaced[pod.workload_uid].is_told_by(pod)
        )
        return active, tuple(included), children

    def _ended_children(self, active: Mapping[str, AnyWorkload]) -> tuple[AnyWorkload, ...]:
        """Return inactive children of active workloads; the same tuple as long as none of them has changed.

        It re-reads the children written by this connection since the last call, and all changed ones after a write by
        another connection.
        """
        data_version = int(self._db.execute("PRAGMA data_version").fetchone()[0])
        parents = [uid for uid, workload in active.items() if not is_leaf(workload)]
        is_current, before = data_version == self._children_version, self._children
        self._children = {
            uid: before[uid] if is_current and uid in before else self._read_children(uid, active, before.get(uid, {}))
            for uid in parents
        }
        is_same = is_current and self._children.keys() == before.keys()
        for uid in sorted(self._touched) if is_current else ():
            child = active.get(uid) or next(iter(self.workloads_by_uid([uid])), None)
            for parent, siblings in self._children.items():
                belongs = child is not None and child.parent == parent and uid not in active
                if belongs or uid in siblings:
                    is_same = False
                    siblings.pop(uid, None)
                if child is not None and belongs:
                    siblings[uid] = child
        self._children_version, self._touched = data_version, set()
        if not is_same:
            self._ended = tuple(child for siblings in self._children.values() for child in siblings.values())
        return self._ended

    def _read_children(
        self, parent: str, active: Mapping[str, AnyWorkload], known: Mapping[str, AnyWorkload]
    ) -> dict[str, AnyWorkload]:
        """Return the inactive children of a parent, reading only those that are not known in their current version."""
        rows = self._db.execute("SELECT uid, version FROM workloads WHERE parent = ? ORDER BY rowid", (parent,))
        inactive = [row for row in rows if row[0] not in active]
        new = [uid for uid, version in inactive if uid not in known or known[uid].version != version]
        read_anew = {child.uid: child for child in self.workloads_by_uid(new)}
        return {uid: read_anew.get(uid) or known[uid] for uid, _ in inactive if uid in read_anew or uid in known}

    def completed(self, limit: int) -> tuple[Completed, ...]:
        """Return the newest runs that succeeded, with their durations."""
        with self._reading():
            version = int(self._db.execute("PRAGMA data_version").fetchone()[0]), limit
            if version != self._completed_version or not self._add_completed(limit):
                rows = self._db.execute(
                    f"SELECT created_at, uid FROM workloads WHERE phase = '{Phase.SUCCEEDED.value}' "
                    "ORDER BY created_at DESC, uid DESC LIMIT ?",
                    (limit,),
                ).fetchall()
                # A succeeded run never starts again, so that its entry stays valid.
                known = {uid: run for _, uid, run in self._completed}
                self._completed = [
                    (created, uid, known[uid] if uid in known else self._completed_run(uid))
                    for created, uid in reversed(rows)
                ]
            self._completed_version, self._touched_for_completed = version, set()
        return tuple(run for _, _, run in reversed(self._completed) if run is not None)

    def _add_completed(self, limit: int) -> bool:
        """Add runs that this connection has written since; False when a known one is no longer among them."""
        known = {uid for _, uid, _ in self._completed}
        for uid in sorted(self._touched_for_completed):
            row = self._db.execute("SELECT created_at, phase FROM workloads WHERE uid = ?", (uid,)).fetchone()
            has_succeeded = row is not None and row[1] == Phase.SUCCEEDED
            if uid in known and not has_succeeded:
                return False
            if uid not in known and has_succeeded:
                insort(self._completed, (float(row[0]), uid, self._completed_run(uid)), key=itemgetter(0, 1))
        del self._completed[: max(0, len(self._completed) - limit)]
        return True

    def _completed_run(self, uid: str) -> Completed | None:
        team, name, took_s, at, used, paces = self._db.execute(
            "SELECT team, name, json_extract(status, '$.finished_at') - json_extract(status, '$.started_at'), "
            "json_extract(status, '$.finished_at'), json_extract(status, '$.used'), json_extract(status, '$.paces') "
            "FROM workloads WHERE uid = ?",
            (uid,),
        ).fetchone()
        if took_s is None:
            return None
        usage = None if used is None else load(Usage, used)
        measured_paces = () if paces is None else load_all(Pace, paces)
        return Completed(team=team, name=name, took_s=float(took_s), at=float(at), used=usage, paces=measured_paces)

    def active_uids(self) -> set[str]:
        """Return the uids of workloads that are unfinished, wanted, or have live pods."""
        with self._translated():
            return {str(uid) for (uid,) in self._db.execute(ACTIVE)}

    def has_work(self) -> bool:
        """Return whether any workload is unfinished or wanted, or any pod is live."""
        with self._translated():
            row = self._db.execute(
                f"SELECT EXISTS (SELECT 1 FROM workloads WHERE {WANTED}) OR EXISTS (SELECT 1 FROM pods WHERE final = 0)"
            ).fetchone()
        return bool(row[0])

    def has_kind(self, kind: str) -> bool:
        """Return whether any unfinished workload is of a kind."""
        with self._translated():
            cursor = self._db.execute("SELECT EXISTS (SELECT 1 FROM workloads WHERE final = 0 AND kind = ?)", (kind,))
            return bool(cursor.fetchone()[0])

    def live_pods(self) -> tuple[PodRow, ...]:
        """Return the pods that are not final."""
        with self._translated():
            rows = self._db.execute(f"SELECT {POD} FROM pods WHERE final = 0 ORDER BY uid").fetchall()
        return tuple(pod_of(row) for row in rows)

    def pods(self, workload_uid: str) -> tuple[Pod, ...]:
        """Return all stored pods of a workload, in order of attempt and index."""
        with self._translated():
            rows = self._db.execute(
                f"SELECT {POD} FROM pods WHERE workload_uid = ? ORDER BY attempt, idx", (workload_uid,)
            ).fetchall()
        return tuple(pod_of(row).pod for row in rows)

    def get(self, uid: str) -> Workload[Any]:
        """Return one workload.

        Raises:
            NotFound: No such workload.
        """
        with self._translated():
            row = self._db.execute(f"SELECT {WORKLOAD} FROM workloads WHERE uid = ?", (uid,)).fetchone()
        if row is None:
            raise NotFound(f"There is no run with the id {uid!r}.")
        return workload_of(row)

    def workloads_by_uid(self, uids: Sequence[str]) -> tuple[Workload[Any], ...]:
        """Return workloads by uid, without those that are gone."""
        with self._translated():
            rows = [
                self._db.execute(f"SELECT {WORKLOAD} FROM workloads WHERE uid = ?", (uid,)).fetchone() for uid in uids
            ]
        return tuple(readable(row for row in rows if row is not None))

    def has(self, uid: str) -> bool:
        """Return whether a workload exists."""
        with self._translated():
            return self._db.execute("SELECT 1 FROM workloads WHERE uid = ?", (uid,)).fetchone() is not None

    def is_over(self, uid: str) -> bool:
        """Return whether a workload is finished and not to run again."""
        with self._translated():
            cursor = self._db.execute(
                "SELECT final = 1 AND intent <> ? FROM workloads WHERE uid = ?", (Intent.RUN, uid)
            )
            row = cursor.fetchone()
        return row is not None and bool(row[0])

    def named(self, name: str, team: str | None = None) -> Workload[Any] | None:
        """Return the workload of a name, or of a uid or a unique prefix of one, of at least four characters.

        Of several of a name it is the newest that has not ended, or else the newest of all.
        """
        with self._translated():
            by_name = self._db.execute(
                f"SELECT {WORKLOAD} FROM workloads WHERE name = ? AND (?2 IS NULL OR team = ?2) "
                "ORDER BY final, created_at DESC LIMIT 1",
                (name, team),
            ).fetchone()
            if by_name is not None:
                return workload_of(by_name)
            by_uid = self._db.execute(
                f"SELECT {WORKLOAD} FROM workloads WHERE substr(uid, 1, length(?1)) = ?1 LIMIT 2", (name,)
            ).fetchall()
        return workload_of(by_uid[0]) if len(by_uid) == 1 and len(name) >= 4 else None

    def names(self) -> tuple[str, ...]:
        """Return the names of all workloads, newest first."""
        with self._translated():
            rows = self._db.execute("SELECT name FROM workloads GROUP BY name ORDER BY max(created_at) DESC").fetchall()
        return tuple(row[0] for row in rows)

    def finished_names(self) -> frozenset[str]:
        """Return the names of finished workloads."""
        with self._translated():
            rows = self._db.execute("SELECT DISTINCT name FROM workloads WHERE final = 1").fetchall()
        return frozenset(row[0] for row in rows)

    def children(self, uid: str) -> tuple[Workload[Any], ...]:
        """Return the children of a workload, oldest first."""
        with self._translated():
            rows = self._db.execute(
                f"SELECT {WORKLOAD} FROM workloads WHERE parent = ? ORDER BY created_at, uid", (uid,)
            ).fetchall()
        return tuple(readable(rows))

    def workloads(self, limit: int | None = None) -> tuple[Workload[Any], ...]:
        """Return all workloads, newest first."""
        with self._translated():
            rows = self._db.execute(
                f"SELECT {WORKLOAD} FROM workloads ORDER BY created_at DESC, uid LIMIT ?",
                (-1 if limit is None else limit,),
            ).fetchall()
        return tuple(readable(rows))

    def select(self, selection: RunSelection, limit: int | None = None) -> tuple[Workload[Any], ...]:
        """Return the matching workloads, newest first."""
        conditions, values = ["1"], list[object]()
        if selection.phases:
            conditions.append(f"phase IN ({', '.join('?' * len(selection.phases))})")
            values += sorted(selection.phases)
        for name, value in selection.labels:
            # Each label is a row of its own, so that names need not be escaped as JSON paths.
            conditions.append(
                "EXISTS (SELECT 1 FROM json_each(workloads.spec, '$.labels') l "
                "WHERE l.key = ? AND (? IS NULL OR l.value = ?))"
            )
            values += [name, value, value]
        with self._translated():
            rows = self._db.execute(
                f"SELECT {WORKLOAD} FROM workloads WHERE {' AND '.join(conditions)} "
                "ORDER BY created_at DESC, uid LIMIT ?",
                (*values, -1 if limit is None else limit),
            ).fetchall()
        return tuple(readable(rows))

    def page(self, listing: Listing) -> tuple[AnyWorkload, ...]:
        """Return the workloads of a page, newest first."""
        with self._reading():
            return pages.page(self._db, listing)

    def num_kept(self) -> int:
        """Count the stored workloads."""
        with self._translated():
            return pages.num_kept(self._db)

    def num_unfinished(self) -> dict[Phase, int]:
        """Count the unfinished workloads by phase."""
        with self._translated():
            return pages.num_unfinished(self._db)

    def events(self, uid: str | None, after: int) -> tuple[EventRecord, ...]:
        """Return events with ids above ``after``, oldest first."""
        # A separate condition for each case, since no index serves a condition on an optional value.
        of_run, values = ("", (after,)) if uid is None else (" AND workload_uid = ?", (after, uid))
        with self._translated():
            rows = self._db.execute(
                f"SELECT id, at, workload_uid, run, type, reason FROM events WHERE id > ?{of_run} ORDER BY id", values
            ).fetchall()
        return tuple(
            EventRecord(id=row[0], at=row[1], workload_uid=row[2], run=row[3], type=row[4], reason=load(Reason, row[5]))
            for row in rows
        )

    @_retried_when_disk_full
    def add_model(self, version: ModelVersion) -> tuple[ModelVersion, bool]:
        """Store a new version of a model under the next number; or update that of equal content and origin, False."""
        with self._transaction():
            for stored in self._models.versions(version.name):
                if is_same(stored, version):
                    self._models.update(renewed := updated(stored, version))
                    return renewed, False
            return self._models.add(version), True

    @_retried_when_disk_full
    def promote_model(self, name: str, version: int, stage: str) -> ModelVersion:
        """Give a version of a model a stage, and take it from any other version of that name."""
        with self._transaction():
            self._models.promote(name, version, stage)
            return next(model for model in self._models.versions(name) if model.version == version)

    @_retried_when_disk_full
    def remove_model(self, name: str, version: int) -> None:
        """Remove a version of a model.

        Raises:
            Conflict: It has a stage by now.
        """
        with self._transaction():
            model = next((model for model in self._models.versions(name) if model.version == version), None)
            if model is not None and model.stage is not None:
                raise Conflict(f"{model} is {model.stage}; promote another version to that first.")
            self._models.remove(name, version)

    def models(self, name: str | None = None) -> tuple[ModelVersion, ...]:
        """Return the versions of models, of one name or of all, by name and number."""
        with self._translated():
            return self._models.versions(name)

    def change_counter(self) -> tuple[int, int]:
        """Return a value that differs after every change of the database, by another connection or by this one."""
        with self._translated():
            return int(self._db.execute("PRAGMA data_version").fetchone()[0]), self._db.total_changes

    @_retried_when_disk_full
    def settle_shares(self, share_of: Callable[[Grant], int]) -> None:
        """Set the shares of pods that older versions left without one, and charge those that are final."""
        with self._translated():
            if self._db.execute("SELECT 1 FROM pods WHERE share IS NULL LIMIT 1").fetchone() is None:
                return
        with self._transaction():
            rows = self._db.execute(f"SELECT {POD} FROM pods WHERE share IS NULL").fetchall()
            for pod in (pod_of(row).pod for row in rows):
                self._db.execute("UPDATE pods SET share = ? WHERE uid = ?", (share_of(pod.grant), pod.uid))
                if pod.phase.is_final:
                    last_seen = pod.active_at or pod.started_at or pod.created_at
                    self._charge(pod.uid, max((rank_exit.at for rank_exit in pod.exits), default=last_seen))

    @_retried_when_disk_full
    def set_price(self, price: Price) -> None:
        """Store the price of a node from a time on."""
        with self._transaction():
            self._ledger.set_price(price)

    def prices(self) -> tuple[Price, ...]:
        """Return all prices ever set, by node and time."""
        with self._translated():
            return self._ledger.prices()

    def node_histories(self) -> Histories:
        """Return the histories of nodes, by name."""
        with self._reading():
            return node_tables.histories(self._db)

    def rate_at(self, node: str, at: float) -> int | None:
        """Return micro-dollars for an hour of a node; None where unknown."""
        with self._translated():
            if "_ledger" not in vars(self) and self._db.execute("SELECT 1 FROM prices LIMIT 1").fetchone() is None:
                return None  # avoids loading the ledger on a machine without prices
            return self._ledger.rate_at(node, round(at * 1000))

    def cost(
        self, by: CostGrouping, *, since: float, until: float, now: float, daily: bool = False
    ) -> Statement[Payer]:
        """Return the bills of all nodes within a window, divided among payers; separately for each day if ``daily``."""
        with self._reading():
            live = self._live_intervals(now)
            return bills.statement(
                self._ledger.stretches(by, round(since * 1000), round(until * 1000), live, daily=daily)
            )

    def first_known(self) -> float | None:
        """Return the Unix time of the first submission or use that is recorded; None before that."""
        with self._reading():
            (submitted,) = self._db.execute("SELECT min(created_at) FROM workloads").fetchone()
            used_ms = self._ledger.first_ms()
        return min((at for at in (submitted, used_ms and used_ms / 1000) if at is not None), default=None)

    def busy_spans(self, since: float, until: float, now: float) -> list[tuple[str, int, int]]:
        """Return nodes with the beginning and end, in milliseconds, of what runs held of them within a window."""
        since_ms, until_ms = round(since * 1000), round(until * 1000)
        with self._reading():
            spans = self._ledger.spans(since_ms, until_ms)
            for interval in self._live_intervals(now):
                if interval.share and interval.overlap_ms(since_ms, until_ms):
                    spans.append((interval.node, max(interval.start_ms, since_ms), min(interval.end_ms, until_ms)))
        return spans

    def spent_this_month(self, now: float) -> Spending:
        """Return spending since the beginning of the calendar month, UTC, by team and by project."""
        return ledger_tables.spending_of(
            self.cost(
                ledger_tables.CostGrouping.ACCOUNT, since=ledger_tables.month_of(now)[1], until=now, now=now
            ).lines
        )

    def tell_budget(self, account: Account, percent: int, reason: Reason, now: float) -> None:
        """Record an event with each unfinished run of a budget when a percentage is spent; once a month."""
        month = ledger_tables.month_of(now)[0]
        with self._translated():
            if self._ledger.is_told(account.key, month, percent):
                return
        with self._transaction():
            self._ledger.note_told(account.key, month, percent)
            runs = self._db.execute(
                "SELECT uid, name FROM workloads WHERE final = 0 AND team = ?1 "
                "AND (?2 IS NULL OR json_extract(spec, '$.labels.' || ?3) = ?2)",
                (account.team, account.project, PROJECT_LABEL),
            ).fetchall()
            for uid, name in runs:
                self._record(uid, name, Event(type=f"Budget{percent}", reason=reason), now)

    def holders(self) -> dict[str, Holder]:
        """Return charged runs by uid, deleted ones included."""
        with self._reading():
            return {
                **{
                    interval.holder.uid: interval.holder
                    for interval in self._live_intervals(time.time())
                    if interval.holder is not None
                },
                **self._ledger.holders(),
            }

    def cost_of(self, uid: str, now: float) -> int | None:
        """Return micro-dollars of a run so far; None where no price is known of any node that it held."""
        with self._reading():
            changes = self._ledger.price_changes()
            if not changes:
                return None
            held = self._ledger.of_run(uid) + self._live_intervals(now, uid)
        return bills.cost_of(held, changes)

    def held_by(self, uid: str, now: float) -> list[UsageInterval]:
        """Return what the pods of a run held up to now, by use."""
        with self._reading():
            return self._ledger.of_run(uid) + self._live_intervals(now, uid)

    def _live_intervals(self, now: float, uid: str | None = None) -> list[UsageInterval]:
        """Return what live pods hold, of all runs or of one."""
        columns = ", ".join(f"p.{column.strip()}" for column in POD.split(","))
        of_run, values = ("", ()) if uid is None else (" AND p.workload_uid = ?", (uid,))
        rows = self._db.execute(
            f"SELECT w.spec, w.progress, p.share, p.shares, {columns} "
            "FROM pods p JOIN workloads w ON w.uid = p.workload_uid "
            f"WHERE p.final = 0 AND p.share IS NOT NULL{of_run}",
            values,
        ).fetchall()
        return [
            interval
            for spec, progress, share, shares, *row in rows
            for pod in (pod_of(tuple(row)).pod,)
            for interval in _held_intervals(
                pod, spec, progress, round(now * 1000), share, self._ledger.idle_of(pod.uid), shares
            )
        ]

    def _charge(self, pod_uid: str, observed_at: float) -> None:
        """Charge what a terminated pod held to the ledger, if its share is known."""
        columns = ", ".join(f"p.{column.strip()}" for column in POD.split(","))
        row = self._db.execute(
            f"SELECT w.spec, w.progress, p.share, p.shares, {columns} "
            "FROM pods p JOIN workloads w ON w.uid = p.workload_uid WHERE p.uid = ? AND p.share IS NOT NULL",
            (pod_uid,),
        ).fetchone()
        if row is not None:
            spec, progress, share, shares, *rest = row
            pod = pod_of(tuple(rest)).pod
            idle_ms = self._ledger.idle_of(pod_uid)
            self._ledger.add(_held_intervals(pod, spec, progress, ended_ms(pod, observed_at), share, idle_ms, shares))
            self._ledger.forget_idle(pod_uid)

    def _update_shares(self, node: str, grant: Grant, now: float) -> None:
        """Update the shares of a node that its pods pay for, after a pod has come to, or left, GPUs held whole."""
        if not grant.gpu_uuids or grant.gpu_milli < WHOLE_MILLI:
            return
        rows = self._db.execute(
            'SELECT uid, "grant", share, shares FROM pods WHERE final = 0 AND node = ? AND share IS NOT NULL', (node,)
        ).fetchall()
        live = [(uid, load(Grant, text), share, shares) for uid, text, share, shares in rows]
        num_holders = Counter(
            (node, uuid)
            for _, pod_grant, _, _ in live
            if pod_grant.gpu_milli >= WHOLE_MILLI
            for uuid in pod_grant.gpu_uuids
        )
        if max(num_holders.values(), default=0) < 2 and all(shares is None for *_, shares in live):
            return
        for uid, pod_grant, share, stored_shares in live:
            shares = [] if stored_shares is None else json.loads(stored_shares)
            new_share = divided(share, pod_grant, node, num_holders)
            if new_share != (shares[-1][1] if shares else share):
                at_ms = round(now * 1000)
                shares.append([max(at_ms, shares[-1][0]) if shares else at_ms, new_share])
                self._db.execute("UPDATE pods SET shares = ? WHERE uid = ?", (json.dumps(shares), uid))

    def _insert_pod(self, workload_uid: str, order: CreatePod, now: float, share: int | None) -> None:
        self._db.execute(
            f"INSERT OR IGNORE INTO pods ({POD}, final, share) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL, '[]', NULL, NULL, '{}', 0, NULL, 0, ?)",
            (
                pod_uid(workload_uid, order.attempt, order.index, order.replacement),
                workload_uid,
                order.attempt,
                order.index,
                order.node,
                dump(order.grant),
                PodPhase.CREATED,
                now,
                share,
            ),
        )

    def _remove(self, uid: str, on_forget: Callable[[str], None]) -> None:
        """Remove a workload with its events, points and pods."""
        for table in ("events", "points", "pods"):
            self._db.execute(f"DELETE FROM {table} WHERE workload_uid = ?", (uid,))
        self._db.execute("DELETE FROM workloads WHERE uid = ?", (uid,))
        on_forget(uid)

    def _shrink(self, change: Change) -> bool:
        """Remove points, events and pods of a workload to be forgotten, in steps as small as the space requires.

        Returns:
            True if anything was removed.
        """
        num_rows, is_smaller = MAX_ROWS_AT_ONCE, False
        while num_rows:
            try:
                self.checkpoint_wal()
                if not self._remove_rows(change, num_rows):
                    break
                is_smaller = True
            except NoRoom:
                num_rows //= 2
        self.checkpoint_wal()
        return is_smaller

    def _remove_rows(self, change: Change, num_rows: int) -> bool:
        """Remove so many points, events and final pods of a workload; False when it is stale, or none are left."""
        uid, before = change.workload_uid, self._db.total_changes
        with self._transaction():
            row = self._db.execute("SELECT version FROM workloads WHERE uid = ?", (uid,)).fetchone()
            if row is None or row[0] != change.version:
                return False
            for table, condition in (("points", "1"), ("events", "1"), ("pods", "final = 1")):
                self._db.execute(
                    f"DELETE FROM {table} WHERE rowid IN "
                    f"(SELECT rowid FROM {table} WHERE workload_uid = ? AND {condition} LIMIT ?)",
                    (uid, num_rows),
                )
        return self._db.total_changes > before

    def _record(self, uid: str, run: str, event: Event, at: float) -> None:
        self._db.execute(
            "INSERT INTO events (at, workload_uid, run, type, reason) VALUES (?, ?, ?, ?, ?)",
            (at, uid, run, event.type, dump(event.reason)),
        )

    def _refuse_foreign_database(self) -> None:
        """Refuse a database of a newer version, or an empty one beside files of runs, before any change."""
        schema_version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if schema_version > SCHEMA_VERSION:
            raise ClusterError(
                f"{self._path} was written by a newer Fairlead (schema {schema_version}, this one knows "
                f"{SCHEMA_VERSION}). Upgrade Fairlead, or set FAIRLEAD_HOME to another directory."
            )
        # A lost or truncated database looks like a new one, and the files of runs that it does not know would be
        # removed.
        if schema_version == 0 and any((self._home.path / "runs").glob("*/pods")):
            raise self._damaged("it is empty, but there are files of runs")

    def _migrate(self) -> None:
        schema_version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if schema_version == SCHEMA_VERSION:
            return
        self._db.execute("BEGIN EXCLUSIVE")
        try:
            if int(self._db.execute("PRAGMA user_version").fetchone()[0]) == 0:
                for statement in SCHEMA.split(";\n"):
                    self._db.execute(statement)
            # Version 1 has the same other tables; its rows are converted when they are read.
            for statement in POINTS.split(";\n"):
                self._db.execute(statement)
            if "share" not in {row[1] for row in self._db.execute("PRAGMA table_info(pods)")}:
                self._db.execute("ALTER TABLE pods ADD COLUMN share INTEGER")
            if "shares" not in {row[1] for row in self._db.execute("PRAGMA table_info(pods)")}:
                self._db.execute("ALTER TABLE pods ADD COLUMN shares TEXT")
            if "ready" not in {row[1] for row in self._db.execute("PRAGMA table_info(pods)")}:
                self._db.execute("ALTER TABLE pods ADD COLUMN ready INTEGER NOT NULL DEFAULT 0")
            if "usage" not in {row[1] for row in self._db.execute("PRAGMA table_info(pods)")}:
                self._db.execute("ALTER TABLE pods ADD COLUMN usage TEXT")
            if "kind" not in {row[1] for row in self._db.execute("PRAGMA table_info(workloads)")}:
                for statement in UPGRADE.split(";\n"):
                    self._db.execute(statement)
            for statement in ";\n".join((INDEXES, LEDGER_SCHEMA, MODEL_SCHEMA)).split(";\n"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._db.execute("COMMIT")
        except sqlite3.Error:
            self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Run several reads on one snapshot of the database."""
        with self._translated():
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                if self._db.in_transaction:  # a damaged database ends the transaction by itself
                    self._db.execute("COMMIT")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def _explained(self, error: sqlite3.Error) -> ClusterError:
        code = getattr(error, "sqlite_errorcode", None)
        kind = None if code is None else code & 0xFF  # the rest is detail
        if isinstance(error, sqlite3.ProgrammingError) and "thread" in str(error):
            return ClusterError(
                "This handle belongs to the thread that made it. Make one in each, as with `fairlead.find(NAME)`."
            )
        if kind in _DAMAGE or code == sqlite3.SQLITE_IOERR_SHORT_READ:
            return self._damaged(str(error))
        problem = write_problem(self._home)
        if problem is not None:
            return problem
        if kind == sqlite3.SQLITE_FULL:  # there is space again by now
            return NoRoom(f"The disk of the state directory {self._home.path} was full a moment ago; try again.")
        return ClusterError(
            f"The state database {self._path} cannot be used: {error}. "
            "Check that the disk has room and that you own the directory; `fairlead doctor` looks at both."
        )

    def _damaged(self, how: str) -> ClusterError:
        home = self._home.path
        shims = _living_shims(home / "runs")
        end = f"end its runs with `kill {' '.join(map(str, shims))}`, then " if shims else ""
        return ClusterError(
            f"The state database {self._path} is damaged: {how}. What is in {home / 'runs'} (logs, checkpoints) is not "
            f"touched. To begin anew, {end}`mv {home} {home}.damaged`, which keeps those files there, and submit the "
            "runs again; or put a copy of the database back."
        )


def _living_shims(runs: Path) -> list[int]:
    """Return the processes that still run pods, found by their files, as a damaged database does not know them."""
    pids = []
    for lock in runs.glob("*/pods/*/shim.lock"):
        claim = read_json(lock.with_name("claimed.json"))
        if claim is not None and is_locked(lock):
            pids.append(int(claim["pid"]))
    return sorted(pids)
