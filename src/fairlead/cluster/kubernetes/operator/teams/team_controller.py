"""Keeps every Team's namespace as ``render_team`` renders it: creates it, repairs changes, and reports them.

A deleted team leaves its namespace with everything in it, as that is people's work; it is just no longer repaired. An
existing namespace without the team's label is not touched.
"""

import threading
import time
from collections.abc import Callable
from functools import partial

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Object
from fairlead.cluster.kubernetes.api.watching import IDLE_S, ObjectCache
from fairlead.cluster.kubernetes.informers.informers import TEAMS, Informers, TeamObject
from fairlead.cluster.kubernetes.manifests.conditions import condition, ready_conditions
from fairlead.cluster.kubernetes.manifests.teams import OBJECT_COUNTS, TeamSettings, render_object_counts, render_team
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.events.event_recorder import EventRecorder, PendingEvent
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.cluster.kubernetes.operator.teams.drift import is_as_rendered, surplus
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.policy.kinds.readiness import SpecProgress
from fairlead.specs.keys import API_VERSION

# Where each kind of a team's objects is listed, over all namespaces.
LISTS = {
    "Namespace": "/api/v1/namespaces",
    "ResourceQuota": "/api/v1/resourcequotas",
    "LimitRange": "/api/v1/limitranges",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/networkpolicies",
}
# The delay after a failure that no watch reports.
RETRY_S = 5.0
# After the start of this process, which comes after that of the kinds; see ``render_object_counts``.
COUNTED_AFTER_S = 60.0
LEAVES = "deleting the team leaves the namespace and all that is in it"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedObject:
    """An object of a team as it was read; ``content`` omits what the API server adds."""

    key: str
    version: int
    team: str
    kind: str
    name: str
    uid: str
    is_leaving: bool
    content: Object


