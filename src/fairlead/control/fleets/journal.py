"""Stores a fleet's spec, its runs, their files and their events in one directory.

The journal is one SQLite file. Commands submit runs and request their end; the single controller, ensured by a lock,
writes everything else. If a process is killed at any instant, all or none of the changes of a call persist.
"""

import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fairlead.cluster.local.home import Home
from fairlead.cluster.project_files import ProjectFile, no_project, walk
from fairlead.cluster.records import build, plain
from fairlead.errors import ClusterError, Conflict, NotFound
from fairlead.frozen import dataclass
from fairlead.specs.fleet import Fleet
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.training import Training
from fairlead.state.fleets import FleetRun, FleetStage
from fairlead.state.snapshot import Intent
from fairlead.text.quantities import describe_memory

PATIENCE_S = 30.0  # for another process that writes
LOCK_TRIES, LOCK_RETRY_S = 10, 0.05
MOST_BYTES = 2 * 2**30  # of the files of one run
# Number of newest finished runs from which waits and durations are estimated.
MOST_ENDED = 500
SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT UNIQUE NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL,
    submitted_at REAL NOT NULL, intent TEXT NOT NULL, stage TEXT NOT NULL, record TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS runs_by_stage ON runs (stage);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, uid TEXT NOT NULL, said TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS clusters (name TEXT PRIMARY KEY, at REAL NOT NULL, trouble TEXT, since REAL NOT NULL);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvent:
    """An event of a run of a fleet."""

    id: int
    at: float
    uid: str
    run: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNote:
    """The controller's note on a visited cluster; ``trouble`` is None while the cluster answers."""

    at: float
    trouble: str | None
    since: float


