"""Keeps a PodGroup for each attempt of a gang, where the API server has them, so that schedulers see the gang as one.

Fairlead chooses the nodes all the same. The group is created before the first pod, and each pod names it. Whether an
attempt has one is decided once: a pod that names a group waits in kube-scheduler until the group exists, and a pod that
names none never counts in it. Whatever keeps the group from being used leaves the gang as it is on older servers.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.informers.pod_groups import PodGroupObject, PodGroups
from fairlead.cluster.kubernetes.manifests.pod_groups import BASE, RESOURCE, min_count_patch, render_pod_group
from fairlead.cluster.kubernetes.names import pod_group_name_of, segment
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster, RefusedWrite
from fairlead.cluster.kubernetes.workloads.run_record import TrainingObject
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.state.snapshot import Phase, Pod, Workload
from fairlead.untrusted_json import fields, whole

log = logging.getLogger(__name__)

SUITS_S = 300.0
"""How long an answer on the pods of a namespace counts: whether they keep their group and its priority."""
LOOK = "look-for-pod-groups"
PodOf = Callable[[TrainingObject, str], dict[str, Any]]
"""Renders the first pod of a gang, of the group of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeGroup:
    """Create the group of the running attempt again: somebody has deleted it."""

    attempt: int
    min_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FitGroup:
    """Change how many pods are placed together."""

    key: str
    uid: str
    min_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Delete the group of an attempt that is over."""

    key: str
    uid: str


GroupOrder = MakeGroup | FitGroup | DeleteGroup


class _ForeignGroupError(ClusterError):
    """A group of the name exists which is not the run's."""


def group_orders(
    run_object: TrainingObject,
    members: tuple[Pod, ...],
    pods: Collection[PodObject],
    groups: Mapping[str, PodGroupObject],
) -> list[GroupOrder]:
    """Return what is to be done about the groups of a run. Pure, and level-triggered.

    Args:
        members: Its latest gang, as the loop sees it.
        pods: Its pods, of any attempt.
        groups: Its groups, by name.
    """
    gang, run = run_object.state.gang, run_object.workload
    if run is None:
        return []
    status = run.status
    is_current = gang is not None and status.phase in (Phase.STARTING, Phase.RUNNING) and status.attempt == gang.attempt
    current = gang.attempt if gang is not None and is_current else None
    own, alive = [pod for pod in pods if not pod.engine], {pod.attempt for pod in pods if not pod.is_over}
    over = (
        group for group in groups.values() if group.attempt != current and group.attempt not in alive
    )  # Kubernetes would keep it while one of its pods is alive
    actions: list[GroupOrder] = [DeleteGroup(key=group.key, uid=group.uid) for group in over if not group.is_leaving]
    if gang is None or current is None:
        return actions
    name = pod_group_name_of(run.spec.name, run.uid, current)
    present = {pod.index: pod for pod in own if gang.has(pod.attempt, pod.index, pod.replacement) and not pod.is_over}
    if not any(pod.group == name for pod in present.values()):
        return actions
    # Those that can still count in it: all that are to be created, and all that exist and name it.
    counted = [
        member for member in members
        if not member.phase.is_final and (member.index not in present or present[member.index].group == name)
    ]  # fmt: skip
    group = groups.get(name)
    if group is None:
        actions.append(MakeGroup(attempt=current, min_count=len(counted)))
    elif not group.is_leaving and group.min_count != len(counted):
        # One that is bound shows that all were placed. From then on each that ended, or was lost, is missing in the
        # number, without which no other one in its place would be bound. Before, the gang fails as a whole.
        was_placed = any(pod.node for pod in own if pod.attempt == current)
        is_any_unbound = any(member.index not in present or not present[member.index].node for member in counted)
        if was_placed and is_any_unbound:
            actions.append(FitGroup(key=group.key, uid=group.uid, min_count=len(counted)))
    return actions


