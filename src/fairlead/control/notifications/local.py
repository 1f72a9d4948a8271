"""Notifications of this machine's runs, sent by the supervisor in a thread beside the loop (decision 0202).

The file of destinations is read anew when it changes; while it has a mistake, its last good version stays in force. A
cursor over stored events, and the notices that wait, are in a file, so that a supervisor that starts later sends each
notice once. Only a kill between an answer and the write of that file repeats a message, with the same identifier.
"""

import logging
import os
import stat
import threading
import time
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.last_good import InForce, in_force
from fairlead.cluster.port import EventRecord
from fairlead.control.notifications.destinations import MOST_BYTES, Destination, read_destinations
from fairlead.control.notifications.queue import Outbox, is_waiting, outboxes_of, plain_outboxes
from fairlead.control.notifications.topics import RunNotice, notice_of, waiting_notice
from fairlead.control.notifications.transports import MOST_SECRET, Undeliverable, deliver
from fairlead.errors import ClusterError, InvalidSpec, NotFound
from fairlead.frozen import dataclass
from fairlead.runtime.podfiles import write_json
from fairlead.state.plan import Event
from fairlead.state.snapshot import Phase
from fairlead.untrusted_json import parse_object

log = logging.getLogger(__name__)

LOOK_S = 2.0
CLOSE_S = 5.0
MOST_STATE = 16 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class NotifierRecord:
    """State of notifications that survives a supervisor.

    Attributes:
        cursor: The last event that was looked at; None before the first look, which notifies of nothing earlier.
        waits: By uid and destination, the time since which a run is pending, if the destination was notified of it.
    """

    cursor: int | None = None
    waits: dict[str, float] = field(default_factory=dict)
    outboxes: dict[str, Outbox] = field(default_factory=dict)


