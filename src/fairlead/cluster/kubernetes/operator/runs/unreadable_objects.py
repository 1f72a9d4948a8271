"""Tells, on the objects themselves, that the operator cannot read them: an Event, and for Fairlead's kinds a condition.

Such an object counts as it could last be read (``ObjectCache``). One that is being deleted is let go although it cannot
be read, so that its author can always get rid of it.
"""

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.watching import ObjectCache, Unreadable
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.kinds import objects_path, plural, workload_kinds
from fairlead.cluster.kubernetes.manifests.conditions import STALLED, condition
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.events.event_recorder import EventRecorder, PendingEvent
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.cluster.kubernetes.workloads.run_record import FINALIZER
from fairlead.specs.keys import API_VERSION
from fairlead.specs.pool import Pool
from fairlead.specs.team import Team

log = logging.getLogger(__name__)

READABLE = "Readable"
REASON = "Unreadable"
# Owns these conditions, beside the manager that writes all others.
MANAGER = "fairlead-reader"
QUEUE = "unreadable"
REMEDY = "Correct it or delete it; until then it counts as it could last be read, and nothing is decided for it."


_OTHERS = {
    "configmaps": "ConfigMap",
    "daemonsets": "DaemonSet",
    "resourceslices": "ResourceSlice",
    "resourceclaims": "ResourceClaim",
    "networkpolicies": "NetworkPolicy",
    "resourcequotas": "ResourceQuota",
    "rolebindings": "RoleBinding",
}