class TeamRefusal(ClusterError):
    """The team cannot be reconciled; the reason is for programs, the message for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TeamKeeper(Controller):
    """Reconciles the teams of a cluster; takes a view that has not been started.

    Args:
        may_act: Returns whether this process still leads; asked before a team is reconciled.
    """

    name = "teams"

    def __init__(
        self,
        view: Informers,
        teller: EventRecorder,
        *,
        settings: TeamSettings | None = None,
        may_act: Callable[[], bool] = lambda: True,
        idle_s: float = IDLE_S,
    ) -> None:
        self._view = view
        self._client = view.client
        self._teller = teller
        self._settings = settings or TeamSettings()
        self._may_act = may_act
        self._counted_at = time.time() + COUNTED_AFTER_S
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self._retry_at: dict[str, float] = {}
        self._gone: list[TeamObject] = []
        view.follow_teams(self._team_changed)
        self._owned: dict[str, ObjectCache[OwnedObject]] = {
            kind: ObjectCache(
                view.client,
                path,
                partial(_read_owned, kind),
                self._owned_changed,
                query={"labelSelector": f"{names.TEAM},{names.MANAGED_BY}={names.MANAGER}"},
                idle_s=idle_s,
            )
            for kind, path in LISTS.items()
        }

    @property
    def is_synced(self) -> bool:
        """Return whether everything was listed once."""
        return self._view.teams.is_synced and all(cache.is_synced for cache in self._owned.values())

    def start(self) -> None:
        """Watch the objects of teams."""
        for cache in self._owned.values():
            cache.start()

    @property
    def caches(self) -> tuple[ObjectCache[OwnedObject], ...]:
        """The caches of the objects of teams."""
        return tuple(self._owned.values())

    def stop(self) -> None:
        """Stop the watches."""
        for cache in self.caches:
            cache.stop()

    def act(self, turn: Turn) -> None:
        """Queue the work that is due."""
        agent, now = turn.agent, turn.now
        if not self.is_synced:
            return
        with self._lock:
            changed, self._changed = self._changed, set()
            gone, self._gone = self._gone, []
            late = {name for name, at in self._retry_at.items() if at <= now}
            self._retry_at = {name: at for name, at in self._retry_at.items() if name not in late}
        for name in changed | late:
            team = self._view.teams.get(name)
            if team is not None and not team.is_leaving:
                # Under a changing name, so that changes in the meantime are checked once more.
                job = f"keep team {name} {team.version} {time.monotonic()}"
                agent.submit(f"team {name}", job, partial(self._keep, agent, name))
        for team in gone:
            self._tell(agent, team, "Left", f"Team {team.name} is deleted. {_after(team.name)}", now)

    def _keep(self, agent: PodAgent, name: str) -> None:
        team = self._view.teams.get(name)
        if team is None or not self._may_act():
            return
        now = time.time()
        try:
            mended = self._make(team)
        except (ApiError, TeamRefusal) as error:
            reason = error.reason if isinstance(error, TeamRefusal) else error.reason or "Refused"
            progress = SpecProgress.STALLED if isinstance(error, TeamRefusal) else SpecProgress.RECONCILING
            self._write(team, progress, reason=reason, message=str(error), mended=(), now=now)
            with self._lock:
                self._retry_at[name] = now + RETRY_S
            return
        if now < self._counted_at:
            with self._lock:
                self._retry_at[name] = self._counted_at
        message = f"namespace {name} has its limits, roles and network policies; {LEAVES}"
        self._write(team, SpecProgress.READY, reason="Kept", message=message, mended=mended, now=now)
        if mended:
            self._tell(agent, team, "PutRight", _putting_right(mended), now, is_warning=True)

    def _make(self, team: TeamObject) -> tuple[str, ...]:
        """Bring the team's objects to their wanted state; return those that had it before and were changed."""
        if team.spec is None:
            raise TeamRefusal("InvalidSpec", team.problem)
        self._own_namespace(team.name)
        was_kept = team.is_true("Ready") and team.observed == team.generation
        rendered = render_team(team.spec, self._settings)
        if time.time() >= self._counted_at:
            rendered.append(render_object_counts(team.spec))
        mended: list[str] = []
        for manifest in rendered:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            live = self._owned[kind].get(name if kind == "Namespace" else f"{team.name}/{name}")
            # Apply does not remove what others have added, and an opening that they added breaks the team's isolation.
            more = (
                surplus(live.content.get("spec") or {}, manifest["spec"])
                if live is not None and "spec" in manifest
                else {}
            )
            if live is not None and not live.is_leaving and not more and is_as_rendered(live.content, manifest):
                continue
            if more:
                self._owned[kind].put(self._client.merge(_path(manifest), {"spec": more}))
            self._owned[kind].put(self._client.apply(_path(manifest), manifest))
            if was_kept and (live is not None or name != OBJECT_COUNTS):
                mended.append(f"{kind} {name}")
        wanted = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in rendered}
        wanted.add(("ResourceQuota", OBJECT_COUNTS))
        # Only the quota is optional.
        for quota in self._owned["ResourceQuota"].all():
            if quota.team == team.name and ("ResourceQuota", quota.name) not in wanted:
                self._remove(quota)
        return tuple(mended)

    def _own_namespace(self, name: str) -> None:
        """Ensure that the namespace is the team's, or nobody's yet.

        Raises:
            TeamRefusal: It is not the team's, or is being deleted.
        """
        try:
            content = self._client.get(f"/api/v1/namespaces/{segment(name)}")
        except ApiError as error:
            if error.status == 404:
                return
            raise
        metadata = content["metadata"]
        if "deletionTimestamp" in metadata:
            message = f"namespace {name} is being deleted; when it is gone, the team gets a new one"
            raise TeamRefusal("NamespaceTerminating", message)
        if (metadata.get("labels") or {}).get(names.TEAM) != name:
            message = (
                f"a namespace {name} exists and is not this team's; `kubectl label namespace {name} "
                f"{names.TEAM}={name}` hands it over, with default-deny network and Pod Security, or rename the team"
            )
            raise TeamRefusal("NamespaceTaken", message)

    def _remove(self, item: OwnedObject) -> None:
        path = f"/api/v1/namespaces/{segment(item.team)}/resourcequotas/{segment(item.name)}"
        try:
            self._client.delete(path, {"preconditions": {"uid": item.uid}})
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        self._owned[item.kind].drop(item.key, item.version)

    def _write(
        self,
        team: TeamObject,
        progress: SpecProgress,
        *,
        reason: str,
        message: str,
        mended: tuple[str, ...],
        now: float,
    ) -> None:
        """Write the status, unless it is up to date."""
        ready = ready_conditions(
            progress, reason=reason, message=message, at=now, generation=team.generation, before=team.conditions
        )
        drift = [dict(condition) for condition in team.conditions if condition.get("type") == "DriftMended"]
        if mended:
            drift = [
                condition(
                    "DriftMended", True, reason="PutRight", message=_putting_right(mended), at=now,
                    generation=team.generation,
                )
            ]  # fmt: skip
        conditions = [*ready, *drift]
        # The API server has an order of its own.
        present = sorted(map(dict, team.conditions), key=lambda condition: str(condition.get("type")))
        if team.observed == team.generation and present == sorted(
            conditions, key=lambda condition: str(condition["type"])
        ):
            return
        status = {"observedGeneration": team.generation, "conditions": conditions}
        metadata = {"name": team.name, "uid": team.uid}
        body = {"apiVersion": API_VERSION, "kind": "Team", "metadata": metadata, "status": status}
        try:
            self._view.teams.put(self._client.apply(f"{TEAMS}/{segment(team.name)}/status", body))
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _tell(
        self, agent: PodAgent, team: TeamObject, reason: str, note: str, now: float, *, is_warning: bool = False
    ) -> None:
        regarding = {"apiVersion": API_VERSION, "kind": "Team", "name": team.name, "uid": team.uid}
        name = f"{team.name}.{int(now * 1e6):x}"
        telling = PendingEvent(regarding=regarding, name=name, reason=reason, note=note, at=now, is_warning=is_warning)
        self._teller.tell(agent, telling, now)

    def _team_changed(self, team: TeamObject) -> None:
        with self._lock:
            if self._view.teams.get(team.key) is not None:
                self._changed.add(team.name)
            else:
                self._gone.append(team)

    def _owned_changed(self, before: OwnedObject | None, after: OwnedObject | None) -> None:
        owned = after or before
        if owned is None or (before is not None and after is not None and before.content == after.content):
            return
        with self._lock:
            self._changed.add(owned.team)
        self._view.wake()