class GangGroups:
    """Carries out what follows from the gangs' objects.

    Args:
        submit: Queues a job of a run.
        may_act: Returns whether this process still leads.
    """

    def __init__(
        self, cluster: KubernetesCluster, submit: Callable[[str, str, Callable[[], None]], object],
        *, may_act: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._view = cluster.view
        self._client: Client = cluster.client
        self._groups: PodGroups = cluster.view.pod_groups
        self._submit = submit
        self._may_act = may_act
        self._lock = threading.Lock()
        self._chosen: dict[str, tuple[int, str | None]] = {}
        self._suits: dict[tuple[str, str | None], tuple[float, bool]] = {}

    def look(self) -> None:
        """Queue the question whether the API server has PodGroups, when it is due."""
        if self._groups.is_due:
            self._submit(LOOK, "look for PodGroups", self._groups.look)

    def forget(self, uid: str) -> None:
        """Forget a run that is gone."""
        with self._lock:
            self._chosen.pop(uid, None)

    def of(self, uid: str, attempt: int) -> str | None:
        """Return the group that new pods of an attempt name; None for none."""
        with self._lock:
            of_attempt, name = self._chosen.get(uid, (-1, None))
        return name if of_attempt == attempt else None

    def choose(self, run_object: TrainingObject, attempt: int, pod_of: PodOf) -> None:
        """Decide whether the pods of an attempt have a group, and create it before the first of them.

        Args:
            pod_of: Renders a pod of it.

        Raises:
            ClusterError: It is not known whether the group exists.
        """
        name = self._choice(run_object, attempt, pod_of)
        with self._lock:
            self._chosen[run_object.uid] = attempt, name

    def _choice(self, run_object: TrainingObject, attempt: int, pod_of: PodOf) -> str | None:
        run, gang = run_object.workload, run_object.state.gang
        if run is None or gang is None or gang.attempt != attempt or len(gang.nodes) < 2 or run.spec.engine is not None:
            return None
        name = pod_group_name_of(run.spec.name, run.uid, attempt)
        existing = [pod for pod in self._view.pods_of(run.uid).values() if pod.attempt == attempt]
        if existing:
            return name if any(pod.group == name for pod in existing) else None
        if not self._groups.is_used:
            return None
        group = self._create(run, attempt, len(gang.nodes))
        if group is None:
            return None
        if not self._is_suited(run, group, pod_of(run_object, name)):
            self._delete(DeleteGroup(key=group.key, uid=group.uid))
            return None
        return name

    def look_after(self, run_object: TrainingObject, members: tuple[Pod, ...], pods: Collection[PodObject]) -> bool:
        """Queue the work that the groups of a run need; return whether there is none."""
        if not self._groups.is_used:
            return True
        actions = group_orders(run_object, members, pods, self._groups.of_run(run_object.uid))
        for action in actions:
            if isinstance(action, DeleteGroup):
                self._submit(
                    run_object.uid, f"delete PodGroup {action.key} {action.uid}", partial(self._delete, action)
                )
            elif isinstance(action, FitGroup):
                name = f"place {action.min_count} pods of PodGroup {action.key} {action.uid} together"
                self._submit(run_object.uid, name, partial(self._fit, action))
            else:
                name = f"create the PodGroup of attempt {action.attempt} of {run_object.key}"
                self._submit(run_object.uid, name, partial(self._make_again, run_object.uid, action))
        return not actions

    def _make_again(self, uid: str, action: MakeGroup) -> None:
        run_object = self._view.find(uid)
        run = None if run_object is None else run_object.workload
        if run is not None and run.status.attempt == action.attempt and self._may_act():
            self._post(run, render_pod_group(run, action.attempt, action.min_count))

    def _create(self, run: Workload, attempt: int, size: int) -> PodGroupObject | None:
        """Create the group; return None if the gang has to do without it."""
        try:
            return self._post(run, render_pod_group(run, attempt, size))
        except _ForeignGroupError as error:
            self._cluster.note_refusal(run.uid, RefusedWrite.REQUEST, str(error))
            return None
        except ApiError as error:
            if error.status not in (400, 403, 404, 405, 422):
                raise
            log.warning("%s/%s starts without a PodGroup: %s", run.spec.team, run.spec.name, error)
            if error.status in (404, 405):
                self._groups.refuse()
            return None

    def _post(self, run: Workload, group: dict[str, Any]) -> PodGroupObject:
        """Create a group, or take the one that exists if it is the run's.

        Raises:
            _ForeignGroupError: It is not.
        """
        path, name = self._path(run.spec.team), group["metadata"]["name"]
        try:
            content = self._client.create(path, group)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            content = self._client.get(f"{path}/{segment(name)}")
        made = self._groups.put(content)
        key = self._view.key_of(run.uid)
        if made is not None and (made.run_uid, made.run_key) == (run.uid, key) and made.min_count and made.is_whole:
            return made
        raise _ForeignGroupError(
            f"PodGroup {run.spec.team}/{name} exists, and Fairlead did not create it: the gang goes without; delete it"
        )

    def _is_suited(self, run: Workload, group: PodGroupObject, pod: dict[str, Any]) -> bool:
        """Return whether pods keep the name of their group, and its priority, which webhooks may change.

        kube-scheduler places no pod of a group that differs in its priority.
        """
        place = run.spec.team, pod["spec"].get("priorityClassName")
        now = time.monotonic()
        with self._lock:
            at, suits = self._suits.get(place, (float("-inf"), False))
        if now - at < SUITS_S:
            return suits
        try:
            answer = self._client.create(f"/api/v1/namespaces/{segment(run.spec.team)}/pods", pod, {"dryRun": "All"})
        except ApiError as error:
            # The pod itself may be refused too, which is explained there.
            log.info("%s/%s: its pods could not be tried: %s", run.spec.team, run.spec.name, error)
            return True
        spec = fields(answer.get("spec"))
        is_named = fields(spec.get("schedulingGroup")).get("podGroupName") == group.key.partition("/")[2]
        suits = is_named and (group.priority is None or whole(spec.get("priority")) == group.priority)
        if not suits:
            why = "have another priority than their class" if is_named else "lose the name of their PodGroup"
            log.warning("gangs of %s go without PodGroups, since pods there %s", run.spec.team, why)
        with self._lock:
            self._suits = {key: value for key, value in self._suits.items() if now - value[0] < SUITS_S}
            self._suits[place] = now, suits
        return suits

    def _fit(self, action: FitGroup) -> None:
        if not self._may_act():
            return
        try:
            content = self._client.merge(self._path_of(action.key), min_count_patch(action.min_count, action.uid))
        except ApiError as error:
            is_another = error.status == 422 and "metadata.uid" in error.server_message
            if error.status not in (404, 409) and not is_another:
                raise
            return  # gone, or another one of that name: the watch will show which
        self._groups.put(content)

    def _delete(self, action: DeleteGroup) -> None:
        if not self._may_act():
            return
        try:
            content = self._client.delete(self._path_of(action.key), {"preconditions": {"uid": action.uid}})
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return
        if content.get("kind") == "PodGroup" and "deletionTimestamp" in fields(content.get("metadata")):
            self._groups.put(content)

    @staticmethod
    def _path(namespace: str) -> str:
        return f"{BASE}/namespaces/{segment(namespace)}/{RESOURCE}"

    def _path_of(self, key: str) -> str:
        namespace, _, name = key.partition("/")
        return f"{self._path(namespace)}/{segment(name)}"