class FleetJournal:
    """The journal of one fleet. An instance belongs to one thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            self._database = sqlite3.connect(directory / "fleet.db", timeout=PATIENCE_S, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise ClusterError(
                f"The journal of the fleet cannot be opened: {directory / 'fleet.db'}: {error}"
            ) from error

    @classmethod
    def create(cls, home: Home, fleet: Fleet) -> "FleetJournal":
        """Open the journal of a fleet, or create it, and store the given fleet in it."""
        directory = _fleets_directory(home) / fleet.name
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = directory / f"fleet.json.{uuid.uuid4().hex}"
        temporary.write_text(to_json(fleet))
        os.replace(temporary, directory / "fleet.json")
        return cls(directory)

    @classmethod
    def open(cls, home: Home, name: str) -> "FleetJournal":
        """Open the journal of an existing fleet.

        Raises:
            NotFound: The fleet does not exist.
        """
        directory = _fleets_directory(home) / name
        if not (directory / "fleet.json").is_file():
            existing = ", ".join(fleet_names(home)) or "none"
            raise NotFound(
                f"There is no fleet {name!r} here; there is: {existing}. `fairlead fleet run FILE` begins one."
            )
        return cls(directory)

    def close(self) -> None:
        self._database.close()

    def fleet(self) -> Fleet:
        """Return the fleet as last given to its controller."""
        fleet = from_json((self.directory / "fleet.json").read_text())
        assert isinstance(fleet, Fleet), "only a fleet is written there"
        return fleet

    def files_of(self, uid: str) -> Path:
        """Return the directory with the files of a run."""
        return self.directory / "runs" / uid

    def submit(self, spec: Training, directory: Path, now: float) -> FleetRun:
        """Record a run, with a copy of the current files of its working directory.

        Raises:
            Conflict: An unfinished run of the fleet has its name, or its files exceed the limit.
        """
        uid = uuid.uuid4().hex[:12]
        spec = self._with_files(spec, directory, self.files_of(uid))
        try:
            with self._transaction() as database:
                taken = database.execute(
                    "SELECT 1 FROM runs WHERE name = ? AND stage != ?", (spec.name, FleetStage.ENDED)
                ).fetchone()
                if taken:
                    raise Conflict(
                        f"A run named {spec.name!r} of the fleet is not finished. Stop it with `fairlead fleet stop "
                        f"{self.directory.name} {spec.name}`, or choose another name with `--name`."
                    )
                run = FleetRun(uid=uid, number=0, spec=spec, submitted_at=now, since=now)
                cursor = database.execute(
                    "INSERT INTO runs (uid, name, spec, submitted_at, intent, stage, record) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (uid, spec.name, to_json(spec), now, run.intent, run.stage, _record(run)),
                )
                _add_event(database, now, uid, "Submitted")
        except BaseException:
            shutil.rmtree(self.files_of(uid), ignore_errors=True)
            raise
        return replace(run, number=cursor.lastrowid or 0)

    def stop(self, name: str, now: float) -> FleetRun:
        """Request the end of an unfinished run.

        Raises:
            NotFound: No run has that name.
            Conflict: The newest run of that name has ended.
        """
        run = self.find(name)
        if run.stage is FleetStage.ENDED:
            raise Conflict(f"{name} is over already: {run.phase}.")
        with self._transaction() as database:
            database.execute("UPDATE runs SET intent = ? WHERE uid = ?", (Intent.STOP, run.uid))
            _add_event(database, now, run.uid, "Asked to stop")
        return replace(run, intent=Intent.STOP)

    def find(self, name: str) -> FleetRun:
        """Return the unfinished or else newest run of a name.

        Raises:
            NotFound: No run has that name.
        """
        runs = [run for run in self.runs() if run.spec.name == name]
        if not runs:
            raise NotFound(f"There is no run {name!r} in the fleet {self.directory.name}.")
        return next((run for run in runs if run.stage is not FleetStage.ENDED), runs[-1])

    def runs(self, *, unfinished: bool = False) -> tuple[FleetRun, ...]:
        """Return the runs in order of submission."""
        where = " WHERE stage != 'Ended'" if unfinished else ""
        rows = self._read(f"SELECT number, uid, spec, submitted_at, intent, record FROM runs{where} ORDER BY number")
        return tuple(_run(*row) for row in rows)

    def ended(self) -> tuple[FleetRun, ...]:
        """Return the newest finished runs, oldest first, for estimates of waits and durations."""
        rows = self._read(
            "SELECT number, uid, spec, submitted_at, intent, record FROM runs WHERE stage = 'Ended' "
            "ORDER BY number DESC LIMIT ?",
            MOST_ENDED,
        )
        return tuple(_run(*row) for row in rows)[::-1]

    def events(self, *, after: int = 0) -> tuple[FleetEvent, ...]:
        """Return the events of all runs, oldest first."""
        return self._events("WHERE e.id > ? ORDER BY e.id", after)

    def newest_events(self, most: int) -> tuple[FleetEvent, ...]:
        """Return the newest events of all runs, newest first."""
        return self._events("ORDER BY e.id DESC LIMIT ?", most)

    def clusters(self) -> Mapping[str, ClusterNote]:
        """Return the notes on each cluster, by its name."""
        rows = self._read("SELECT name, at, trouble, since FROM clusters")
        return {name: ClusterNote(at=at, trouble=trouble, since=since) for name, at, trouble, since in rows}

    def record(self, changed: Iterable[FleetRun], notes: Mapping[str, ClusterNote], now: float) -> None:
        """Record decisions, with an event for each change of stage or cluster. Only for the controller."""
        with self._transaction() as database:
            for run in changed:
                row = database.execute("SELECT stage, record FROM runs WHERE uid = ?", (run.uid,)).fetchone()
                if row is not None and (row[0], json.loads(row[1])["cluster"]) != (run.stage, run.cluster):
                    _add_event(database, now, run.uid, f"{run.stage}: {run.reason}")
                database.execute(
                    "UPDATE runs SET stage = ?, record = ? WHERE uid = ?", (run.stage, _record(run), run.uid)
                )
            for name, note in notes.items():
                database.execute(
                    "INSERT INTO clusters (name, at, trouble, since) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE "
                    "SET at = excluded.at, trouble = excluded.trouble, since = excluded.since",
                    (name, note.at, note.trouble, note.since),
                )

    @contextmanager
    def lock_controller(self) -> Iterator[None]:
        """Hold the lock of the controller within the block.

        Raises:
            Conflict: Another process holds it.
        """
        with (self.directory / "controller.lock").open("a") as lock:
            # `has_controller` holds the lock for a moment.
            for attempt in range(LOCK_TRIES):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if attempt == LOCK_TRIES - 1:
                        raise Conflict(
                            f"Another controller of the fleet {self.directory.name} runs. One is enough."
                        ) from None
                    time.sleep(LOCK_RETRY_S)
            yield

    def has_controller(self) -> bool:
        """Return whether a controller runs."""
        with (self.directory / "controller.lock").open("a") as lock:
            try:
                # A shared lock, so that concurrent checks do not take each other for a controller.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def _events(self, clause: str, *arguments: object) -> tuple[FleetEvent, ...]:
        rows = self._read(
            "SELECT e.id, e.at, e.uid, coalesce(r.name, e.uid), e.said FROM events e LEFT JOIN runs r USING (uid) "
            + clause,
            *arguments,
        )
        return tuple(FleetEvent(id=row[0], at=row[1], uid=row[2], run=row[3], message=row[4]) for row in rows)

    def _with_files(self, spec: Training, directory: Path, files: Path) -> Training:
        """Copy the run's local files, if any, into a directory of the fleet, and return the spec adjusted to it."""
        source = Path(directory.absolute(), Path(spec.workdir or ".").expanduser())
        if spec.image is not None and (spec.workdir is None or not source.is_dir()):
            files.mkdir(parents=True)
            return spec  # its files are in the image
        if not source.is_dir():
            raise Conflict(f"{spec.name}: workdir: there is no directory {source}. Correct `workdir`.")
        if (problem := no_project(source)) is not None:
            raise Conflict(f"{spec.name}: workdir: {problem}.")
        entries = walk(source, without=str(self.directory.parent))
        files_to_copy = [entry for entry in entries if isinstance(entry, ProjectFile)]
        size = sum(file.status.st_size for file in files_to_copy)
        if size > MOST_BYTES:
            raise Conflict(
                f"{spec.name}: the files of {source} are {describe_memory(size)}; a fleet keeps at most "
                f"{describe_memory(MOST_BYTES)} of a run. Leave data out by a .gitignore, or name it by a URL."
            )
        for file in files_to_copy:
            target = files / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / file.path, target)
        files.mkdir(parents=True, exist_ok=True)
        return replace(spec, workdir=".")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise ClusterError(f"The journal of the fleet {self.directory.name}: {error}") from error

    def _read(self, query: str, *arguments: object) -> list[tuple]:  # type: ignore[type-arg]  # rows, as SQLite has them
        try:
            return self._database.execute(query, arguments).fetchall()
        except sqlite3.Error as error:
            raise ClusterError(f"The journal of the fleet {self.directory.name}: {error}") from error


def fleet_names(home: Home) -> list[str]:
    """Return the names of the existing fleets."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(path.name for path in _fleets_directory(home).iterdir() if (path / "fleet.json").is_file())
    return []


def _fleets_directory(home: Home) -> Path:
    return home.path / "fleets"


def _add_event(database: sqlite3.Connection, now: float, uid: str, message: str) -> None:
    database.execute("INSERT INTO events (at, uid, said) VALUES (?, ?, ?)", (now, uid, message))


def _record(run: FleetRun) -> str:
    content = plain(replace(run, spec=None))  # type: ignore[arg-type]  # the spec has its own column
    for name in ("spec", "number", "uid", "submitted_at", "intent"):
        del content[name]
    return json.dumps(content, separators=(",", ":"))


def _run(number: int, uid: str, spec: str, submitted_at: float, intent: str, record: str) -> FleetRun:
    content = json.loads(record)
    columns = {"number": number, "uid": uid, "submitted_at": submitted_at, "intent": intent, "spec": None}
    training = from_json(spec)
    assert isinstance(training, Training), "a fleet keeps nothing else"
    return replace(build(FleetRun, {**content, **columns}), spec=training)
