"""The tables of the local cluster's database, and their rows as values."""

from dataclasses import dataclass

from fairlead.cluster.records import load, load_all
from fairlead.policy.kinds.lifecycle import upgraded
from fairlead.specs.formats.serialization import from_json
from fairlead.specs.training import Training
from fairlead.state.snapshot import Grant, Intent, Pod, PodPhase, Progress, RankExit, Status, Workload

# 2: a run may be Suspended, which older versions cannot read.
SCHEMA_VERSION = 2
SCHEMA = """
CREATE TABLE workloads (
    uid TEXT PRIMARY KEY, team TEXT NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL, intent TEXT NOT NULL,
    version INTEGER NOT NULL, phase TEXT NOT NULL, final INTEGER NOT NULL, attempt INTEGER NOT NULL,
    status TEXT NOT NULL, progress TEXT, created_at REAL NOT NULL
);
CREATE UNIQUE INDEX one_unfinished_of_a_name ON workloads (team, name) WHERE final = 0;
CREATE INDEX workloads_by_age ON workloads (created_at);
CREATE INDEX workloads_by_name ON workloads (name, created_at);
CREATE TABLE pods (
    uid TEXT PRIMARY KEY, workload_uid TEXT NOT NULL, attempt INTEGER NOT NULL, idx INTEGER NOT NULL,
    node TEXT NOT NULL, "grant" TEXT NOT NULL, phase TEXT NOT NULL, final INTEGER NOT NULL, created_at REAL NOT NULL,
    started_at REAL, terminating_since REAL, kill_at REAL, active_at REAL, exits TEXT NOT NULL, message TEXT,
    event_offsets TEXT NOT NULL
);
CREATE INDEX pods_of_workload ON pods (workload_uid, attempt);
CREATE INDEX live_pods ON pods (final) WHERE final = 0;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, workload_uid TEXT NOT NULL, run TEXT NOT NULL,
    type TEXT NOT NULL, reason TEXT NOT NULL
);
CREATE INDEX events_of_workload ON events (workload_uid, id);
"""
WORKLOAD = "uid, spec, intent, version, status, progress, created_at"
POD = (
    'uid, workload_uid, attempt, idx, node, "grant", phase, created_at, started_at, terminating_since, active_at, '
    "exits, message, kill_at, event_offsets"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """A pod with what only the agent needs: when it is to be killed, and how far its event files were read."""

    pod: Pod
    kill_at: float | None = None
    event_offsets: str = "{}"


def workload_of(row: tuple[object, ...]) -> Workload:
    uid, text, intent, version, status, progress, created_at = row
    spec = from_json(str(text))
    assert isinstance(spec, Training), "only runs are kept here"
    return Workload(
        uid=str(uid),
        spec=spec,
        intent=Intent(str(intent)),
        version=int(str(version)),
        status=upgraded(load(Status, str(status))),
        progress=None if progress is None else load(Progress, str(progress)),
        created_at=float(str(created_at)),
    )


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
    ) = row
    pod = Pod(
        uid=str(uid),
        workload_uid=str(workload_uid),
        attempt=int(str(attempt)),
        index=int(str(index)),
        node=str(node),
        grant=load(Grant, str(grant)),
        phase=PodPhase(str(phase)),
        created_at=float(str(created)),
        started_at=_time(started),
        terminating_since=_time(ending),
        active_at=_time(active),
        exits=load_all(RankExit, str(exits)),
        message=None if message is None else str(message),
    )
    return PodRow(pod=pod, kill_at=_time(kill), event_offsets=str(offs))


def _time(value: object) -> float | None:
    return None if value is None else float(str(value))
