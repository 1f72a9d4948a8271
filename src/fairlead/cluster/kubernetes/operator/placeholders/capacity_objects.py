"""Keeps objects by which an autoscaler is asked for nodes, each with its PodTemplate.

An API server that serves such a kind need not have an autoscaler that acts on it: both need an option. So an object
without any condition after a while counts as unanswered; then all of its kind are deleted, and placeholders take their
place.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.informers.autoscalers import serves
from fairlead.cluster.kubernetes.manifests.capacity_objects import GROUP
from fairlead.cluster.kubernetes.names import MANAGED_BY, MANAGER, segment
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.frozen import dataclass

log = logging.getLogger(__name__)

LIST_EVERY_S = 3.0
SILENT_S = 60.0
"""Time within which an autoscaler that acts on such objects has written a condition; they do so in seconds."""
AGAIN_S = 3600.0
"""Time after which objects that nobody answered are tried again."""
SERVED_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of an object; ``since`` is in Unix seconds."""

    is_true: bool
    message: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityObject:
    """An object as it was last read.

    Attributes:
        replicas: Of a CapacityBuffer, those that are wanted.
    """

    namespace: str
    name: str
    uid: str
    created_at: float
    is_leaving: bool
    conditions: Mapping[str, Condition]
    replicas: int | None = None


class CapacityObjects:
    """The objects of one kind.

    Args:
        resource: Plural of the kind, as ``provisioningrequests``.
        key: Label that has the key by which an object is known here.
        namespace: Where they are; None for all namespaces.
        wake: Called when an object has changed.
        may_act: Returns whether this process still leads; asked before each request that creates something.
        is_ours: Returns whether an object is of what its label names; takes the label's value and the metadata.
        isolation: Keeps an object that cannot be read from the others.
    """

    def __init__(
        self,
        client: Client,
        resource: str,
        version: str,
        key: str,
        *,
        wake: Callable[[], None],
        may_act: Callable[[], bool],
        is_ours: Callable[[str, Mapping[str, Any]], bool],
        isolation: Isolation,
        namespace: str | None = None,
        silent_s: float = SILENT_S,
    ) -> None:
        self._client = client
        self._resource = resource
        self._base = f"/apis/{GROUP}/{version}"
        self._key = key
        self._wake = wake
        self._may_act = may_act
        self._is_ours = is_ours
        self._isolation = isolation
        self._namespace = namespace
        self._silent_s = silent_s
        self._lock = threading.Lock()
        self._served: bool | None = None
        self._served_at = 0.0
        self._unanswered_at: float | None = None
        self._listed_at = 0.0
        self._is_listed = False
        self.known: Mapping[str, CapacityObject] = {}

    @property
    def is_clear(self) -> bool:
        """Return whether there is certainly none."""
        return self._is_listed and not self.known

    def is_used(self, now: float) -> bool:
        """Return whether the kind is served, and objects of it are not left unanswered.

        Raises:
            ClusterError: The API server does not answer.
        """
        if self._unanswered_at is not None and now - self._unanswered_at < AGAIN_S:
            return False
        if self._served is None or now - self._served_at >= SERVED_S:
            self._served, self._served_at = serves(self._client, self._base, self._resource), now
        return self._served

    def follow(self, agent: PodAgent, wanted: Mapping[str, object], now: float) -> bool:
        """Read the objects periodically while there may be any, and delete those that nobody wants.

        Returns:
            Whether they are known, so that more may be created.
        """
        if self._served is False:
            self.known, self._is_listed = {}, True
            return False
        if self.is_clear and not wanted:
            return False
        if now - self._listed_at >= LIST_EVERY_S:
            self._listed_at = now
            agent.submit(self._resource, f"list {self._resource}", self._list)
        unanswered = [request for request in self.known.values() if not request.conditions]
        if any(now - request.created_at >= self._silent_s for request in unanswered):
            log.warning("no autoscaler acts on %s; placeholder pods take their place", self._resource)
            self._unanswered_at = now
            self._wake()
        for key, request in self.known.items():
            if (key not in wanted or self._unanswered_at == now) and not request.is_leaving:
                agent.submit(
                    key, f"take away {self._resource} {request.name} {request.uid}", partial(self._delete, request)
                )
        return self._is_listed

    def put(
        self, agent: PodAgent, key: str, template: Object, body: Object, may_ask: Callable[[], bool] = lambda: True
    ) -> None:
        """Queue the creation of an object and its PodTemplate, or their change to this content.

        Args:
            may_ask: Called first, by the thread that would create them; returns whether it shall.
        """
        order = partial(self._put, template, body, may_ask)
        agent.submit(key, f"ask by {self._resource} {body['metadata']['name']}", order)

    def _put(self, template: Object, body: Object, may_ask: Callable[[], bool]) -> None:
        if not self._may_act() or not may_ask():
            return
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        try:
            self._client.apply(f"/api/v1/namespaces/{segment(namespace)}/podtemplates/{segment(name)}", template)
            self._client.apply(f"{self._base}/namespaces/{segment(namespace)}/{self._resource}/{segment(name)}", body)
        except ApiError as error:
            if error.status == 422:  # what cannot be changed has changed: it is asked for anew
                self._remove(namespace, name, {})
            elif error.status not in (403, 404, 405):
                raise
            else:
                log.warning("%s cannot be used: %s", self._resource, error)
                self._served, self._served_at = False, self._listed_at
        self._list()

    def _list(self) -> None:
        where = "" if self._namespace is None else f"/namespaces/{segment(self._namespace)}"
        query = {"labelSelector": f"{MANAGED_BY}={MANAGER}"}
        objects: dict[str, CapacityObject] = {}
        try:
            for item in self._client.items(f"{self._base}{where}/{self._resource}", query):
                metadata = item["metadata"]
                labels = metadata.get("labels") or {}
                if self._key in labels and self._is_ours(str(labels[self._key]), metadata):
                    with self._isolation.of(f"{self._resource} {metadata.get('namespace')}/{metadata['name']}"):
                        objects[str(labels[self._key])] = _read(item)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            objects = {}
        with self._lock:
            is_news = objects != self.known or not self._is_listed
            self.known, self._is_listed = objects, True
        if is_news:
            self._wake()

    def _delete(self, capacity_object: CapacityObject) -> None:
        self._remove(capacity_object.namespace, capacity_object.name, {"preconditions": {"uid": capacity_object.uid}})
        self._list()

    def _remove(self, namespace: str, name: str, body: Object) -> None:
        for path, options in (
            (f"{self._base}/namespaces/{segment(namespace)}/{self._resource}/{segment(name)}", body),
            (f"/api/v1/namespaces/{segment(namespace)}/podtemplates/{segment(name)}", {}),
        ):
            try:
                self._client.delete(path, options)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise


def _read(item: Object) -> CapacityObject:
    metadata, status = item["metadata"], item.get("status") or {}
    conditions = {str(condition["type"]): _condition(condition) for condition in status.get("conditions") or ()}
    return CapacityObject(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        created_at=seconds(metadata["creationTimestamp"]),
        is_leaving="deletionTimestamp" in metadata,
        conditions=conditions,
        replicas=(item.get("spec") or {}).get("replicas"),
    )


def _condition(condition: Mapping[str, Any]) -> Condition:
    message = " ".join(str(condition.get("message") or condition.get("reason") or "").split()).rstrip(".")
    return Condition(
        is_true=condition.get("status") == "True", message=message[:400], since=seconds(condition["lastTransitionTime"])
    )