class LocalNotifier:
    """Sends notices in a thread; ``look`` and ``send`` are its two halves, which tests call by themselves."""

    def __init__(self, home: Home, *, starts: bool = True) -> None:
        self._home = home
        self._record = read_record(home)
        self._written = _plain(self._record)
        self._stopping = threading.Event()
        self._logged = ""
        self._thread: threading.Thread | None = None
        if starts:
            self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)
            self._thread.start()

    @property
    def is_waiting(self) -> bool:
        """Return whether a notice is not sent yet."""
        return is_waiting(tuple(self._record.outboxes.values()))

    def close(self) -> None:
        """End the thread after a last look."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        cluster = LocalCluster(self._home)
        try:
            while True:
                is_last = self._stopping.is_set()
                try:
                    self.step(cluster, time.time())
                except (OSError, ClusterError) as error:
                    log.warning("notifications: %s", error)
                if is_last:
                    return
                self._stopping.wait(LOOK_S)
        finally:
            cluster.close()

    def step(self, cluster: LocalCluster, now: float) -> None:
        """Read the file, look for new notices, and send what is due."""
        reading = destinations_in_force(self._home, is_loop=True)
        if reading.problem is not None and reading.problem != self._logged:
            log.error("%s", reading.problem)
        self._logged = reading.problem or ""
        self.look(cluster, reading.value, now)
        self._write()
        self.send(reading.value, now)

    def look(self, cluster: LocalCluster, destinations: tuple[Destination, ...], now: float) -> None:
        """Put new events, and runs that wait long, into the outboxes."""
        record = self._record
        for name in set(record.outboxes) - {destination.name for destination in destinations}:
            del record.outboxes[name]
        if record.cursor is None:
            events = cluster.events()
            record.cursor = events[-1].id if events else 0
        for event in cluster.events(after=record.cursor):
            notice = self._notice(cluster, event)
            if notice is not None:
                self._add(notice, destinations)
            record.cursor = event.id
        pending = [run for run in cluster.unfinished() if run.status.phase is Phase.PENDING]
        waits = {}
        for run in pending:
            since = run.status.since
            for destination in destinations:
                key = f"{run.uid} {destination.name}"
                is_new = record.waits.get(key) != since
                if now - since >= destination.waits_s:
                    waits[key] = since
                    if is_new:
                        self._add(waiting_notice(run, now), (destination,))
        record.waits = waits

    def send(self, destinations: tuple[Destination, ...], now: float) -> None:
        """Send the messages that are due, and record each answer before the next message."""
        for destination in destinations:
            box = self._record.outboxes.get(destination.name)
            while box is not None and (notices := box.due(now)) and not self._stopping.is_set():
                try:
                    deliver(
                        destination, notices, omitted=box.omitted, secrets=read_secret,
                        environ=os.environ,
                    )  # fmt: skip
                except Undeliverable as error:
                    if box.refused(str(error), now, is_final=error.is_final):
                        log.error("notifications: %s is given up: %s", destination.name, error)
                    else:
                        log.warning("notifications: %s is tried again: %s", destination.name, error)
                else:
                    box.accepted(now)
                self._write()

    def _notice(self, cluster: LocalCluster, event: EventRecord) -> RunNotice | None:
        try:
            run = cluster.get(event.workload_uid)
        except NotFound:
            return None  # deleted since
        except ClusterError as error:
            if error.concerns_all:
                raise
            return None  # of another version
        return notice_of(run, Event(type=event.type, reason=event.reason), id=f"{run.uid}-{event.id}", at=event.at)

    def _add(self, notice: RunNotice, destinations: tuple[Destination, ...]) -> None:
        for destination in destinations:
            if destination.wants(notice):
                self._record.outboxes.setdefault(destination.name, Outbox()).add(notice)

    def _write(self) -> None:
        plain = _plain(self._record)
        if plain != self._written:
            write_json(self._home.notices, plain)
            self._written = plain


def destinations_in_force(home: Home, *, is_loop: bool = False) -> InForce[tuple[Destination, ...]]:
    """Return the destinations of this machine, of the file or, while that has a mistake, of its last good version."""
    return in_force(home, home.notifications, _read, (), what="nobody is notified", is_loop=is_loop)


def _read(path: Path) -> tuple[Destination, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode()
        return read_destinations(text, path.name, has_commands=True)
    except OSError as error:
        raise ClusterError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ClusterError(f"{path} is not UTF-8 text.") from error
    except InvalidSpec as error:
        raise ClusterError(f"{'; '.join(error.problems)}.") from error


def read_secret(place: str) -> str:
    """Return the first line of a file that only its user can read.

    Raises:
        Undeliverable: It cannot be read, or others can read it.
    """
    path = Path(place).expanduser()
    if not path.is_absolute():
        raise Undeliverable(f"{path} is not an absolute path", is_final=True)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MOST_SECRET + 1)
    except OSError as error:
        raise Undeliverable(f"{path} cannot be read: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise Undeliverable(f"{path} can be read by others; `chmod 600 {path}` keeps it secret")
    line = content.decode("utf-8", "replace").partition("\n")[0].strip()
    if not line or len(content) > MOST_SECRET:
        raise Undeliverable(f"{path} has no secret in its first line")
    return line


def read_record(home: Home) -> NotifierRecord:
    """Return what an earlier supervisor recorded; an empty record if there is none, or one that cannot be read."""
    try:
        with home.notices.open("rb") as file:
            plain = parse_object(file.read(MOST_STATE + 1), max_bytes=MOST_STATE, finite=True)
        cursor = plain["cursor"]
        waits = {str(uid): float(since) for uid, since in plain["waits"].items()}
        return NotifierRecord(
            cursor=None if cursor is None else int(cursor), waits=waits, outboxes=outboxes_of(plain["outboxes"])
        )
    except FileNotFoundError:
        return NotifierRecord()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("notices begin anew, since %s cannot be read: %s", home.notices, error)
        return NotifierRecord()


def _plain(record: NotifierRecord) -> dict[str, Any]:
    outboxes: Mapping[str, Outbox] = record.outboxes
    return {"cursor": record.cursor, "waits": dict(record.waits), "outboxes": plain_outboxes(outboxes)}