def _read_owned(kind: str, content: Object) -> OwnedObject:
    metadata = content["metadata"]
    own = {name: value for name, value in content.items() if name not in ("status", "metadata")}
    identity = {name: metadata[name] for name in ("name", "namespace", "labels") if name in metadata}
    team = (metadata.get("labels") or {}).get(names.TEAM, "")
    namespace = metadata.get("namespace")
    return OwnedObject(
        key=f"{namespace}/{metadata['name']}" if namespace else metadata["name"],
        version=int(metadata["resourceVersion"]),
        team=team,
        kind=kind,
        name=metadata["name"],
        uid=metadata["uid"],
        is_leaving="deletionTimestamp" in metadata,
        # Items of a list cannot be identified.
        content={"apiVersion": content.get("apiVersion") or _api_of(kind), "kind": kind, **own, "metadata": identity},
    )


def _api_of(kind: str) -> str:
    return LISTS[kind].removeprefix("/apis/").removeprefix("/api/").rpartition("/")[0]


def _path(item: Object) -> str:
    root, _, plural = LISTS[item["kind"]].rpartition("/")
    metadata = item["metadata"]
    where = f"{root}/namespaces/{segment(metadata['namespace'])}" if "namespace" in metadata else root
    return f"{where}/{plural}/{segment(metadata['name'])}"


def _putting_right(mended: tuple[str, ...]) -> str:
    return f"someone changed or removed {', '.join(mended)}, which was restored; change the Team instead"


def _after(name: str) -> str:
    return (
        f"Namespace {name}, its limits, its members' roles and all runs in it stay, but are no longer maintained; "
        f"`kubectl delete namespace {name}` removes them"
    )