class UnreadableObjects(Controller):
    """The objects that were told to be unreadable.

    Args:
        may_act: Returns whether this process still leads; asked before each request.
    """

    name = "unreadable objects"

    def __init__(
        self,
        view: Informers,
        teller: EventRecorder,
        *,
        may_act: Callable[[], bool],
    ) -> None:
        self._view = view
        self._client: Client = view.client
        self._teller = teller
        self._caches: Callable[[], Iterable[ObjectCache[Any]]] = list
        self._may_act = may_act
        self._reported: dict[tuple[str, str], Unreadable] = {}
        self._epoch = -1

    def follow(self, caches: Callable[[], Iterable[ObjectCache[Any]]]) -> None:
        """Look for unreadable objects in the caches that a function returns."""
        self._caches = caches

    def act(self, turn: Turn) -> None:
        """Queue what is to be told of objects that became unreadable, or readable again."""
        agent, now = turn.agent, turn.now
        by_place = {
            (unreadable.path, unreadable.key): unreadable for cache in self._caches() for unreadable in cache.unreadable
        }
        for place, unreadable in by_place.items():
            known = self._reported.get(place)
            if unreadable.is_leaving and FINALIZER in unreadable.finalizers:
                agent.report(
                    QUEUE,
                    unreadable.namespace,
                    f"let go {unreadable.path} {unreadable.key} {unreadable.version}",
                    partial(self._let_go, unreadable),
                )
            if known is None or (known.uid, known.problem) != (unreadable.uid, unreadable.problem):
                self._reported[place] = unreadable
                self._tell(agent, unreadable, now)
        for place in [place for place in self._reported if place not in by_place]:
            gone = self._reported.pop(place)
            if _is_ours(gone) and gone.uid:
                name = f"call {gone.path} {gone.key} {gone.version} readable"
                agent.report(QUEUE, gone.namespace, name, partial(self._write, gone, is_readable=True))
        if (epoch := self._view.epoch) != self._epoch:
            self._epoch = epoch
            self._let_invalid_go(agent)

    def _let_invalid_go(self, agent: PodAgent) -> None:
        """Queue the release of workloads that are being deleted and whose specs are invalid."""
        for invalid in (workload for workload in self._view.workload_objects() if workload.workload is None):
            if invalid.is_leaving and FINALIZER in invalid.finalizers:
                path = objects_path(invalid.kind, invalid.namespace, invalid.name)
                rest = tuple(name for name in invalid.finalizers if name != FINALIZER)
                release = partial(self._release, path, rest, invalid.version)
                agent.report(QUEUE, invalid.namespace, f"let go {path} {invalid.version}", release)

    def _tell(self, agent: PodAgent, unreadable: Unreadable, now: float) -> None:
        if not unreadable.name:
            return
        regarding = {
            "apiVersion": unreadable.api_version or _version_of(unreadable.path),
            "kind": unreadable.kind or _kind_of(unreadable.path),
            "name": unreadable.name,
            "uid": unreadable.uid,
            **({"namespace": unreadable.namespace} if unreadable.namespace else {}),
        }
        note = f"Fairlead cannot read it: {unreadable.problem}. {REMEDY}"
        name = f"{unreadable.name}.{unreadable.uid[:8]}.unreadable"
        self._teller.tell(
            agent, PendingEvent(regarding=regarding, name=name, reason=REASON, note=note, at=now, is_warning=True), now
        )
        if _is_ours(unreadable):
            what = f"call {unreadable.path} {unreadable.key} {unreadable.version} unreadable"
            agent.report(QUEUE, unreadable.namespace, what, partial(self._write, unreadable, is_readable=False))

    def _write(self, unreadable: Unreadable, *, is_readable: bool) -> None:
        """Write the condition, or take it back."""
        if not self._may_act():
            return
        status: dict[str, Any] = {}
        if not is_readable:
            message = f"Fairlead cannot read this object: {unreadable.problem}. {REMEDY}"
            about: dict[str, Any] = {"reason": REASON, "message": message, "at": time.time(), "generation": 0}
            status = {"conditions": [condition(READABLE, False, **about), condition(STALLED, True, **about)]}
        path = _path_of(unreadable)
        metadata = {
            "name": unreadable.name,
            **({"namespace": unreadable.namespace} if unreadable.namespace else {}),
            "uid": unreadable.uid,
        }
        body = {"apiVersion": API_VERSION, "kind": _kind_of(unreadable.path), "metadata": metadata, "status": status}
        try:
            self._client.apply(f"{path}/status", body, manager=MANAGER)
        except ApiError as error:
            # Gone, another one of that name, or one whose status the server does not take: the Event tells it.
            if error.status not in (400, 404, 409, 422):
                raise
            log.info("%s is not marked as %s: %s", path, REASON, error)

    def _let_go(self, unreadable: Unreadable) -> None:
        rest = tuple(name for name in unreadable.finalizers if name != FINALIZER)
        self._release(_path_of(unreadable), rest, unreadable.version)

    def _release(self, path: str, finalizers: tuple[str, ...], version: int) -> None:
        """Take our finalizer from an object that is being deleted; its pods go with it, which it owns."""
        if not self._may_act():
            return
        metadata = {"finalizers": list(finalizers) or None, "resourceVersion": str(version)}
        try:
            self._client.merge(path, {"metadata": metadata})
        except ApiError as error:
            if error.status not in (404, 409):
                raise


def _is_ours(unreadable: Unreadable) -> bool:
    return unreadable.path.startswith(f"/apis/{API_VERSION}/")


def _path_of(unreadable: Unreadable) -> str:
    """Return the path of an object, from that of the list of all namespaces."""
    place, _, plural = unreadable.path.rpartition("/")
    return (
        f"{place}/namespaces/{segment(unreadable.namespace)}/{plural}/{segment(unreadable.name)}"
        if unreadable.namespace
        else f"{unreadable.path}/{segment(unreadable.name)}"
    )


def _version_of(path: str) -> str:
    """Return the API version of a list, whose items do not repeat it."""
    parts = path.split("/")
    return "/".join(parts[2:4]) if parts[1] == "apis" else parts[2]


def _kind_of(path: str) -> str:
    """Return the kind of the objects of a list, whose items do not repeat it."""
    name = path.rpartition("/")[2]
    ours = {plural(kind): kind for kind in (*workload_kinds(), Team.__name__, Pool.__name__)}
    return ours.get(name) or _OTHERS.get(name) or name.removesuffix("s").capitalize()
