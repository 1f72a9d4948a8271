"""The tables of the local cluster's database, and the conversion of their rows to values."""

import logging
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from fairlead.cluster.records import load, load_all, with_detail
from fairlead.errors import ClusterError, InvalidSpec
from fairlead.frozen import dataclass
from fairlead.policy.kinds.lifecycle import upgraded
from fairlead.specs.formats.serialization import workload_spec
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.pod_uids import replacement_of
from fairlead.state.snapshot import (
    AnyWorkload,
    Grant,
    Intent,
    Pod,
    PodPhase,
    Progress,
    RankExit,
    Silence,
    Status,
    Usage,
    Workload,
    with_requests,
)

LOGGER = logging.getLogger("fairlead.cluster")

# 2: a run may be Suspended, which older versions cannot read. 3: the table of points. 4: usage of pods, and prices. 5:
# notices of budgets. 6: workloads of other kinds, and their children. 7: indexes that find few among many finished
# ones. 8: endpoints, and readiness of pods. 9: models. 10: peak usage of a pod. 11: idle time of what pods hold. 12:
# the share that a pod pays for of GPUs that others hold as well.
SCHEMA_VERSION = 12
UNCLAIMED = "no process has taken it up; supervisor.log in the state directory may say why"
SCHEMA = """
CREATE TABLE workloads (
    uid TEXT PRIMARY KEY, team TEXT NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL, intent TEXT NOT NULL,
    version INTEGER NOT NULL, phase TEXT NOT NULL, final INTEGER NOT NULL, attempt INTEGER NOT NULL,
    status TEXT NOT NULL, progress TEXT, created_at REAL NOT NULL, kind TEXT NOT NULL DEFAULT 'Training', parent TEXT
);
CREATE UNIQUE INDEX one_unfinished_of_a_name ON workloads (team, name) WHERE final = 0;
CREATE INDEX workloads_by_age ON workloads (created_at);
CREATE INDEX workloads_by_name ON workloads (name, created_at);
CREATE INDEX children ON workloads (parent) WHERE parent IS NOT NULL;
CREATE TABLE pods (
    uid TEXT PRIMARY KEY, workload_uid TEXT NOT NULL, attempt INTEGER NOT NULL, idx INTEGER NOT NULL,
    node TEXT NOT NULL, "grant" TEXT NOT NULL, phase TEXT NOT NULL, final INTEGER NOT NULL, created_at REAL NOT NULL,
    started_at REAL, terminating_since REAL, kill_at REAL, active_at REAL, exits TEXT NOT NULL, message TEXT,
    event_offsets TEXT NOT NULL, share INTEGER, ready INTEGER NOT NULL DEFAULT 0, usage TEXT,
    shares TEXT
);
CREATE INDEX pods_of_workload ON pods (workload_uid, attempt);
CREATE INDEX live_pods ON pods (final) WHERE final = 0;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, workload_uid TEXT NOT NULL, run TEXT NOT NULL,
    type TEXT NOT NULL, reason TEXT NOT NULL
);
CREATE INDEX events_of_workload ON events (workload_uid, id);
"""
POINTS = """
CREATE TABLE IF NOT EXISTS points (
    id INTEGER PRIMARY KEY AUTOINCREMENT, workload_uid TEXT NOT NULL, name TEXT NOT NULL, attempt INTEGER NOT NULL,
    step INTEGER, at REAL NOT NULL, value REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS points_of_workload ON points (workload_uid, name, id)
"""
MODEL_SCHEMA = """
CREATE TABLE IF NOT EXISTS models (
    name TEXT NOT NULL, version INTEGER NOT NULL, digest TEXT NOT NULL, content TEXT NOT NULL,
    size_bytes INTEGER NOT NULL, created_at REAL NOT NULL, stage TEXT, metrics TEXT NOT NULL, objective TEXT,
    goal TEXT, lineage TEXT NOT NULL, PRIMARY KEY (name, version)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS one_version_of_a_stage ON models (name, stage) WHERE stage IS NOT NULL
"""
# The condition of the loop and the page, which selects a small part of the table.
WANTED = "final = 0 OR intent IN ('run', 'delete')"
INDEXES = f"""
CREATE INDEX IF NOT EXISTS workloads_wanted ON workloads (created_at) WHERE {WANTED};
CREATE INDEX IF NOT EXISTS workloads_by_phase ON workloads (phase, created_at);
CREATE INDEX IF NOT EXISTS workloads_by_kind ON workloads (kind, created_at);
CREATE INDEX IF NOT EXISTS workloads_by_team ON workloads (team, created_at)
"""
# Upgrade of workloads from before version 6.
UPGRADE = """
ALTER TABLE workloads ADD COLUMN kind TEXT NOT NULL DEFAULT 'Training';
ALTER TABLE workloads ADD COLUMN parent TEXT;
CREATE INDEX children ON workloads (parent) WHERE parent IS NOT NULL
"""
# The uids of workloads that are unfinished or wanted, or have live pods; each half uses its own index.
ACTIVE = f"SELECT uid FROM workloads WHERE {WANTED} UNION SELECT workload_uid FROM pods WHERE final = 0"
WORKLOAD = "uid, spec, intent, version, status, progress, created_at, kind, parent"
POD = (
    'uid, workload_uid, attempt, idx, node, "grant", phase, created_at, started_at, terminating_since, active_at, '
    "exits, message, kill_at, event_offsets, ready, usage"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """A pod with data for the agent only: when it is to be killed, and how far its event files have been read."""

    pod: Pod
    kill_at: float | None = None
    event_offsets: str = "{}"


class UnreadableWorkload(ClusterError):
    """A stored workload whose spec this version refuses."""

    @property
    def concerns_all(self) -> bool:
        return False


def readable(rows: Iterable[tuple[object, ...]]) -> Iterator[AnyWorkload]:
    """Yield the workloads of rows without those that this version cannot read, each of which is logged once.

    They keep their rows, and their pods what they hold, until a version that reads them goes on with them.
    """
    for row in rows:
        try:
            yield workload_of(row)
        except UnreadableWorkload as error:
            if row[:2] not in _LOGGED:
                _LOGGED.add(row[:2])
                LOGGER.warning("%s", error)


_LOGGED: set[tuple[object, ...]] = set()
"""Uids and specs, as loops look at them at each pass."""


def workload_of(row: tuple[object, ...]) -> AnyWorkload:
    """Return the workload of a row.

    Raises:
        UnreadableWorkload: This version refuses its spec.
    """
    uid, text, intent, version, status, progress, created_at, kind, parent = row
    try:
        spec = _spec(str(text))
    except InvalidSpec as error:
        raise UnreadableWorkload(_unreadable(str(uid), str(kind), str(text), error)) from error
    state = with_detail(str(kind), upgraded(load(Status, str(status))))
    return Workload(
        uid=str(uid),
        spec=with_requests(spec, state.measured.requests) if isinstance(spec, Training) else spec,
        intent=Intent(str(intent)),
        version=int(str(version)),
        status=state,
        progress=progress_of(progress),
        created_at=float(str(created_at)),
        parent=None if parent is None else str(parent),
    )


@lru_cache(maxsize=256)
def _spec(text: str) -> WorkloadSpec:
    """Parse a spec, cached, since a run's spec is read at every pass."""
    return workload_spec(text)


def _unreadable(uid: str, kind: str, text: str, error: InvalidSpec) -> str:
    """Describe a workload whose spec cannot be read, with a remedy."""
    match = re.search(r'"name":"([^"]*)"', text)
    name = uid if match is None else f"{match[1]} ({uid})"
    problem = "; ".join(error.problems).removeprefix("<stored spec>: ")
    return (
        f"The {kind} {name} was kept by another version of Fairlead, and this one refuses its spec: {problem}. "
        "Delete it with the version that kept it, or go on with that version."
    )


def training_of(text: object) -> Training:
    spec = _spec(str(text))
    assert isinstance(spec, Training), "only runs are kept here"
    return spec


def progress_of(text: object) -> Progress | None:
    return None if text is None else load(Progress, str(text))


def pod_of(row: tuple[object, ...]) -> PodRow:
    (
        uid,
        workload_uid,
        attempt,
        index,
        node,
        grant,
        phase,
        created,
        started,
        ending,
        active,
        exits,
        message,
        kill,
        offs,
        ready,
        usage,
    ) = row
    began = PodPhase(str(phase))
    pod = Pod(
        uid=str(uid),
        workload_uid=str(workload_uid),
        attempt=int(str(attempt)),
        index=int(str(index)),
        replacement=replacement_of(str(uid)),
        node=str(node),
        grant=load(Grant, str(grant)),
        phase=began,
        created_at=float(str(created)),
        started_at=_time(started),
        terminating_since=_time(ending),
        active_at=_time(active),
        exits=load_all(RankExit, str(exits)),
        message=None if message is None else str(message),
        ready=bool(ready),
        usage=None if usage is None else load(Usage, str(usage)),
        silence=Silence(since=float(str(created)), what=UNCLAIMED) if began is PodPhase.CREATED else None,
    )
    return PodRow(pod=pod, kill_at=_time(kill), event_offsets=str(offs))


def _time(value: object) -> float | None:
    return None if value is None else float(str(value))
